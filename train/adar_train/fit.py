"""One loop: full-graph training for a small budget of steps, the best weights by validation."""

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from adar_runtime.errors import DivergedError, GraphError, UsageError
from adar_runtime.graph import Graph
from adar_runtime.metrics import SPLITS, metric_name, split_metrics
from adar_runtime.schedule import times

from adar_train.losses import losses
from adar_train.model import AdaR, ModelConfig
from adar_train.tensors import GraphTensors


@dataclass(frozen=True)
class TrainConfig:
    """How to train; the defaults are the paper's but for the number of epochs."""

    epochs: int = 200
    train_steps: int = 8  # S while training
    lr: float = 2e-3
    weight_decay: float = 1e-6
    seed: int = 0
    split: int = 0
    evaluate_every: int = 10  # epochs

    def __post_init__(self) -> None:
        for name in ("epochs", "train_steps", "evaluate_every"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"{name.replace('_', '-')} is {getattr(self, name)}: it has to be at least 1"
                )
        if not self.lr > 0:
            raise UsageError(f"lr is {self.lr}: it has to be positive")


@dataclass(frozen=True)
class Epoch:
    """How far training has come."""

    number: int  # from 1
    loss: float
    val: float | None  # best so far on the validation split, None before the first evaluation


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model and what is known of it."""

    model: AdaR
    metrics: dict[str, Any]


def fit(
    graph: Graph,
    model_config: ModelConfig,
    config: TrainConfig,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> Fitted:
    """Train on the graph's train mask; `on_epoch` is told of each epoch as it ends."""
    _check_trainable(graph, config.split)
    torch.manual_seed(config.seed)
    model = AdaR(model_config)
    tensors = GraphTensors.of(graph)
    assert tensors.labels is not None
    chosen = torch.from_numpy(graph.labelled("train", config.split)).nonzero()[:, 0]
    optimizer = torch.optim.Adam(model.parameters(), config.lr, weight_decay=config.weight_decay)
    best, best_val, started = deepcopy(model.state_dict()), None, time.perf_counter()
    for number in range(1, config.epochs + 1):
        model.train()
        optimizer.zero_grad()
        states = list(model.trajectory(tensors, times(config.train_steps)))
        loss = losses(states, tensors.labels, chosen).total
        if not loss.isfinite():
            raise DivergedError(f"the loss is no longer finite in epoch {number}: try a smaller --lr")
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if number % config.evaluate_every == 0 or number == config.epochs:
            val = evaluate(model, graph, tensors, config)["val"]
            if best_val is None or val > best_val:
                best, best_val = deepcopy(model.state_dict()), val
        on_epoch(Epoch(number, loss.item(), best_val))
    model.load_state_dict(best)
    return Fitted(
        model.eval(),
        {
            "metric": metric_name(graph.classes),
            **evaluate(model, graph, tensors, config),
            "epochs": config.epochs,
            "seconds": round(time.perf_counter() - started, 2),
            "seed": config.seed,
            "split": config.split,
        },
    )


@torch.no_grad()
def evaluate(model: AdaR, graph: Graph, tensors: GraphTensors, config: TrainConfig) -> dict[str, float]:
    """The metric at t = 1 on each part of the split."""
    model.eval()
    *_, last = model.trajectory(tensors, times(config.train_steps))
    return split_metrics(graph, model.scores(last).cpu().numpy(), config.split)


def _check_trainable(graph: Graph, split: int) -> None:
    if graph.labels is None:
        raise GraphError("the graph has no labels (y), so there is nothing to learn")
    for name in SPLITS:
        if graph.labelled(name, split) is None:
            raise GraphError(
                f"the graph has no labelled nodes in {name}_mask: training needs train, val and test"
            )
    if graph.classes < 2:
        raise GraphError("all labels are of one class, so there is nothing to learn")
