"""The PyTorch side of `adar-deploy bench`."""

import time
from pathlib import Path
from typing import Any

import torch

from adar_runtime.benchmarking.race import Turn
from adar_runtime.benchmarking.sides import Side, answer, opened, timed
from adar_runtime.loop.schedule import times
from adar_train.runs import load_run
from adar_train.tensors import GraphTensors


def torch_turn(side: Side, budget: int) -> Turn:
    """A function that times one inference of the trained model, including the preparation of the graph."""
    torch.set_num_threads(side.threads)
    model = load_run(side.folder).model
    clock = times(budget, unit_step=model.config.unit_step)

    @torch.no_grad()
    def turn(graph: Path) -> tuple[float, Any]:
        loaded = opened(graph)
        started = time.perf_counter()
        tensors = GraphTensors.of(loaded)
        last, steps = timed(model.trajectory(tensors, clock))
        scores = model.scores(last, tensors).numpy()
        return time.perf_counter() - started, answer(steps, scores, regression=model.config.regression)

    return turn
