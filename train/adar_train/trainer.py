"""The training loop: one optimiser step per epoch, the best weights by validation, checkpoints."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adar_runtime.errors import DivergedError
from adar_runtime.evaluation.training_data import describe
from adar_runtime.graph import Graph
from adar_runtime.interrupts import deferred_signals
from adar_train import checkpoints, distributed
from adar_train.class_weights import weighted_batches
from adar_train.config import TrainConfig
from adar_train.data.checks import check_trainable
from adar_train.evaluate import worst_metric
from adar_train.exit_calibration import calibrated_metrics
from adar_train.initialisation import scale_labels
from adar_train.model import Model
from adar_train.objective import Episodes, Objective, WholeGraphs
from adar_train.precision import prefers_bfloat16
from adar_train.sharded_graph import ShardedGraph, sum_gradients, training_tensors
from adar_train.tensors import GraphTensors
from adar_train.time_grids import GRIDS
from adar_train.weight_average import WeightAverage


@dataclass(frozen=True)
class Epoch:
    """The state of a training after an epoch, as `on_epoch` callbacks receive it.

    Attributes:
        number: Number of the epoch, from 1.
        loss: Training loss of this epoch, the mean over graphs.
        val: Best validation metric so far; None before the first validation.

    Example:
        >>> Epoch(number=1, loss=0.7, val=None).loss
        0.7
    """

    number: int
    loss: float
    val: float | None


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model, its metrics and its history. `save_run` writes it to a folder.

    Attributes:
        model: The model with the best weights by validation, in evaluation mode.
        metrics: The name of the metric, its value and 95 % interval per part of the split, the calibrated
            exit rule and its reason, the values at every budget of `exit_budgets`, seconds, seed and split.
        history: One row per epoch: "epoch", "loss" and, if the epoch was validated, "val".
        trained_on: Fingerprints of the training graphs and their split, so that the runtime recognises them.
        data_sha256: Hash of everything in the training graphs, labels and masks too. A finished training is
            not continued with other data.

    Example:
        >>> fitted = fit([graph], model_config, TrainConfig())  # doctest: +SKIP
        >>> fitted.metrics["val"], fitted.history[-1]["loss"]  # doctest: +SKIP
        (0.95, 0.21)
    """

    model: Model
    metrics: dict[str, Any]
    history: list[dict[str, Any]]
    trained_on: dict[str, Any] = field(default_factory=dict)
    data_sha256: str = ""


