"""PyTorch models at every step of every budget."""

from collections.abc import Iterator, Sequence

import torch

from adar_runtime.evaluation.curves import Curve, Moment, measure, measure_together
from adar_runtime.evaluation.metrics import pooled_metrics, split_metrics
from adar_runtime.graph import GRAPH, Graph
from adar_runtime.loop.schedule import times
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
    """Run a PyTorch model and tell of every step; of a model of fixed depth, of its input and its output."""
    model.eval()
    clock = times(budget, unit_step=model.config.unit_step)
    states = model.trajectory(tensors, clock)
    if not model.any_budget:
        first, *_, last = states
        clock, states = times(1), iter([first, last])
    for time, state in zip(clock, states, strict=True):
        yield Moment(float(time), float(model.alignment(state)), model.scores(state, tensors).cpu().numpy())


@torch.no_grad()
def final_metrics(
    model: Model, graphs: Sequence[Graph], tensors: Sequence[GraphTensors], budget: int, split: int, part: str
) -> list[float]:
    """The metric at the end of a budget alone: one a graph, or one for graphs labelled as wholes."""
    model.eval()
    scores = []
    for tensor in tensors:
        *_, last = model.trajectory(tensor, times(budget, unit_step=model.config.unit_step))
        scores.append(model.scores(last, tensor).cpu().numpy())
    if graphs[0].level == GRAPH:
        return [pooled_metrics(graphs, scores, split, [part])[part]]
    return [split_metrics(g, s, split, [part])[part] for g, s in zip(graphs, scores, strict=True)]
