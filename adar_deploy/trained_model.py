"""`TrainedModel`: a training run as an object that predicts, is scored and is exported."""

import inspect
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_deploy.environment import require
from adar_runtime.bundle.predictor import BUDGETS, Predictor
from adar_runtime.formatting import exit_rule, predicted
from adar_runtime.graph.in_memory import as_graphs
from adar_runtime.loop.checks import check_budgets
from adar_runtime.loop.solvers import DEFAULT_SOLVER
from adar_runtime.summaries import IN_TABLE, Facts, training_facts

if TYPE_CHECKING:
    from adar_runtime import Bundle, Graph, Result, Solver, StopRule
    from adar_runtime.bundle.manifest import Manifest
    from adar_runtime.evaluation.evaluate import Subject

OWN_ARGUMENTS = ("run", "out", "on_progress")  # of adar_export.export_bundle, which `export` fills in


class TrainedModel(Predictor):
    """A trained model with its run folder. `adar_deploy.train` returns one.

    Predictions come from the exported step in ONNX Runtime, not from PyTorch, so there is one implementation
    of the loop, its stop rules and its solvers. They are those of the bundle that `export` writes, with the
    solver "euler": only an export measures how many calls of another solver are enough.

    Args:
        path: Folder of a training run, from `adar_deploy.train` or `adar-deploy train`.
        notes: What the training changed or drew.

    Raises:
        RunFolderError: The folder is not a training run.
        MissingExtraError: PyTorch and PyG are not installed.

    Examples:
        >>> model = TrainedModel("runs/minesweeper")  # doctest: +SKIP
        >>> model.predict("graph.npz").predictions  # doctest: +SKIP
    """

    def __init__(
        self, path: str | Path, notes: Sequence[str] = (), *, _temporary: Path | None = None
    ) -> None:
        require("train")
        from adar_train import load_run

        self.run = load_run(path)
        self.notes = list(notes)
        self._bundle: Path | None = None  # that `export` wrote last
        self._remove_run = None if _temporary is None else _delete_with(self, _temporary)

    @property
    def path(self) -> Path:
        """Folder of the run, for `adar-deploy export`, `report` and `validate`."""
        return self.run.path

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the training: "metric", "train", "val", "test", "intervals", "exit" and others."""
        return self.run.metrics

    def graph(self) -> "Graph":
        """The training graph with its masks; of several graphs, the first."""
        return self.run.graph()

    def export(self, out: str | Path = "bundle", *, quiet: bool = False, **options: Any) -> "Manifest":
        """Export the model as a bundle that runs without PyTorch, as `adar-deploy export` does.

        The bundle is compared with PyTorch, and is written only if both agree.

        Args:
            out: Folder for the bundle.
            quiet: True shows no progress.
            options: Arguments of `adar_export.export_bundle`: `opset`, `precision`, `overwrite` and others.

        Returns:
            The manifest. `manifest.parity` and `manifest.convergence` hold the measurements.

        Raises:
            UsageError: An option is not valid, or the folder contains a bundle of another run.
            ExportError: The model is a baseline, or the bundle and PyTorch disagree.
            MissingExtraError: The packages of the export are not installed.

        Examples:
            >>> model.export("bundle", opset=17)  # doctest: +SKIP
        """
        require("export")
        import adar_export
        from adar_deploy.bundle_output import export_with_bar
        from adar_runtime.errors import UsageError

        known = [n for n in inspect.signature(adar_export.export_bundle).parameters if n not in OWN_ARGUMENTS]
        unknown = next((name for name in options if name not in known), None)
        if unknown is not None:
            raise UsageError(f"export has no option {unknown!r}: choose from {', '.join(known)}")
        manifest = export_with_bar(self.run, Path(out), shown=not quiet, **options)
        self._bundle = Path(out)
        return manifest

    def report(
        self,
        path: str | Path | None = None,
        data: Any = None,
        *,
        budgets: Sequence[int] = BUDGETS,
        bundle: str | Path | None = None,
        quiet: bool = False,
    ) -> Path:
        """Write one HTML page about the model, as `adar-deploy report` does.

        Args:
            path: The page to write: one .html file. Default: report.html.
            data: The graph to measure on, as in `predict`; the training graph by default. Several graphs are
                measured together if each has one label.
            budgets: Numbers of steps.
            bundle: A bundle of this model, which adds its agreement with PyTorch, its solvers and its
                latency to the page. Default: the bundle that `export` wrote last.
            quiet: True shows no progress.

        Returns:
            The path of the page.

        Raises:
            AdarError: The data does not fit the model, the bundle is of another model, another training has
                replaced the run, or the page cannot be written.

        Examples:
            >>> model.report("report.html", budgets=[8, 50])  # doctest: +SKIP
        """
        from adar_deploy.model_folders import ModelFolders, find_folders
        from adar_deploy.report.writing import measured_together, page_to_write, write_report

        self._same_run(self.path)
        named = None if path is None else Path(path)
        page = page_to_write(named)
        exported = bundle or self._bundle
        budgets = check_budgets(budgets)
        folders = find_folders(Path(exported), self.path) if exported else ModelFolders(self.path, None)
        measured = None
        if data is not None:
            names, graphs, _ = as_graphs(data)
            by_name = {name: [graph] for name, graph in zip(names, graphs, strict=True)}
            measured = measured_together(by_name, title=f"{len(graphs):,} graphs")
        write_report(named, folders, measured, budgets, shown=not quiet)
        return page

    def save(self, path: str | Path) -> None:
        """Copy the run to a folder that stays when the model is deleted, and continue with the copy.

        The run's own files are never links; other links in its folder stay links.

        Args:
            path: The new folder, such as "runs/mine".

        Raises:
            UsageError: The folder exists and is not empty, is inside the run, or cannot be written.
            RunFolderError: Another training has replaced the run.
        """
        from adar_runtime.errors import UsageError
        from adar_runtime.files import changed_folder, writing
        from adar_train import load_run
        from adar_train.run_folders import check_free

        folder = Path(path)
        if folder.resolve().is_relative_to(self.path.resolve()):
            raise UsageError(f"{folder} is inside the run: choose another folder")
        check_free(folder)
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with changed_folder(folder) as new:
            shutil.copytree(self.path, new, symlinks=True, ignore=_special_files, dirs_exist_ok=True)
            self._same_run(new)
            check_free(folder)
        self.run = load_run(folder)
        if self._remove_run is not None:
            self._remove_run()
            self._remove_run = None

    def _same_run(self, folder: Path) -> None:
        """Refuse a folder with another run than this one: another training may have replaced it."""
        from adar_runtime.errors import RunFolderError
        from adar_train import load_run

        if load_run(folder).fingerprint() != self.run.fingerprint():
            raise RunFolderError(
                f"another training has replaced the run in {self.path}: open that one with "
                f"TrainedModel({str(self.path)!r}), or train into another folder"
            )

    def run_many(
        self,
        graphs: Iterable[Any],
        budget: int = 300,
        stop: "StopRule | str | None" = None,
        solver: "Solver | str" = DEFAULT_SOLVER,
    ) -> "Iterator[Result]":
        """Run many graphs, as `Bundle.run_many` does."""
        return self._exported.run_many(graphs, budget, stop, solver)

    def subject(self) -> "Subject":
        """The model in PyTorch, as `adar-deploy evaluate` uses a run."""
        from adar_deploy.model_folders import subject_of

        return subject_of(self.run)

    def facts(self) -> Facts:
        """What `repr` and a notebook show."""
        config, metrics = self.run.model.config, self.metrics
        facts = {
            "predicts": predicted(config.targets, config.level, regression=config.regression),
            "features": f"{config.features:,} features",
            **training_facts(metrics),
            "stop rule": f"stop rule {exit_rule(metrics.get('exit', {}))}",
            "run": f"run in {'a temporary folder' if self._remove_run else repr(str(self.path))}",
            f"{IN_TABLE}model": str(self.run.config["kind"]),
            f"{IN_TABLE}epochs": f"{metrics.get('epochs')} in {metrics.get('seconds')} s",
        }
        names = self._class_names
        return facts | ({f"{IN_TABLE}class names": ", ".join(names)} if names else {})

    @cached_property
    def _class_names(self) -> tuple[str, ...] | None:
        return self.run.class_names()

    @cached_property
    def _exported(self) -> "Bundle":
        """The model as a bundle without measurements, in a folder that is deleted with this object."""
        require("export")
        from adar_export.writer import open_unmeasured

        folder = Path(tempfile.mkdtemp(prefix="adar-bundle-"))
        _delete_with(self, folder)
        return open_unmeasured(self.run, folder)


def _special_files(folder: str, names: list[str]) -> list[str]:
    """Pipes, sockets and devices, which cannot be copied."""
    paths = (Path(folder, name) for name in names)
    return [path.name for path in paths if not (path.is_symlink() or path.is_dir() or path.is_file())]


def _delete_with(owner: object, folder: Path) -> Any:
    """Delete a folder when its owner is deleted or the program ends; calling the result deletes it now."""
    return weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
