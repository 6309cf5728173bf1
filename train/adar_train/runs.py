"""A training run on disk: weights, how they were made, how good they are, and the first graph."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from adar_runtime.errors import RunFolderError, reason, short
from adar_runtime.evaluation.plots import plot_learning
from adar_runtime.files import check_replaceable, check_writable, find_by_hash, write_file, writing
from adar_runtime.graph import Graph
from adar_runtime.graph.formats import read_graph, write_graph
from adar_train import checkpoints
from adar_train.baselines import BASELINES
from adar_train.cell import ModelConfig, current_settings
from adar_train.config import TrainConfig
from adar_train.fit import Fitted
from adar_train.model import AdaR, Model

WEIGHTS, CONFIG, METRICS, GRAPH = "model.safetensors", "config.json", "metrics.json", "graph.pt"
HISTORY, LEARNING_CURVE, TENSORBOARD = "history.json", "learning.png", "tensorboard"
ADAR = "adar"
FORMAT = 2  # of a run; in the first one, isotropic models placed nodes and targets otherwise
MODELS: dict[str, type[Model]] = {ADAR: AdaR, **BASELINES}
"""What can be trained, by the name that a run keeps."""

UNREADABLE = (OSError, ValueError, TypeError, ArithmeticError, MemoryError, RuntimeError, SafetensorError)
"""What reading a folder, JSON or weights that are not what they should be can end in."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run as it was read back."""

    path: Path
    model: Model
    config: dict[str, Any]
    metrics: dict[str, Any]

    def graph(self) -> Graph:
        """The graph that it was trained on, the first of several."""
        return read_graph(self.path / GRAPH)

    def class_names(self) -> tuple[str, ...] | None:
        """The names of the classes that it was trained on, where it learned them and its graph has names."""
        if self.model.config.targets is None or not (self.path / GRAPH).is_file():
            return None
        return self.graph().class_names

    def fingerprint(self) -> str:
        """The sha256 of its weights, by which a bundle and its run find each other."""
        return hashlib.sha256((self.path / WEIGHTS).read_bytes()).hexdigest()


def save_run(path: Path, fitted: Fitted, graph: Graph, data: list[str], training: TrainConfig) -> None:
    """Write the run into its folder; `config.json`, by which a run is known, comes last."""
    name = next(name for name, kind in MODELS.items() if type(fitted.model) is kind)
    weights = save(fitted.model.state_dict())
    config = {
        "format": FORMAT,
        "data": data,
        "kind": name,
        "model": asdict(fitted.model.config),
        "training": asdict(training),
        "weights": hashlib.sha256(weights).hexdigest(),
    }
    with writing(path):
        (path / CONFIG).unlink(missing_ok=True)  # without it the folder is no run; it comes back last
        write_file(path / WEIGHTS, weights)
        write_graph(path / GRAPH, graph)
        plot_learning(fitted.history, fitted.metrics["metric"], path / LEARNING_CURVE)
        write_file(path / HISTORY, json.dumps(fitted.history).encode())
        write_file(path / METRICS, json.dumps(fitted.metrics, indent=2).encode())
        write_file(path / CONFIG, json.dumps(config, indent=2).encode())
        _make_newest(path)
        (path / checkpoints.FILE_NAME).unlink(missing_ok=True)


def _make_newest(path: Path) -> None:
    """Let it be the last that was written, even where a clock went backwards since another was."""
    latest = max(_written(file) for file in path.parent.glob(f"*/{CONFIG}"))
    if (path / CONFIG).stat().st_mtime_ns < latest:
        os.utime(path / CONFIG, ns=(latest + 1, latest + 1))


def _written(file: Path) -> int:
    """When it was; long ago, where another training has just taken it away to write it anew."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def check_free(path: Path) -> None:
    """Refuse a folder that cannot be written to, or holds something else than a run, finished or not."""
    check_replaceable(path, CONFIG, checkpoints.FILE_NAME, TENSORBOARD)
    check_writable(path / CONFIG)


def load_run(path: Path) -> Run:
    """Read a run's model and figures; its graph is read when it is asked for."""
    try:
        config = _object(path / CONFIG, "data", "kind", "model", "training")
        metrics = _object(path / METRICS)
        if config["kind"] not in MODELS:
            raise ValueError(f"{CONFIG} speaks of a model {short(config['kind'])!r}")
        if config.get("format") != FORMAT and dict(config["model"]).get("isotropic"):
            raise ValueError("zero-shot models of its version started otherwise: train it again")
        content = (path / WEIGHTS).read_bytes()
        if config.get("weights") not in (None, hashlib.sha256(content).hexdigest()):
            raise ValueError(
                f"{WEIGHTS} was changed after it was trained: its sha256 is not that of {CONFIG}"
            )
        with torch.device("meta"):  # takes no memory, whatever sizes the configuration asks for
            model = MODELS[config["kind"]](ModelConfig(**current_settings(config["model"])))
        weights = load(content)
        if model.config.regression:  # runs of before have none: their scores are the products themselves
            shape = model.label_offset.shape
            none = {"label_offset": torch.zeros(1).expand(shape), "label_scale": torch.ones(1).expand(shape)}
            weights = none | weights
        model.load_state_dict(weights, assign=True)
    except FileNotFoundError as error:
        missing = Path(error.filename or path).name
        raise RunFolderError(
            f"{path} holds no training run (no {missing}): make one with adar-deploy train"
        ) from error
    except UNREADABLE as error:
        raise RunFolderError(f"{path} holds a run that cannot be read: {reason(error)}") from error
    return Run(path, model.eval().requires_grad_(False), config, metrics)


def _object(file: Path, *keys: str) -> dict[str, Any]:
    """The JSON object of a file, if it has these keys."""
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} holds no JSON object")
    for key in keys:
        if key not in content:
            raise ValueError(f"{file.name} has no {key!r}")
    return content


def find_run(runs: Path, fingerprint: str | None, path: Path | None = None) -> Run:
    """The run with these weights: the one in this folder, or whichever of `runs` has them."""
    if path is not None:
        run = load_run(path)
        if fingerprint not in (None, run.fingerprint()):
            raise RunFolderError(f"{path} holds other weights than the bundle was exported from")
        return run
    found = find_by_hash(runs.glob(f"*/{WEIGHTS}"), fingerprint)
    if found is not None:
        return load_run(found.parent)
    raise RunFolderError(
        f"no run in {runs} has the weights that the bundle was exported from: name it with --run"
    )


def newest_run(runs: Path) -> Path:
    """The run that was written last."""
    found = sorted(runs.glob(f"*/{CONFIG}"), key=_written)
    if not found:
        raise RunFolderError(
            f"there is no run in {runs}: make one with adar-deploy train, or name its folder"
        )
    return found[-1].parent


def free_name(runs: Path, name: str) -> Path:
    """runs/name, or runs/name-2, -3, … where that is taken: a run never replaces another unasked."""
    number = 1
    while (path := runs / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path
