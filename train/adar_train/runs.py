"""Training runs on disk: a folder with weights, settings, metrics, history and the first graph."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from adar_runtime.bundle import run_files
from adar_runtime.bundle.run_files import find_weights
from adar_runtime.errors import RunFolderError, reason, short
from adar_runtime.evaluation.plots import plot_learning
from adar_runtime.evaluation.training_data import KEY
from adar_runtime.files import write_file, writing
from adar_runtime.graph import LEVELS, FeatureEncoding, Graph
from adar_runtime.graph.formats import FORMATS, TABLES, read_graph, read_graphs, write_graph
from adar_runtime.graph.formats.many_graphs import encode_graphs
from adar_runtime.loop.registry import is_count, is_number
from adar_train.alignments import ALIGNMENTS
from adar_train.baselines import BASELINES
from adar_train.cell import ModelConfig, current_settings
from adar_train.config import TrainConfig
from adar_train.model import AdaR, Model
from adar_train.run_folders import make_newest, refuse_folders, replaced
from adar_train.trainer import Fitted

FORMAT = 2  # version of the run folder; isotropic models of format 1 had another input transformation
ADAR = "adar"  # "kind" in config.json; the other kinds are the names of baselines

HEADER_BYTES = 4096  # of a weights file: the description of one tensor, and the file's own
UNREADABLE = (OSError, ValueError, TypeError, ArithmeticError, MemoryError, RuntimeError, SafetensorError)
"""The exceptions of reading a damaged folder, JSON file or weights file."""


@dataclass(frozen=True, eq=False)
class Run:
    """A training run that `load_run` read from its folder.

    Attributes:
        path: The folder of the run.
        model: The trained model, in evaluation mode and without gradients.
        config: The contents of config.json: names of the data, kind of model, settings.
        metrics: The contents of metrics.json.

    Example:
        >>> run = load_run(Path("runs/minesweeper"))  # doctest: +SKIP
        >>> run.metrics["test"]  # doctest: +SKIP
        0.95
    """

    path: Path
    model: Model
    config: dict[str, Any]
    metrics: dict[str, Any]

    def graph(self) -> Graph:
        """Read the graph that the model was trained on; of several graphs, the first.

        Raises:
            GraphError: If the file cannot be read.
            RunFolderError: If the file is not the one that the training wrote.
        """
        graph = read_graph(self.path / run_files.GRAPH)
        self._check_unchanged(run_files.GRAPH)
        return graph

    def many_graphs(self) -> list[Graph]:
        """Read the small graphs that the run has kept; none if the model was trained on few graphs."""
        path = self.path / run_files.GRAPHS
        graphs = read_graphs(path) if path.is_file() else []
        if graphs:
            self._check_unchanged(run_files.GRAPHS)
        return graphs

    def _check_unchanged(self, name: str) -> None:
        """A bundle gets its class names from the graph, so it must be that of the training."""
        try:
            run_files.check_unchanged(self.path / name, self.config)
        except (OSError, ValueError) as error:
            raise RunFolderError(f"the run in {self.path} cannot be read: {reason(error)}") from error

    def class_names(self) -> tuple[str, ...] | None:
        """The names of the learned classes; None if the targets are described or the graph has no names."""
        if self.model.config.targets is None or not (self.path / run_files.GRAPH).is_file():
            return None
        return self.graph().class_names

    def feature_encoding(self) -> FeatureEncoding | None:
        """How tables became the features of the graph; None for a graph that was not made from tables."""
        return self.graph().feature_encoding if (self.path / run_files.GRAPH).is_file() else None

    def training(self) -> dict[str, Any]:
        """The metrics, and the fingerprints of the training graphs: `training` of a bundle's manifest."""
        return self.metrics | ({KEY: self.config[KEY]} if KEY in self.config else {})

    def fingerprint(self) -> str:
        """The sha256 of the weights of `model`. A bundle keeps it, so that its run can be found.

        Another training may have replaced the weights file since the run was read.
        """
        recorded: str | None = self.config.get("weights")  # compared with the file by `load_run`
        return recorded or run_files.sha256_of(self.path / run_files.WEIGHTS)


