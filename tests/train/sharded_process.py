"""One of two processes that train one graph together; `test_sharded_graph.py` starts them."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from adar_runtime.graph import PARTS, Graph, SparseRows
from adar_train import AdaR, Fitted, GraphTensors, ModelConfig, TrainConfig, Trainer, fit
from adar_train.data.splits import with_split
from adar_train.fit import build
from adar_train.objective import Objective
from adar_train.sharded_graph import ShardedGraph, sum_gradients
from adar_train.trainer import Epoch
from adar_train.untrained import random_model
from tests.helpers import random_graph

N, F, CLASSES = 41, 5, 3
CLOCK, MIDDLE = (0.0, 0.3, 0.7, 1.0), 1
CASES: dict[str, dict[str, Any]] = {
    "learned targets": {},
    "described targets, smoothing": {"targets": None, "smoothing": 2},
    "regression": {"targets": 2, "regression": True},
    "sparse features": {"sparse": True},
}
GRAPHS = [with_split(random_graph(nodes, 90, classes=CLASSES, seed=nodes)) for nodes in (30, 47)]


def some_graph(case: dict[str, Any]) -> Graph:
    random = np.random.default_rng(3)
    x = random.standard_normal((N, F)).astype(np.float32) * (random.random((N, F)) < 0.4)
    regression = case.get("regression", False)
    rows, columns = np.nonzero(x)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=N))])
    return Graph(
        features=SparseRows(starts, columns, x[rows, columns], (N, F)) if case.get("sparse") else x,
        edge_index=random.integers(0, N, (2, 5 * N)),
        labels=random.standard_normal((N, 2)) if regression else random.integers(0, CLASSES, N),
        target_features=random.standard_normal((CLASSES, F))
        if "targets" in case and not regression
        else None,
    )


def model_for(case: dict[str, Any]) -> AdaR:
    settings = {"targets": CLASSES, "dropout": 0.0} | {k: v for k, v in case.items() if k != "sparse"}
    return random_model(ModelConfig(F, hidden=8, proxies=3, **settings), std=0.5).double()


def in_double(graph: Any) -> Any:
    """Tensors of a graph in 64 bits."""
    fields = ("features", "share", "target_features", "labels")
    found = {name: getattr(graph, name) for name in fields}
    is_real = {k: v for k, v in found.items() if isinstance(v, Tensor) and v.is_floating_point()}
    return replace(graph, **{name: tensor.double() for name, tensor in is_real.items()})


def descend(
    model: AdaR, loss_of: Callable[[Objective], Tensor], finish: Callable[[AdaR], None]
) -> list[float]:
    """Three steps of an optimiser. Returns the losses."""
    objective = Objective(model, TrainConfig(step_weight=0.4, full_weight=0.3, middle_weight=0.2))
    optimiser, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for _ in range(3):
        optimiser.zero_grad()
        loss = loss_of(objective)
        loss.backward()
        finish(model)
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


def work(rank: int, folder: Path) -> None:
    """Train alone, then together, and compare losses, gradients and weights."""
    torch.set_num_threads(1)
    alone = trained()
    os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank)}
    distributed.init_process_group("gloo", f"file://{folder / 'group'}", rank=rank, world_size=2)
    try:
        for case in CASES.values():
            compare(case)
        compare_trained(alone, trained())
        for number, graphs in enumerate(([GRAPHS[0]], GRAPHS)):  # one graph is divided among the processes
            compare_resumed(graphs, folder / f"checkpoint-{number}")
        (folder / f"equal-{rank}").touch()
    finally:
        distributed.destroy_process_group()


def trained() -> Fitted:
    """A whole training, with validation, class weights, and the calibration of the exit."""
    graph = with_split(some_graph({}))
    settings: dict[str, Any] = {"class_weights": "balanced", "mixed_precision": False, "calibration": "full"}
    training = TrainConfig(epochs=4, train_steps=3, select_budgets=(3,), exit_budgets=(3, 5), **settings)
    return fit([graph], ModelConfig(F, CLASSES, hidden=8, proxies=3, dropout=0.0), training)


def compare_resumed(graphs: list[Graph], checkpoint: Path) -> None:
    """Each process drops its own nodes, also after the training was resumed."""
    config = TrainConfig(epochs=6, train_steps=2, select_budgets=(2,), exit_budgets=(2,), calibration="none")
    model = ModelConfig(graphs[0].width, CLASSES, hidden=8, proxies=3, dropout=0.5)

    def trainer() -> Trainer:
        return Trainer(graphs, build(graphs, model, config.seed), config)

    def stop(epoch: Epoch) -> None:
        if epoch.number == 3:
            raise KeyboardInterrupt

    whole = trainer().run()
    with suppress(KeyboardInterrupt):
        trainer().run(stop, checkpoint)
    distributed.barrier()  # the first process writes the checkpoint
    resumed = trainer()
    resumed.resume(checkpoint)
    assert resumed.run().history == whole.history


def compare_trained(alone: Fitted, together: Fitted) -> None:
    for one, other in zip(alone.history, together.history, strict=True):
        assert abs(one["loss"] - other["loss"]) < 1e-4, (one, other)
    varying = ("seconds", "calibration_seconds")
    found = [{k: v for k, v in each.metrics.items() if k not in varying} for each in (alone, together)]
    assert found[0]["exit"]["rule"] == found[1]["exit"]["rule"]
    assert {part: found[0][part] for part in PARTS} == {part: found[1][part] for part in PARTS}
    for a, b in zip(alone.model.parameters(), together.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def compare(case: dict[str, Any]) -> None:
    graph, chosen = some_graph(case), torch.arange(0, N, 2)
    alone, together = model_for(case), model_for(case)
    whole = in_double(GraphTensors.of(graph))
    expected = descend(alone, lambda objective: objective(whole, chosen, CLOCK, MIDDLE), lambda _: None)
    part_of = np.random.default_rng(1).integers(0, 2, N)
    part = in_double(ShardedGraph.part(graph, part_of, together.config))
    own = part.own(chosen)
    weight = part.weight(own)
    losses = descend(together, lambda objective: weight * objective(part, own, CLOCK, MIDDLE), sum_gradients)
    total = torch.tensor(losses, dtype=torch.float64)
    distributed.all_reduce(total)
    torch.testing.assert_close(total, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    assert abs(expected[0] - expected[2]) > 1e-3
    for (name, a), b in zip(alone.named_parameters(), together.parameters(), strict=True):
        message = f"{case}: {name}"
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-9, msg=message)
        if a.grad is not None:
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-9, atol=1e-9, msg=message)
