"""PyTorch models at every step of every budget."""

from collections.abc import Iterator, Sequence

import torch

from adar_runtime.curves import Curve, Moment, measure, measure_together
from adar_runtime.graph import GRAPH, Graph
from adar_runtime.schedule import times
from adar_train.model import Model
from adar_train.tensors import GraphTensors


def curves(
    model: Model, graphs: Sequence[Graph], tensors: Sequence[GraphTensors], budget: int, split: int = 0
) -> list[Curve]:
    """One curve a graph; for predictions about whole graphs, one curve for all of them together."""
    runs = [moments(model, tensor, budget) for tensor in tensors]
    if graphs[0].level != GRAPH:
        return [measure(run, graph, budget, split) for run, graph in zip(runs, graphs, strict=True)]
    return [measure_together(runs, graphs, budget, split)]


@torch.no_grad()
def moments(model: Model, tensors: GraphTensors, budget: int) -> Iterator[Moment]:
    """Run a PyTorch model and tell of every step."""
    model.eval()
    clock = times(budget, unit_step=model.config.unit_step)
    for time, state in zip(clock, model.trajectory(tensors, clock), strict=False):
        yield Moment(float(time), float(model.alignment(state)), model.scores(state, tensors).cpu().numpy())