def save_run(
    path: str | Path,
    fitted: Fitted,
    graph: Graph,
    data: list[str],
    training: TrainConfig,
    many: Sequence[Graph] = (),
) -> None:
    """Write a training run to a folder, as `load_run` and `adar-deploy export` read it.

    config.json is written last: a folder without it is not a finished run. A finished run is replaced in one
    operation, so that one of the two is there at every moment.

    Args:
        path: Folder of the run; an existing run in it is replaced. Other files in it stay.
        fitted: The trained model, from `fit` or `Trainer.run`.
        graph: The graph that the model was trained on; of several graphs, the first.
        data: Names of the graphs, for people who read config.json.
        training: Settings of the training.
        many: Some of many small graphs, with which `export` compares solvers.

    Raises:
        AdarError: If the folder cannot be written.

    Example:
        >>> save_run(Path("runs/mine"), fitted, graph, ["mine.npz"], TrainConfig())  # doctest: +SKIP
    """
    path = Path(path)
    weights = save(fitted.model.state_dict())
    config: dict[str, Any] = {
        "format": FORMAT,
        "data": data,
        "kind": _kind_of(fitted.model),
        "model": asdict(fitted.model.config),
        "training": asdict(training),
        "weights": hashlib.sha256(weights).hexdigest(),
        "data_sha256": fitted.data_sha256,
        **({KEY: fitted.trained_on} if fitted.trained_on else {}),
    }
    refuse_folders(path)
    with writing(path), replaced(path) as folder:
        (folder / run_files.CONFIG).unlink(missing_ok=True)
        write_file(folder / run_files.WEIGHTS, weights)
        write_graph(folder / run_files.GRAPH, graph)
        (folder / run_files.GRAPHS).unlink(missing_ok=True)
        if many:
            write_file(folder / run_files.GRAPHS, encode_graphs(many))
        plot_learning(fitted.history, fitted.metrics["metric"], folder / run_files.LEARNING_CURVE)
        write_file(folder / run_files.HISTORY, json.dumps(fitted.history).encode())
        write_file(folder / run_files.METRICS, json.dumps(fitted.metrics, indent=2).encode())
        written = (
            run_files.METRICS,
            run_files.HISTORY,
            run_files.GRAPH,
            *([run_files.GRAPHS] if many else []),
        )
        config[run_files.FILES] = {name: run_files.sha256_of(folder / name) for name in written}
        write_file(folder / run_files.CONFIG, json.dumps(config, indent=2).encode())
        make_newest(folder)
        (folder / run_files.CHECKPOINT).unlink(missing_ok=True)


def load_run(path: str | Path) -> Run:
    """Read the model and the metrics of a training run. `Run.graph` reads its graph.

    Args:
        path: Folder of the run.

    Returns:
        The run, with its model on the CPU in evaluation mode.

    Raises:
        RunFolderError: If the folder is not a run, or its files are damaged or do not belong together.

    Example:
        >>> run = load_run(Path("runs/minesweeper"))  # doctest: +SKIP
    """
    path = Path(path)
    try:
        config = _read_object(path / run_files.CONFIG, "data", "kind", "model", "training")
        metrics = _read_object(path / run_files.METRICS, config=config)
        _check_types(config, metrics)
        model = _read_model(path / run_files.WEIGHTS, config)
        run_files.check_files(path, config)
    except (FileNotFoundError, NotADirectoryError) as error:
        missing = Path(error.filename or path).name
        raise RunFolderError(
            f"{path} is not a training run ({missing} not found): make one with adar-deploy train"
        ) from error
    except UNREADABLE as error:
        raise RunFolderError(f"the run in {path} cannot be read: {reason(error)}") from error
    return Run(path, model.eval().requires_grad_(False), config, metrics)


def _kind_of(model: Model) -> str:
    """The name of a model's class in config.json."""
    if type(model) is AdaR:
        return ADAR
    return next(name for name, kind in BASELINES.items() if type(model) is kind)