class Trainer:
    """Trains any model on graphs, with checkpoints from which a training can be resumed.

    `fit` is the short form for AdaR. Use a Trainer for a baseline, a model of your own, or checkpoints.

    Args:
        graphs: Graphs with labels, a train_mask and a val_mask.
        model: The model to train. It is moved to the device and changed in place.
        config: Settings of the training.
        device: PyTorch device to train on.
        tensors: The graphs as tensors on the device, if they exist already: several trainers can share them.

    Raises:
        GraphError: If a graph has no labels to learn from, or none to select a model by.
        UsageError: If there are more processes than graphs, and one graph cannot be divided.

    Example:
        >>> trainer = Trainer([graph], model, TrainConfig(epochs=500))  # doctest: +SKIP
        >>> fitted = trainer.run(checkpoint=Path("checkpoint.safetensors"))  # doctest: +SKIP
    """

    def __init__(
        self,
        graphs: Sequence[Graph],
        model: Model,
        config: TrainConfig,
        device: torch.device | str = "cpu",
        tensors: Sequence[GraphTensors] | None = None,
    ) -> None:
        check_trainable(graphs, config.split)
        self.graphs = graphs
        self.config = config
        self.model = model.to(device)
        self.device = torch.device(device)
        self.tensors = tensors or training_tensors(model, graphs, config.split, device)
        self.sharded = isinstance(self.tensors[0], ShardedGraph)
        if model.config.regression:
            scale_labels(model, self._training_labels())
        batches: Episodes | WholeGraphs = (
            Episodes(graphs, config.split, self.device)
            if config.episodes
            else WholeGraphs(graphs, self.tensors, config.split)
        )
        self.batches = weighted_batches(batches, config, model)
        self.optimizer = torch.optim.Adam(
            [weight for weight in model.parameters() if weight.requires_grad],
            config.lr,
            betas=(0.9, config.beta2),
            weight_decay=config.weight_decay,
        )
        model.gradient_checkpoints = config.gradient_checkpoints
        self.random = np.random.default_rng(config.seed)
        objective = Objective(model, config)
        self.objective: Any = objective if self.sharded else distributed.share_gradients(objective)
        self.average = WeightAverage(model, config.ema_decay) if config.ema_decay else None
        self.search: list[dict[str, Any]] = []  # the candidates of a search, the chosen one first
        self._torch_random = torch.get_rng_state()  # the state for `advance`
        self.best: dict[str, Tensor] = deepcopy(model.state_dict())
        self.best_val: float | None = None
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0

    def run(
        self,
        on_epoch: Callable[[Epoch], None] = lambda _: None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 50,
    ) -> Fitted:
        """Train up to the last epoch and evaluate the best weights.

        Args:
            on_epoch: Called after every epoch.
            checkpoint: File for checkpoints, also written on Ctrl-C and after the last epoch; None writes no
                checkpoints.
            checkpoint_every: Number of epochs between two checkpoints.

        Returns:
            The model with the best weights by validation, its metrics and its history.

        Raises:
            DivergedError: If the loss is no longer finite.
            KeyboardInterrupt: On Ctrl-C, after the current epoch and the checkpoint.
        """
        if self.config.episodes and self.best_val is None:
            self.best_val = self._validate()  # keeps the initial weights if training only makes them worse
        if self.search:
            torch.set_rng_state(self._torch_random)
        try:
            while not self.finished:
                self._next(on_epoch)
                if checkpoint and len(self.history) % checkpoint_every == 0:
                    self.save(checkpoint)
        except KeyboardInterrupt:
            if checkpoint:
                self.save(checkpoint)
            raise
        if checkpoint and len(self.history) % checkpoint_every:
            self.save(checkpoint)  # the evaluation takes long, and may be interrupted or run out of memory
        self.model.load_state_dict(self.best)
        trained_on = describe(self.graphs, self.config.split)
        return Fitted(self.model.eval(), self._metrics(), self.history, trained_on, self._settings["data"])

    def advance(self, epochs: int, on_epoch: Callable[[Epoch], None] = lambda _: None) -> None:
        """Train for some epochs, or up to the end. Trainers can take turns: each has its random state.

        Args:
            epochs: Number of epochs.
            on_epoch: Called after every epoch.

        Raises:
            DivergedError: If the loss is no longer finite.
        """
        torch.set_rng_state(self._torch_random)
        until = len(self.history) + epochs
        while len(self.history) < until and not self.finished:
            self._next(on_epoch)
        self._torch_random = torch.get_rng_state()

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or the last `patience` epochs gave no better validation."""
        done, patience = len(self.history), self.config.patience
        if done >= self.config.epochs:
            return True
        return bool(patience) and self.best_epoch is not None and done - self.best_epoch >= patience

    @property
    def best_epoch(self) -> int | None:
        """The first epoch with the best validation; None before the first validation."""
        found = [row for row in self.history if "val" in row]
        return max(found, key=lambda row: (row["val"], -row["epoch"]))["epoch"] if found else None

    def save(self, path: str | Path) -> None:
        """Write a checkpoint after the last complete epoch. Only the first process writes.

        Args:
            path: The checkpoint file; an existing one is replaced.
        """
        if distributed.rank() == 0:
            progress = {
                "settings": self._settings,
                "history": self.history,
                "best_val": self.best_val,
                "seconds": self.seconds,
                "search": self.search,
            }
            average = self.average.values if self.average else None
            checkpoints.save_checkpoint(
                Path(path), self.model, self.best, self.optimizer, self.random, progress, average
            )

    def resume(self, path: str | Path, *, searched: bool | None = None) -> None:
        """Continue from a checkpoint: `run` then gives the losses of an uninterrupted training.

        Args:
            path: A checkpoint that a Trainer with the same model, settings and data wrote.
            searched: Whether its settings must have been chosen by a search, or must not; None allows both.

        Raises:
            RunFolderError: If the file is not such a checkpoint; the message says what differs.
        """
        path = Path(path)
        progress = checkpoints.read_progress(path)
        saved, own = progress.get("settings"), self._settings
        if saved is not None and searched is not None:
            saved = saved | {"search": bool(progress.get("search"))}
            own = {"search": searched} | own
        checkpoints.check_settings(path, saved, own)
        self.best = checkpoints.load_checkpoint(path, self.model, self.optimizer, self.random, self.average)
        self.search, self._torch_random = progress.get("search", []), torch.get_rng_state()
        self.history, self.best_val = progress["history"], progress["best_val"]
        self.seconds = progress["seconds"]

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """Everything that must be equal to resume a training, with the types that JSON gives back."""
        settings = {
            "model": type(self.model).__name__,
            **asdict(self.model.config),
            **asdict(self.config),
            "data": checkpoints.fingerprint(self.graphs),
        }
        return dict(json.loads(json.dumps(settings)))

    def _training_labels(self) -> list[Any]:
        return [
            np.asarray(graph.labels)[mask]
            for graph in self.graphs
            if (mask := graph.labelled("train", self.config.split)) is not None
        ]

    def _next(self, on_epoch: Callable[[Epoch], None]) -> None:
        with deferred_signals():
            self._epoch()
        on_epoch(Epoch(len(self.history), self.history[-1]["loss"], self.best_val))

    def _epoch(self) -> None:
        started, number = time.perf_counter(), len(self.history)
        if distributed.world_size() > 1 or self.device.type != "cpu":
            self._seed(number)
        loss = self._update(self.config.lr_factor(number))
        if not np.isfinite(loss):
            raise DivergedError(f"the loss is no longer finite in epoch {number + 1}: try a smaller --lr")
        row: dict[str, Any] = {"epoch": number + 1, "loss": loss}
        if (number + 1) % self.config.evaluate_every == 0 or number + 1 == self.config.epochs:
            with self.average.applied() if self.average else nullcontext():
                row["val"] = self._validate()
                if self.best_val is None or row["val"] > self.best_val:
                    self.best, self.best_val = deepcopy(self.model.state_dict()), row["val"]
        self.history.append(row)
        self.seconds += time.perf_counter() - started

    def _seed(self, number: int) -> None:
        """Seed one epoch. Each process gets a different seed.

        A checkpoint has the random state of the CPU of the first process. The other processes, and GPUs,
        would continue with other numbers.
        """
        entropy = np.random.SeedSequence((self.config.seed, number, distributed.rank()))
        torch.manual_seed(int(entropy.generate_state(1, np.uint64)[0]))

    def _update(self, factor: float) -> float:
        """One optimiser step on this process's share of the batches; returns the mean loss of all batches.

        `factor` is that of the learning rate in this epoch.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * factor
        part = factor if self.config.fading_losses else 1.0
        self.model.train()
        self.optimizer.zero_grad()
        clock = GRIDS[self.config.grid](self.config.train_steps, self.random)
        middle = int(self.random.integers(1, len(clock)))
        processes = 1 if self.sharded else distributed.world_size()
        batches = self.batches.draw(processes, self.random)
        mine = batches[distributed.rank() % processes :: processes]
        total = torch.zeros((), device=self.device)
        for index, (graph, chosen) in enumerate(mine):
            # Processes average their gradients once per epoch, in the backward pass of the last batch.
            waits = processes > 1 and index < len(mine) - 1
            with self.objective.no_sync() if waits else nullcontext(), self._autocast():
                loss = self.objective(graph, chosen, clock.tolist(), middle, part)
                loss = loss * graph.weight(chosen) * processes / len(batches)
                loss.backward()
            total += loss.detach()
        if self.sharded:
            sum_gradients(self.model)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        if self.average:
            self.average.update(len(self.history))
        return distributed.mean(total) * (distributed.world_size() if self.sharded else 1)

    def _autocast(self) -> Any:
        chosen = self.config.mixed_precision
        on = prefers_bfloat16(self.graphs, self.device) if chosen is None else chosen
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on)

    def _validate(self) -> float:
        config = self.config
        return worst_metric(self.model, self.graphs, self.tensors, config.select_budgets, config.split, "val")

    def _metrics(self) -> dict[str, Any]:
        """The metrics of the trained model: exit rule, metric at the exit for every budget, and seconds."""
        started = time.perf_counter()
        found = calibrated_metrics(self.model, self.graphs, self.tensors, self.config, len(self.history))
        return found | {
            **self._search_metrics(),
            "epochs": len(self.history),
            "seconds": round(self.seconds, 2),
            "calibration_seconds": round(time.perf_counter() - started, 2),
            "seed": self.config.seed,
            "split": self.config.split,
        }

    def _search_metrics(self) -> dict[str, Any]:
        """The candidates of a search, and the epochs and seconds of those that were not chosen."""
        if not self.search:
            return {}
        others = self.search[1:]
        return {
            "search": self.search,
            "search_epochs": sum(one["epochs"] for one in others),
            "search_seconds": round(sum(one["seconds"] for one in others), 2),
        }
