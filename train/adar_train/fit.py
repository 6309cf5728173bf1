"""One loop: full-graph training on one graph or several, the best weights by validation."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adar_runtime.errors import DivergedError, GraphError, UsageError
from adar_runtime.graph import Graph
from adar_runtime.metrics import SPLITS, metric_name
from adar_train import distributed
from adar_train.checkpoints import load_checkpoint, save_checkpoint
from adar_train.config import TrainConfig
from adar_train.evaluate import Curve, calibrate, curves
from adar_train.grids import GRIDS
from adar_train.losses import full_loss, step_loss, task_loss
from adar_train.model import AdaR, Model, ModelConfig
from adar_train.start import start
from adar_train.tensors import GraphTensors


@dataclass(frozen=True)
class Epoch:
    """How far training has come."""

    number: int  # from 1
    loss: float
    val: float | None  # best so far on the validation split, None before the first evaluation


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model and what is known of it."""

    model: Model
    metrics: dict[str, Any]
    history: list[dict[str, Any]]  # loss of every epoch, validation metric where it was measured


class Objective(nn.Module):
    """Eq. loss of one graph, as a module, so that several processes can share its gradient."""

    def __init__(self, model: Model, config: TrainConfig) -> None:
        super().__init__()
        self.model = model
        self.config = config

    def forward(self, graph: GraphTensors, chosen: Tensor, clock: Sequence[float]) -> Tensor:
        states = list(self.model.trajectory(graph, clock))
        loss = task_loss(states[-1], graph, chosen)
        if self.config.step_weight:
            loss = loss + self.config.step_weight * step_loss(states, graph, chosen)
        if self.config.full_weight:
            loss = loss + self.config.full_weight * full_loss(states, graph, chosen)
        return loss


