"""One training from start to folder: build, go on where it was left, train, write."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from adar_runtime.errors import RunFolderError, UsageError
from adar_runtime.graph import Graph
from adar_train import checkpoints, distributed
from adar_train.baselines import BASELINES
from adar_train.cell import ModelConfig
from adar_train.config import TrainConfig
from adar_train.fit import Epoch, Fitted, Trainer, build, check_trainable
from adar_train.logs import Log
from adar_train.model import Model
from adar_train.runs import TENSORBOARD, check_free, save_run


@dataclass(frozen=True, eq=False)
class Job:
    """What to train, on what, and where to put it."""

    names: list[str]
    graphs: Sequence[Graph]
    model: ModelConfig
    training: TrainConfig
    out: Path
    baseline: str | None = None

    def run(
        self,
        device: str = "auto",
        on_epoch: Callable[[Epoch], None] = lambda _: None,
        checkpoint_every: int = 50,
        resume: bool = False,
    ) -> dict[str, Any]:
        """Train and write the run; what is known of it is returned."""
        checkpoint = self.out / checkpoints.FILE_NAME
        if resume and not checkpoint.is_file():
            raise RunFolderError(f"{checkpoint} is not there: there is nothing to resume")
        if distributed.rank() == 0:  # the one that writes; several would find each other's probes
            check_free(self.out)
        check_trainable(self.graphs, self.training.split)
        trainer = self._trainer(device)
        if resume:
            trainer.resume(checkpoint)
        with Log(self.out / TENSORBOARD if distributed.rank() == 0 else None) as log:

            def tell(epoch: Epoch) -> None:
                log.epoch(epoch)
                on_epoch(epoch)

            try:
                fitted = trainer.run(tell, checkpoint, checkpoint_every)
            except KeyboardInterrupt as interrupt:
                if checkpoint.is_file():
                    interrupt.add_note(f"to go on, give the same command with --resume --out {self.out}")
                raise
        return self._save(fitted)

    def search(
        self,
        grid: Mapping[str, Sequence[Any]],
        device: str = "auto",
        on_epoch: Callable[[Epoch], None] = lambda _: None,
    ) -> dict[str, Any]:
        """Train once for each combination of settings, and write the one that is best on validation."""
        if distributed.rank() == 0:
            check_free(self.out)
        tried = []
        for values in product(*grid.values()):
            job = self._with(dict(zip(grid, values, strict=True)))
            tried.append((job, job._trainer(device).run(on_epoch)))
        job, fitted = max(tried, key=lambda one: one[1].metrics["val"])
        results = [one.metrics["val"] for _, one in tried]
        fitted.metrics["search"] = [
            dict(zip(grid, values, strict=True)) | {"val": val}
            for values, val in zip(product(*grid.values()), results, strict=True)
        ]
        return job._save(fitted)

    def _with(self, settings: Mapping[str, Any]) -> "Job":
        """The same job with some settings of the model or the training changed."""
        of_model = {name: value for name, value in settings.items() if hasattr(self.model, name)}
        of_training = {name: value for name, value in settings.items() if name not in of_model}
        return replace(
            self, model=replace(self.model, **of_model), training=replace(self.training, **of_training)
        )

    def _trainer(self, device: str) -> Trainer:
        return Trainer(self.graphs, self._build(), self.training, distributed.choose_device(device))

    def _save(self, fitted: Fitted) -> dict[str, Any]:
        if distributed.rank() == 0:
            save_run(self.out, fitted, self.graphs[0], self.names, self.training)
        return fitted.metrics

    def _build(self) -> Model:
        if self.baseline is None:
            return build(self.graphs, self.model, self.training.seed, self.training.split)
        if self.baseline not in BASELINES:
            raise UsageError(f"there is no baseline {self.baseline!r}: choose {', '.join(BASELINES)}")
        torch.manual_seed(self.training.seed)
        return BASELINES[self.baseline](self.model)  # type: ignore[call-arg]
