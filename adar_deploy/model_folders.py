"""Folders that hold a model: a training run, or the bundle that was exported from it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_deploy.environment import is_installed, require
from adar_deploy.paths import BUNDLE, run_folders
from adar_runtime.bundle.run_files import (
    CONFIG,
    GRAPH,
    check_complete,
    check_unchanged,
    find_weights,
    has_weights,
    read_json,
    weights_sha256,
)

if TYPE_CHECKING:
    from adar_runtime.bundle.manifest import Manifest
    from adar_runtime.evaluation.curves import Moment
    from adar_runtime.evaluation.evaluate import Subject
    from adar_runtime.graph import FeatureEncoding, Graph
    from adar_train.runs import Run


@dataclass(frozen=True)
class ModelFolders:
    """A run, a bundle, or both from the same weights."""

    run: Path | None
    bundle: Path | None
    notes: tuple[str, ...] = ()  # about folders that were named and are not used

    @property
    def model(self) -> Path:
        """The folder to measure: the bundle if there is one, because the bundle is what gets deployed."""
        found = self.bundle or self.run
        assert found is not None
        return found

    def manifest(self) -> "Manifest | None":
        from adar_runtime.bundle.reading import read_manifest

        return read_manifest(self.bundle) if self.bundle else None

    def feature_encoding(self) -> "FeatureEncoding | None":
        """How tables became features; None for a model that was not trained on tables."""
        manifest = self.manifest()
        if manifest is not None:
            return manifest.feature_encoding
        require("train")
        from adar_train import load_run

        return load_run(self.model).feature_encoding()

    def read(self, name: str) -> Any:
        """A JSON file of the run; None without a run or without this file."""
        if self.run is None or not (self.run / name).is_file():
            return None
        with self._readable(name):
            return read_json(self.run / name, {} if name == CONFIG else self._config())

    def graph(self) -> "Graph | None":
        """The graph of the run; None without a run or without this file."""
        from adar_runtime import read_graph

        if self.run is None or not (self.run / GRAPH).is_file():
            return None
        graph = read_graph(self.run / GRAPH)
        with self._readable(GRAPH):
            check_unchanged(self.run / GRAPH, self._config())
        return graph

    def _config(self) -> dict[str, Any]:
        config = self.read(CONFIG)
        if not isinstance(config, dict):
            raise ValueError(f"{CONFIG} contains no JSON object")
        return config

    @contextmanager
    def _readable(self, name: str) -> Iterator[None]:
        from adar_runtime.errors import RunFolderError, reason

        try:
            yield
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{self.run} holds a run that cannot be read: {name}: {reason(error)}"
            ) from error


def find_folders(path: Path, run: Path | None, bundle: Path | None = None) -> ModelFolders:
    """The run or bundle in `path`, and the bundle or run with the same weights where there is one.

    `run` and `bundle` are the folders that the user named.
    """
    from adar_runtime.bundle.reading import is_bundle
    from adar_runtime.errors import RunFolderError

    if is_bundle(path):
        notes = _unused(bundle, path, f"The report is about {path}, and not about the bundle")
        return ModelFolders(_run_of_bundle(path, run), path, notes)
    if not (path / CONFIG).is_file():
        raise RunFolderError(f"{path} holds neither a training run nor a bundle: give the folder of one")
    _check_files(path)
    found = bundle or BUNDLE
    used = found if _same_weights(path, found) else None
    notes = (
        *_unused(run, path, f"The report is about {path}, and not about the run"),
        *_unused(bundle, used, f"The report is about {path} alone: its weights are not those of the bundle"),
    )
    return ModelFolders(path, used, notes)


def _unused(given: Path | None, used: Path | None, why: str) -> tuple[str, ...]:
    """A note if the folder that the user named is not used."""
    same = given is None or (used is not None and given.resolve() == used.resolve())
    return () if same else (f"{why} {given}.",)


def _run_of_bundle(bundle: Path, run: Path | None) -> Path | None:
    from adar_runtime.bundle.reading import read_manifest
    from adar_runtime.errors import RunFolderError

    weights = weights_of(read_manifest(bundle))
    if run is None:
        return find_weights(run_folders(bundle), weights)
    _check_files(run)
    if not has_weights(run, weights):
        raise RunFolderError(f"the bundle was not exported from {run}: the weights differ")
    return run


def _check_files(run: Path) -> None:
    """Refuse a run whose files are missing, or are not those that its training wrote."""
    from adar_runtime.errors import RunFolderError, reason

    try:
        config = read_json(run / CONFIG)
        if not isinstance(config, dict):
            raise ValueError(f"{CONFIG} contains no JSON object")
        check_complete(run, config)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"the run in {run} cannot be read: {reason(error)}") from error


def weights_of(manifest: "Manifest") -> str | None:
    """The hash of the weights that a bundle was exported from; None if the bundle does not record it."""
    weights = manifest.training.get("weights")
    return weights if isinstance(weights, str) else None


def check_not_replaced(bundle: Path, manifest: "Manifest") -> None:
    """Refuse a bundle that was replaced since its manifest was read: parts of a command would differ."""
    from adar_runtime.bundle.reading import read_manifest

    if read_manifest(bundle).checksum != manifest.checksum:
        raise replaced(bundle)


def replaced(folder: Path) -> Exception:
    """The error for a model that was replaced while a command measured it."""
    from adar_runtime.errors import AdarError

    return AdarError(f"{folder} was replaced while it was measured: run the command again")


def name_of_run(manifest: "Manifest") -> str:
    """How messages name the run that a bundle was exported from."""
    from adar_runtime.errors import short

    name, weights = manifest.training.get("run"), weights_of(manifest)
    known = f"the run {short(name)!r}" if isinstance(name, str) else "the run"
    return f"{known} (weights {short(weights)[:12]}…)" if weights else known


def _same_weights(run: Path, bundle: Path) -> bool:
    from adar_runtime.bundle.reading import read_manifest
    from adar_runtime.errors import AdarError

    try:
        return bool(read_manifest(bundle).training.get("weights") == weights_sha256(run))
    except (AdarError, OSError, ValueError):  # `bundle` is a default: the folder may hold anything
        return False


def find_run(bundle: Path, manifest: "Manifest", given: Path | None, notes: list[str]) -> Path | None:
    """The run that a bundle was exported from, for a comparison with PyTorch; None, with a note, if none."""
    if not is_installed("train"):
        notes.append("PyTorch is not installed: there is no comparison with PyTorch")
        return None
    from adar_runtime.errors import RunFolderError
    from adar_train import runs

    try:
        return runs.find_run(run_folders(bundle), weights_of(manifest), given, name_of_run(manifest)).path
    except RunFolderError as error:
        if given is not None:
            raise
        notes.append(f"no comparison with PyTorch: {error}")
        return None


def open_subject(path: Path, *, allow_unknown_model: bool = False) -> "Subject":
    """The model in this folder, ready to evaluate. A bundle needs no PyTorch."""
    from adar_runtime.bundle.reading import is_bundle

    if is_bundle(path):
        return _open_bundle(path, allow_unknown_model)
    require("train")
    from adar_train import load_run

    return subject_of(load_run(path))


def _open_bundle(path: Path, allow_unknown_model: bool) -> "Subject":
    from adar_runtime import load

    return load(path, allow_unknown_model=allow_unknown_model).subject()


def subject_of(run: "Run") -> "Subject":
    """The model of a run that was read, ready to evaluate in PyTorch."""
    from adar_runtime.evaluation.evaluate import Subject
    from adar_runtime.loop.stopping import make_rule

    config = run.model.config
    return Subject(
        run=partial(_finite_moments, run),
        make_rule=lambda: make_rule(run.metrics.get("exit", {})),
        features=config.features,
        level=config.level,
        regression=config.regression,
        targets=config.targets,
        class_names=run.class_names(),
        any_budget=run.model.any_budget,
        training=run.training(),
        feature_encoding=run.feature_encoding(),
    )


def _finite_moments(run: "Run", graph: "Graph", budget: int) -> "Iterator[Moment]":
    """Run the model of a run in PyTorch; an error if its scores are not finite, as for a bundle."""
    import numpy as np

    from adar_runtime.errors import DivergedError
    from adar_train.evaluate import moments
    from adar_train.tensors import GraphTensors

    for moment in moments(run.model, GraphTensors.of(graph), budget):
        if not np.isfinite(moment.scores).all():
            raise DivergedError(
                f"the scores of {run.path} at t = {moment.time:.4g} are not finite: check for features far "
                "larger than those of the training data, or train with a smaller --lr"
            )
        yield moment