def _read_model(file: Path, config: dict[str, Any]) -> Model:
    if config["kind"] != ADAR and config["kind"] not in BASELINES:
        raise ValueError(f"{run_files.CONFIG} names an unknown model {short(config['kind'])!r}")
    if config.get("format") != FORMAT and dict(config["model"]).get("isotropic"):
        raise ValueError("it is a zero-shot model of an older version: train it again")
    _check_model(dict(config["model"]))
    with torch.device("meta"):  # takes no memory, whatever sizes the configuration asks for
        kind: type[Model] = AdaR if config["kind"] == ADAR else BASELINES[config["kind"]]
        model = kind(ModelConfig(**current_settings(config["model"])))
    content = run_files.read_file(file, _most_bytes(model))
    if config.get("weights") not in (None, hashlib.sha256(content).hexdigest()):
        raise ValueError(run_files.CHANGED.format(file.name))
    weights = load(content)
    types = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    if any(tensor.dtype != types.get(name, tensor.dtype) for name, tensor in weights.items()):
        raise ValueError(f"{file.name} has numbers of another type than the model")
    if model.config.regression:  # older runs have no label scale: their scores are the inner products
        shape = model.label_offset.shape
        none = {"label_offset": torch.zeros(1).expand(shape), "label_scale": torch.ones(1).expand(shape)}
        weights = none | weights
    model.load_state_dict(weights, assign=True)
    return model


def _check_model(settings: dict[str, Any]) -> None:
    """Check the sizes and names of a model, which a stranger may have written. Its weights check the rest."""
    sizes = [settings[name] for name in ("features", "hidden", "proxies", "targets") if name in settings]
    if not all(size is None or is_count(size, 1) for size in sizes):
        raise ValueError(f"{run_files.CONFIG} has a size of the model that is not a positive integer")
    rates = [settings[name] for name in ("dropout", "input_dropout") if name in settings]
    if not all(is_number(rate) and 0 <= rate <= 1 for rate in rates):
        raise ValueError(f"{run_files.CONFIG} has a dropout that is not between 0 and 1")
    for name, known in (("level", LEVELS), ("alignment", tuple(ALIGNMENTS))):
        if settings.get(name, known[0]) not in known:
            raise ValueError(f"{run_files.CONFIG} has an unknown {name}")


def _most_bytes(model: Model) -> int:
    """The size of the largest weights file of a model: numbers of 64 bits, and a header."""
    tensors = model.state_dict().values()
    return sum(8 * tensor.numel() + HEADER_BYTES for tensor in tensors) + HEADER_BYTES


def _check_types(config: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Check the values that commands use without another check."""
    data, exit_rule, made = config["data"], metrics.get("exit", {}), config.get("format", FORMAT)
    if not is_count(made, 1) or made > FORMAT:
        raise ValueError("it was made by a newer version of adar-deploy: update, or train it again")
    if not isinstance(data, list) or not all(isinstance(each, str) for each in data):
        raise ValueError(f"{run_files.CONFIG} has 'data' that is not a list of names")
    if not isinstance(exit_rule, dict):
        raise ValueError(f"{run_files.METRICS} has 'exit' that is not a stop rule")
    if not isinstance(config.get(KEY, {}), dict):
        raise ValueError(f"{run_files.CONFIG} has {KEY!r} that is not a JSON object")


def _read_object(file: Path, *keys: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object in a file; it must have these keys, and the hash that `config` has."""
    content = run_files.read_json(file, config)
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} contains no JSON object")
    for key in keys:
        if key not in content:
            raise ValueError(f"{file.name} has no {key!r}")
    return content


def public_name(data: str) -> str:
    """The name of a data set; of a file, without its folders, which must not appear in a bundle."""
    return Path(data).name if Path(data).suffix in (*FORMATS, *TABLES) else data


def finished_metrics(path: Path, **settings: Any) -> Any:
    """The metrics of the finished run in `path` if its config.json has these settings; None otherwise."""
    try:
        config = _read_object(path / run_files.CONFIG)
        metrics = _read_object(path / run_files.METRICS, config=config)
        run_files.check_complete(path, config)
    except UNREADABLE:
        return None
    asked = json.loads(json.dumps(settings))
    return metrics if asked.items() <= config.items() else None


def find_run(
    folders: Sequence[Path], fingerprint: str | None, path: Path | None = None, name: str = "the run"
) -> Run:
    """The run with the weights of a bundle: the run in `path` if given, else one in these folders.

    `name` is how the error names the run that is needed.
    """
    if path is not None:
        run = load_run(path)
        if fingerprint not in (None, run.fingerprint()):
            raise RunFolderError(
                f"the bundle was not exported from {path} (the weights differ): give another --run"
            )
        return run
    found = find_weights(folders, fingerprint)
    if found is not None:
        return load_run(found)
    raise RunFolderError(
        f"{name} that the bundle was exported from is not in {' or '.join(map(str, folders))}: give its "
        "folder with --run"
    )