class Trainer:
    """Everything that changes while training, so that it can be written down and taken up again."""

    def __init__(
        self, graphs: Sequence[Graph], model: Model, config: TrainConfig, device: torch.device | str = "cpu"
    ) -> None:
        for graph in graphs:
            _check_trainable(graph, config.split)
        self.graphs = graphs
        self.trained_on = [
            i for i, graph in enumerate(graphs) if graph.labelled("train", config.split) is not None
        ]
        if len(self.trained_on) < distributed.world_size():
            raise UsageError(
                f"{distributed.world_size()} processes for {len(self.trained_on)} graphs: each needs one"
            )
        self.config = config
        self.model = model.to(device)
        self.device = torch.device(device)
        self.tensors = [GraphTensors.of(graph, device) for graph in graphs]
        self.optimizer = torch.optim.Adam(
            [weight for weight in model.parameters() if weight.requires_grad],
            config.lr,
            betas=(0.9, config.beta2),
            weight_decay=config.weight_decay,
        )
        model.gradient_checkpoints = config.gradient_checkpoints
        self.random = np.random.default_rng(config.seed)
        self.objective: Any = distributed.shared(Objective(model, config))
        self.best: dict[str, Tensor] = deepcopy(model.state_dict())
        self.best_val: float | None = None
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0

    def run(
        self,
        on_epoch: Callable[[Epoch], None] = lambda _: None,
        checkpoint: Path | None = None,
        checkpoint_every: int = 50,
    ) -> Fitted:
        """Train to the last epoch; with a `checkpoint`, write it now and then, and when interrupted."""
        try:
            while len(self.history) < self.config.epochs:
                self._epoch()
                on_epoch(Epoch(len(self.history), self.history[-1]["loss"], self.best_val))
                if checkpoint and len(self.history) % checkpoint_every == 0:
                    self.save(checkpoint)
        except KeyboardInterrupt:
            if checkpoint:
                self.save(checkpoint)
            raise
        self.model.load_state_dict(self.best)
        return Fitted(self.model.eval(), self._metrics(), self.history)

    def save(self, path: Path) -> None:
        """Write all that is needed to go on from the last whole epoch."""
        if distributed.rank() == 0:
            progress = {"history": self.history, "best_val": self.best_val, "seconds": self.seconds}
            save_checkpoint(path, self.model, self.best, self.optimizer, self.random, progress)

    def resume(self, path: Path) -> None:
        """Go on from there."""
        self.best, progress = load_checkpoint(path, self.model, self.optimizer, self.random)
        self.history, self.best_val = progress["history"], progress["best_val"]
        self.seconds = progress["seconds"]

    def _epoch(self) -> None:
        started, number = time.perf_counter(), len(self.history)
        loss = self._update(self.config.lr * self.config.lr_factor(number))
        if not np.isfinite(loss):
            raise DivergedError(f"the loss is no longer finite in epoch {number + 1}: try a smaller --lr")
        row: dict[str, Any] = {"epoch": number + 1, "loss": loss}
        if (number + 1) % self.config.evaluate_every == 0 or number + 1 == self.config.epochs:
            row["val"] = self._validate()
            if self.best_val is None or row["val"] > self.best_val:
                self.best, self.best_val = deepcopy(self.model.state_dict()), row["val"]
        self.history.append(row)
        self.seconds += time.perf_counter() - started

    def _update(self, lr: float) -> float:
        """One step of the optimiser, on this process's share of the graphs; the mean loss of all."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.model.train()
        self.optimizer.zero_grad()
        clock = GRIDS[self.config.grid](self.config.train_steps, self.random)
        mine = self.trained_on[distributed.rank() :: distributed.world_size()]
        total = torch.zeros((), device=self.device)
        for index in mine:
            # Gradients are averaged over processes once an epoch, with the last graph's.
            waits = distributed.world_size() > 1 and index != mine[-1]
            with self.objective.no_sync() if waits else nullcontext(), self._autocast():
                loss = self.objective(self.tensors[index], self._chosen(index), clock.tolist())
                loss = loss * distributed.world_size() / len(self.trained_on)
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        return distributed.mean(total)

    def _chosen(self, index: int) -> Tensor:
        mask = self.graphs[index].labelled("train", self.config.split)
        assert mask is not None
        return torch.from_numpy(mask).nonzero()[:, 0].to(self.device)

    def _autocast(self) -> Any:
        on = self.config.mixed_precision and self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on)

    def _curves(self, budget: int) -> list[Curve]:
        return curves(self.model, self.graphs, self.tensors, budget, self.config.split)

    def _validate(self) -> float:
        """The worst over budgets of the mean over graphs, at t = 1."""
        budgets = self.config.select_budgets
        return min(float(np.mean([c.metrics[-1]["val"] for c in self._curves(budget)])) for budget in budgets)

    def _metrics(self) -> dict[str, Any]:
        """What is known of the finished model: its exit, and its scores there and at every budget."""
        found = {budget: self._curves(budget) for budget in self.config.exit_budgets}
        chosen = calibrate([curve for group in found.values() for curve in group])
        by_budget = {budget: _at_exit(group, chosen.time) for budget, group in found.items()}
        graph = self.graphs[0]
        return {
            "metric": metric_name(graph.targets, regression=graph.regression),
            **by_budget[max(by_budget)],
            "epochs": len(self.history),
            "seconds": round(self.seconds, 2),
            "seed": self.config.seed,
            "split": self.config.split,
            "exit": chosen.rule,
            "exit_time": chosen.time,
            "exit_regret": chosen.regret,
            "budgets": {str(budget): scores for budget, scores in by_budget.items()},
        }


def fit(
    graphs: Sequence[Graph],
    model_config: ModelConfig,
    config: TrainConfig,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
    device: torch.device | str = "cpu",
) -> Fitted:
    """Build AdaR, start it by the first graph, and train it."""
    return Trainer(graphs, build(graphs, model_config, config.seed), config, device).run(on_epoch)


def build(graphs: Sequence[Graph], config: ModelConfig, seed: int) -> AdaR:
    """A new model, the same for the same seed."""
    torch.manual_seed(seed)
    model = AdaR(config)
    start(model, graphs[0], GraphTensors.of(graphs[0]))
    return model


def _at_exit(group: Sequence[Curve], time: float) -> dict[str, float]:
    """The metric of each part at the calibrated time, the mean over graphs."""
    at = [curve.metrics[curve.step_at(time)] for curve in group]
    return {
        part: float(np.mean([m[part] for m in at if part in m]))
        for part in SPLITS
        if any(part in m for m in at)
    }


def _check_trainable(graph: Graph, split: int) -> None:
    if graph.labels is None:
        raise GraphError("the graph has no labels (y), so there is nothing to learn")
    if graph.level != "graph":
        for name in ("train", "val"):
            if getattr(graph, f"{name}_mask") is None:
                raise GraphError(f"the graph has no {name}_mask: training needs train and val")
            if graph.labelled(name, split) is None:
                raise GraphError(f"no node of {name}_mask has a label: training needs some in train and val")
    if graph.targets < 2 and not graph.regression:
        raise GraphError("all labels are of one class, so there is nothing to learn")
