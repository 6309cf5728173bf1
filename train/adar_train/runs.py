"""A training run on disk: weights, how they were made, how good they are, and the graph."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adar_runtime.errors import RunFolderError
from adar_runtime.files import new_folder
from adar_runtime.formats import read_graph, write_graph
from adar_runtime.graph import Graph
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from adar_train.fit import Fitted, TrainConfig
from adar_train.model import AdaR, ModelConfig

WEIGHTS, CONFIG, METRICS, GRAPH = "model.safetensors", "config.json", "metrics.json", "graph.pt"


@dataclass(frozen=True, eq=False)
class Run:
    """A run as it was read back."""

    path: Path
    model: AdaR
    config: dict[str, Any]
    metrics: dict[str, Any]

    def graph(self) -> Graph:
        """The graph that it was trained on."""
        return read_graph(self.path / GRAPH)


def save_run(path: Path, fitted: Fitted, graph: Graph, data: str, training: TrainConfig) -> None:
    """Write the run's folder in one move."""
    config = {"data": data, "model": asdict(fitted.model.config), "training": asdict(training)}
    with new_folder(path, marker=CONFIG) as folder:
        (folder / WEIGHTS).write_bytes(save(fitted.model.state_dict()))
        write_graph(folder / GRAPH, graph)
        (folder / METRICS).write_text(json.dumps(fitted.metrics, indent=2) + "\n")
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def load_run(path: Path) -> Run:
    """Read a run's model and figures; its graph is read when it is asked for."""
    try:
        config = json.loads((path / CONFIG).read_text())
        metrics = json.loads((path / METRICS).read_text())
        model = AdaR(ModelConfig(**config["model"]))
        model.load_state_dict(load_file(path / WEIGHTS))
    except FileNotFoundError as error:
        missing = Path(error.filename or path).name
        raise RunFolderError(
            f"{path} holds no training run (no {missing}): make one with adar-deploy train"
        ) from error
    except (ValueError, KeyError, TypeError, RuntimeError, OSError, SafetensorError) as error:
        raise RunFolderError(
            f"{path} holds a run that cannot be read: {str(error).splitlines()[0]}"
        ) from error
    return Run(path, model.eval(), config, metrics)


def newest_run(runs: Path) -> Path:
    """The run that was written last."""
    found = sorted(runs.glob(f"*/{CONFIG}"), key=lambda file: file.stat().st_mtime_ns)
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
