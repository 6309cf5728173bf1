"""One loop: full-graph training on one graph or several, the best weights by validation."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adar_runtime.errors import DivergedError, GraphError, RunFolderError, UsageError
from adar_runtime.evaluation.curves import Curve, calibrate
from adar_runtime.evaluation.metrics import metric_name, pooled_metrics
from adar_runtime.graph import GRAPH, PARTS, Graph
from adar_runtime.interrupts import deferred_signals
from adar_train import distributed
from adar_train.cell import ModelConfig, current_settings
from adar_train.checkpoints import load_checkpoint, read_progress, save_checkpoint
from adar_train.config import TrainConfig
from adar_train.data.episodes import EpisodeSource
from adar_train.data.fingerprint import fingerprint
from adar_train.evaluate import curves, final_metrics
from adar_train.initialisation import scale_labels, start
from adar_train.losses import full_loss, step_loss, task_loss
from adar_train.model import AdaR, Model
from adar_train.tensors import GraphTensors
from adar_train.time_grids import GRIDS


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

    def forward(self, graph: GraphTensors, chosen: Tensor, clock: Sequence[float], middle: int) -> Tensor:
        states = list(self.model.trajectory(graph, clock))
        loss = task_loss(self.model, states[-1], graph, chosen, smoothing=self.config.label_smoothing)
        if self.config.middle_weight:
            loss = loss + self.config.middle_weight * task_loss(self.model, states[middle], graph, chosen)
        if self.config.step_weight:
            loss = loss + self.config.step_weight * step_loss(self.model, states, graph, chosen)
        if self.config.full_weight:
            loss = loss + self.config.full_weight * full_loss(self.model, states, graph, chosen)
        return loss


class Trainer:
    """Everything that changes while training, so that it can be written down and taken up again."""

    def __init__(
        self, graphs: Sequence[Graph], model: Model, config: TrainConfig, device: torch.device | str = "cpu"
    ) -> None:
        check_trainable(graphs, config.split)
        self.graphs = graphs
        self.config = config
        self.model = model.to(device)
        self.device = torch.device(device)
        self.tensors = [GraphTensors.of(graph, device) for graph in graphs]
        train = [i for i, graph in enumerate(graphs) if graph.labelled("train", config.split) is not None]
        self.whole = [(self.tensors[i], self._labelled(i)) for i in train]
        if model.config.regression:
            scale_labels(
                model,
                [np.asarray(graphs[i].labels)[graphs[i].labelled("train", config.split)] for i in train],
            )
        self.sources = [EpisodeSource.of(graphs[i], config.split) for i in train if config.episodes]
        if len(train) < distributed.world_size():
            raise UsageError(f"{distributed.world_size()} processes for {len(train)} graphs: each needs one")
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
        if self.config.episodes and self.best_val is None:
            self.best_val = self._validate()  # the untrained start, which nothing worse may replace
        try:
            while len(self.history) < self.config.epochs:
                with deferred_signals():
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
            progress = {
                "settings": self._settings,
                "history": self.history,
                "best_val": self.best_val,
                "seconds": self.seconds,
            }
            save_checkpoint(path, self.model, self.best, self.optimizer, self.random, progress)

    def resume(self, path: Path) -> None:
        """Go on from there."""
        progress = read_progress(path)
        before = progress.get("settings")
        if before is None:
            raise RunFolderError(
                f"{path} is of another version of this program: train again without --resume"
            )
        before = current_settings(before)
        changed = [name for name, value in self._settings.items() if before.get(name) != value]
        if changed:
            what = ", another ".join(changed)
            raise RunFolderError(
                f"{path} is of a training with another {what}: resume with the same options and data"
            )
        self.best = load_checkpoint(path, self.model, self.optimizer, self.random)
        self.history, self.best_val = progress["history"], progress["best_val"]
        self.seconds = progress["seconds"]

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """All that has to be the same for one training to be the other's beginning, as JSON has it."""
        settings = {
            "model": type(self.model).__name__,
            **asdict(self.model.config),
            **asdict(self.config),
            "data": fingerprint(self.graphs),
        }
        return dict(json.loads(json.dumps(settings)))

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
        """One step of the optimiser, on this process's share of the batches; the mean loss of all."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.model.train()
        self.optimizer.zero_grad()
        clock = GRIDS[self.config.grid](self.config.train_steps, self.random)
        middle = int(self.random.integers(1, len(clock)))
        batches = self._batches()
        mine = batches[distributed.rank() :: distributed.world_size()]
        total = torch.zeros((), device=self.device)
        for index, (graph, chosen) in enumerate(mine):
            # Gradients are averaged over processes once an epoch, with the last batch's.
            waits = distributed.world_size() > 1 and index < len(mine) - 1
            with self.objective.no_sync() if waits else nullcontext(), self._autocast():
                loss = self.objective(graph, chosen, clock.tolist(), middle)
                loss = loss * distributed.world_size() / len(batches)
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        return distributed.mean(total)

    def _batches(self) -> list[tuple[GraphTensors, Tensor]]:
        """What an epoch trains on: every graph whole, or one small task for each process."""
        if not self.config.episodes:
            return self.whole
        shares = np.array([len(source.chosen) for source in self.sources], np.float64)
        drawn = self.random.choice(len(self.sources), distributed.world_size(), p=shares / shares.sum())
        graphs = [self.sources[index].draw(self.random) for index in drawn]
        return [
            (GraphTensors.of(graph, self.device), torch.arange(graph.nodes, device=self.device))
            for graph in graphs
        ]

    def _labelled(self, index: int) -> Tensor:
        mask = self.graphs[index].labelled("train", self.config.split)
        assert mask is not None
        return torch.from_numpy(mask).nonzero()[:, 0].to(self.device)

    def _autocast(self) -> Any:
        chosen = self.config.mixed_precision
        on = self.device.type == "cuda" if chosen is None else chosen
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on)

    def _curves(self, budget: int) -> list[Curve]:
        return curves(self.model, self.graphs, self.tensors, budget, self.config.split)

    def _validate(self) -> float:
        """The worst over budgets of the mean over graphs, at t = 1."""
        split = self.config.split
        scores = [
            final_metrics(self.model, self.graphs, self.tensors, budget, split, "val")
            for budget in self.config.select_budgets
        ]
        return min(float(np.mean(of_graphs)) for of_graphs in scores)

    def _metrics(self) -> dict[str, Any]:
        """What is known of the finished model: its exit, and its scores there and at every budget."""
        started = time.perf_counter()
        found = {budget: self._curves(budget) for budget in self.config.exit_budgets}
        chosen = calibrate(list(found.values()))
        by_budget = {budget: _at_exit(group, chosen.time) for budget, group in found.items()}
        targets = self.model.config.targets or self.graphs[0].targets
        return {
            "metric": metric_name(targets, regression=self.graphs[0].regression),
            **by_budget[max(by_budget)],
            "epochs": len(self.history),
            "seconds": round(self.seconds, 2),
            "calibration_seconds": round(time.perf_counter() - started, 2),
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
    """Build AdaR, start it by a look at the graphs, and train it."""
    check_trainable(graphs, config.split)
    model = build(graphs, model_config, config.seed, config.split)
    return Trainer(graphs, model, config, device).run(on_epoch)


def build(graphs: Sequence[Graph], config: ModelConfig, seed: int, split: int = 0) -> AdaR:
    """A new model, the same for the same seed, started by a look at the graphs to learn from."""
    torch.manual_seed(seed)
    model = AdaR(config)
    start(model, [graph for graph in graphs if graph.labelled("train", split) is not None])
    return model


def _at_exit(group: Sequence[Curve], time: float) -> dict[str, float]:
    """The metric of each part at the calibrated time, the mean over graphs."""
    at = [curve.metrics[curve.step_at(time)] for curve in group]
    return {
        part: float(np.mean([m[part] for m in at if part in m]))
        for part in PARTS
        if any(part in m for m in at)
    }


def check_trainable(graphs: Sequence[Graph], split: int) -> None:
    """Refuse graphs that hold nothing to learn, or nothing to choose a model by."""
    if any(graph.labels is None for graph in graphs):
        raise GraphError("the graph has no labels (y), so there is nothing to learn")
    for name in ("train", "val"):
        if all(getattr(graph, f"{name}_mask") is None for graph in graphs):
            raise GraphError(f"the graph has no {name}_mask: training needs train and val")
        known = [graph.labelled(name, split) is not None for graph in graphs]
        # Graphs that are labelled as wholes are divided among the parts; others have some of each.
        if not (any(known) if graphs[0].level == GRAPH else all(known)):
            raise GraphError(f"nothing in {name}_mask has a label: training needs some in train and val")
    _check_measurable(graphs, split)
    if not graphs[0].regression and _fewest_classes(graphs, split) < 2:
        raise GraphError("all labels to learn from are of one class, so there is nothing to learn")


def _fewest_classes(graphs: Sequence[Graph], split: int) -> int:
    """How many classes are seen in training, in the graph that shows the fewest."""
    seen = [
        set(graph.labels[mask].tolist())
        for graph in graphs
        if (mask := graph.labelled("train", split)) is not None and graph.labels is not None
    ]
    return len(set().union(*seen)) if graphs[0].level == GRAPH else min(len(classes) for classes in seen)


def _check_measurable(graphs: Sequence[Graph], split: int) -> None:
    """Two classes are told apart by ROC-AUC, which needs both of them among the validation labels."""
    groups = [graphs] if graphs[0].level == GRAPH else [[graph] for graph in graphs]
    for group in groups:
        targets = max(graph.targets for graph in group)
        zeros = [np.zeros((graph.outputs, targets), np.float32) for graph in group]
        if "val" not in pooled_metrics(group, zeros, split):
            raise GraphError("the labels in val_mask are all of one class: a model cannot be chosen by them")
