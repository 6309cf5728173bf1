"""One training from start to folder: build or resume, train, log to TensorBoard, write the run."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import wraps
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from shlex import quote
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch

from adar_runtime.bundle import run_files
from adar_runtime.bundle.manifest import LEAST_OUTPUTS
from adar_runtime.errors import DivergedError, UsageError
from adar_runtime.graph import Graph
from adar_train import checkpoints, distributed
from adar_train.baselines import BASELINES
from adar_train.cell import ModelConfig
from adar_train.config import TrainConfig
from adar_train.data.checks import check_trainable
from adar_train.fit import build
from adar_train.graph_batch import are_small
from adar_train.model import Model
from adar_train.run_folders import check_free, claimed
from adar_train.runs import finished_metrics, public_name, save_run
from adar_train.search import (
    ROUND,
    OnDrop,
    OnEpoch,
    Settings,
    challenge,
    final,
    final_round,
    halve,
    last_round,
    rival,
    settings_line,
    tried,
)
from adar_train.tensors import GraphTensors
from adar_train.trainer import Epoch, Fitted, Trainer

P = ParamSpec("P")
R = TypeVar("R")


def _claiming(work: "Callable[Concatenate[Job, P], R]") -> "Callable[Concatenate[Job, P], R]":
    """Keep the folder of a job to one training. Of several processes, only the one that writes claims it."""

    @wraps(work)
    def run(job: "Job", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with claimed(job.out) if distributed.rank() == 0 else nullcontext():
            return work(job, *args, **kwargs)

    return run


@dataclass(frozen=True, eq=False)
class Job:
    """A training as `adar-deploy train` runs it, written to the folder `out`.

    `names` are the names of the graphs as the user gave them; the run keeps them. `baseline` is a key of
    BASELINES, or None for AdaR.
    """

    names: list[str]
    graphs: Sequence[Graph]
    model: ModelConfig
    training: TrainConfig
    out: Path
    baseline: str | None = None

    @_claiming
    def run(
        self,
        device: str = "auto",
        on_epoch: Callable[[Epoch], None] = lambda _: None,
        checkpoint_every: int = 50,
        resume: bool = False,
        overwrite: bool = False,
        on_note: Callable[[str], None] = lambda _: None,
        choices: Sequence[Settings] = (),
        challenger: Settings | None = None,
        on_search: OnEpoch = lambda *_: None,
    ) -> dict[str, Any]:
        """Train, write the run and return its metrics.

        `resume` continues from the checkpoint. Without a checkpoint, training starts from the beginning, and
        a run that is finished with the same settings is kept: a supervisor can always pass `resume`.
        `overwrite` replaces a run. With several `choices` of settings, successive halving chooses one of them
        first (`search.py`), and the winner is compared with its `challenger` and with a finalist that scales
        features in another way. A candidate that diverges is dropped with a note. A resumed training keeps
        the settings that were chosen.
        """
        checkpoint = self.out / run_files.CHECKPOINT
        if resume and not checkpoint.is_file():
            done = self._finished(choices, challenger or {})
            if done is not None:
                on_note(f"{self.out} is finished: nothing to resume")
                return dict(done)
            on_note(f"no checkpoint in {self.out}: training starts from the beginning")
        if distributed.rank() == 0:  # only the process that writes: test files of several would collide
            check_free(self.out, resume=resume, overwrite=overwrite)
        resume = resume and checkpoint.is_file()
        check_trainable(self.graphs, self.training.split)

        def on_drop(settings: Settings, error: DivergedError) -> None:
            on_note(_dropped(settings, error))

        try:
            job, trainer = self._prepared(
                device, checkpoint if resume else None, choices, challenger or {}, on_search, on_drop
            )
        except KeyboardInterrupt as interrupt:
            if not resume:
                interrupt.add_note("there is no checkpoint yet: the same command starts from the beginning")
            raise
        log = TensorBoardLog(self.out / run_files.TENSORBOARD if distributed.rank() == 0 else None)

        def report(epoch: Epoch) -> None:
            log.write(epoch)
            on_epoch(epoch)

        try:
            with log:
                fitted = trainer.run(report, checkpoint, checkpoint_every)
            return job._save(fitted)  # may copy the log, so it is closed
        except KeyboardInterrupt as interrupt:
            if checkpoint.is_file():
                where = quote(str(self.out))
                interrupt.add_note(f"to continue, run the same command with --resume --out {where}")
            raise

    def _many(self) -> list[Graph]:
        """Graphs to keep for the export of a model of many small graphs: as many as a proof needs."""
        if self.baseline or not are_small(self.graphs) or len(self.graphs) < LEAST_OUTPUTS:
            return []
        return [self.graphs[int(i)] for i in np.linspace(0, len(self.graphs) - 1, LEAST_OUTPUTS)]

    def _possible(self, choices: Sequence[Settings], challenger: Settings) -> "list[Job]":
        """This job with all settings that a search of these choices can end with."""
        return [self._with(one) for one in (*choices, *(one | challenger for one in choices))] or [self]

    def _finished(self, choices: Sequence[Settings], challenger: Settings) -> Any:
        """The metrics of the finished run in `out`, if it has this data and this search can end with it."""
        common = {
            "data": self.names,
            "data_sha256": checkpoints.fingerprint(self.graphs),
            "kind": self.baseline or "adar",
        }
        found = (
            finished_metrics(self.out, **common, model=asdict(job.model), training=asdict(job.training))
            for job in self._possible(choices, challenger)
        )
        searched = len(choices) > 1
        return next((one for one in found if one is not None and bool(one.get("search")) == searched), None)

    def _prepared(
        self,
        device: str,
        checkpoint: Path | None,
        choices: Sequence[Settings],
        challenger: Settings,
        on_search: OnEpoch,
        on_drop: OnDrop,
    ) -> tuple["Job", Trainer]:
        """The job with its final settings, and its trainer: resumed, chosen by a search, or new."""
        if checkpoint is not None:
            saved = checkpoints.read_progress(checkpoint).get("settings") or {}
            job = max(self._possible(choices, challenger), key=lambda one: one._agreement(saved))
            trainer = job._trainer(device)
            trainer.resume(checkpoint, searched=len(choices) > 1)
            return job, trainer
        if len(choices) < 2:
            job = self._with(dict(*choices))
            return job, job._trainer(device)
        place = distributed.choose_device(device)
        tensors: list[GraphTensors] = []  # made by the first trainer, shared by all

        def make(settings: Settings) -> Trainer:
            job = self._with(settings)
            trainer = Trainer(self.graphs, job._build(), job.training, place, tensors)
            tensors[:] = trainer.tensors
            return trainer

        last, others = halve(choices, make, ROUND, on_search, on_drop)
        best, second = last[0], rival(last)
        others = [*(tried(*one) for one in last[1:] if one is not second), *others]
        if challenger:
            best, other = challenge(best, challenger, make, last_round(self.graphs[0]), on_search, on_drop)
            others = [other, *others]
        if second is not None:
            best, other = final((best, second), final_round(self.training.epochs), on_search, on_drop)
            others = [other, *others]
        settings, trainer = best
        trainer.search = [asdict(one) for one in (tried(settings, trainer), *others)]
        return self._with(settings), trainer

    @_claiming
    def search(
        self,
        grid: Mapping[str, Sequence[Any]],
        device: str = "auto",
        on_epoch: Callable[[Epoch], None] = lambda _: None,
        overwrite: bool = False,
        on_note: Callable[[str], None] = lambda _: None,
    ) -> dict[str, Any]:
        """Train once per combination of settings; write the run with the best validation metric.

        A combination that diverges is dropped with a note.
        """
        if distributed.rank() == 0:
            check_free(self.out, overwrite=overwrite)
        done, diverged = list[tuple[Job, Fitted]](), list[DivergedError]()
        results = list[dict[str, Any]]()
        for values in product(*grid.values()):
            settings = dict(zip(grid, values, strict=True))
            job = self._with(settings)
            try:
                fitted = job._trainer(device).run(on_epoch)
            except DivergedError as error:
                diverged.append(error)
                on_note(_dropped(settings, error))
                continue
            done.append((job, fitted))
            results.append(settings | {"val": fitted.metrics["val"]})
        if not done:
            raise diverged[-1]
        job, fitted = max(done, key=lambda one: one[1].metrics["val"])
        fitted.metrics["search"] = results
        return job._save(fitted)

    def _with(self, settings: Mapping[str, Any]) -> "Job":
        """The same job with other settings of the model or the training."""
        of_model = {name: value for name, value in settings.items() if hasattr(self.model, name)}
        of_training = {name: value for name, value in settings.items() if name not in of_model}
        return replace(
            self, model=replace(self.model, **of_model), training=replace(self.training, **of_training)
        )

    def _agreement(self, saved: Mapping[str, Any]) -> int:
        """The number of settings of this job that are those of a checkpoint."""
        own = asdict(self.model) | asdict(self.training)
        return sum(saved.get(name) == value for name, value in own.items())

    def _trainer(self, device: str) -> Trainer:
        return Trainer(self.graphs, self._build(), self.training, distributed.choose_device(device))

    def _save(self, fitted: Fitted) -> dict[str, Any]:
        if "graphs" in fitted.metrics:
            of_graphs = zip(self.names, fitted.metrics["graphs"], strict=True)
            fitted.metrics["graphs"] = [{"name": public_name(name)} | found for name, found in of_graphs]
        if distributed.rank() == 0:
            save_run(self.out, fitted, self.graphs[0], self.names, self.training, self._many())
        return fitted.metrics

    def _build(self) -> Model:
        if self.baseline is None:
            return build(self.graphs, self.model, self.training.seed, self.training.split)
        if self.baseline not in BASELINES:
            raise UsageError(f"unknown baseline {self.baseline!r}: choose one of {', '.join(BASELINES)}")
        torch.manual_seed(self.training.seed)
        return BASELINES[self.baseline](self.model)  # type: ignore[call-arg]


def _dropped(settings: Settings, error: DivergedError) -> str:
    """A note on a candidate of a search that diverged."""
    return f"the search dropped {settings_line(settings)}: {str(error).partition(':')[0]}"


class TensorBoardLog:
    """Loss and validation metric of every epoch; writes nothing without a folder or without TensorBoard."""

    def __init__(self, folder: Path | None) -> None:
        self._writer: Any = None
        if folder is not None and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            # Ctrl-C inside `add_scalar` can lose the wake-up of the writer's thread. The thread then sleeps
            # until the next flush, and `close` waits for it: flush every second.
            self._writer = SummaryWriter(folder, flush_secs=1)
            (folder / run_files.STARTED).touch()

    def __enter__(self) -> "TensorBoardLog":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, epoch: Epoch) -> None:
        """Add one epoch to the log."""
        if self._writer is None:
            return
        self._writer.add_scalar("loss", epoch.loss, epoch.number)
        if epoch.val is not None:
            self._writer.add_scalar("best val", epoch.val, epoch.number)
