"""The content of a report as JSON values. The page shows these values and nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_deploy.environment import environment
from adar_deploy.model_folders import ModelFolders, name_of_run
from adar_deploy.paths import run_folders
from adar_deploy.report.measure import OnProgress, measure_on
from adar_runtime.evaluation.training_data import KEY
from adar_runtime.run_files import CONFIG, GRAPH, HISTORY, METRICS

if TYPE_CHECKING:
    from adar_runtime.graph import Graph


def collect(
    folders: ModelFolders,
    graph_file: Path | None,
    budgets: Sequence[int],
    on_progress: OnProgress = lambda _, __: None,
) -> dict[str, Any]:
    """Read the results of train and export, and measure the rest on the graph."""
    manifest = folders.manifest()
    config = folders.read(CONFIG) or {}
    metrics = folders.read(METRICS) or (dict(manifest.training) if manifest else {})
    if isinstance(metrics, dict):  # a damaged run may hold anything
        metrics.pop(KEY, None)  # long, and of no use to people
    facts: dict[str, Any] = {
        "run": str(folders.run) if folders.run else None,
        "bundle": str(folders.bundle) if folders.bundle else None,
        "data": [Path(name).name for name in map(str, config.get("data", metrics.get("data", [])))],
        "kind": str(config.get("kind", "adar")),
        "model": config.get("model") or _model_config(manifest),
        "training": config.get("training"),
        "metrics": metrics,
        "exit": manifest.exit if manifest else metrics.get("exit"),
        "history": folders.read(HISTORY),
        "parity": (manifest.parity if manifest else None) or None,
        "convergence": (manifest.convergence if manifest else None) or None,
        "made_with": manifest.versions if manifest else None,
        "notes": [],
    }
    if folders.bundle and manifest and folders.run is None:
        searched = " or ".join(map(str, run_folders(folders.bundle)))
        facts["notes"].append(
            f"The page has no training curve: {name_of_run(manifest)} is not in {searched}. "
            "Give it with --run."
        )
    graph = _graph(folders, graph_file, facts["notes"])
    if graph is not None:
        name = str(graph_file or (folders.run or Path()) / GRAPH)
        facts["graph"] = _describe(graph, name)
        facts |= measure_on(folders, name, graph, budgets, facts["notes"], on_progress)
    return facts | {"environment": environment()}


def _graph(folders: ModelFolders, path: Path | None, notes: list[str]) -> "Graph | None":
    """The graph to measure on: the given one, or the training graph of the run."""
    from adar_runtime import read_graph
    from adar_runtime.errors import MissingExtraError

    if path is not None:
        return read_graph(path)
    if folders.run is None or not (folders.run / GRAPH).is_file():
        notes.append("No graph was given and no run was found: name a graph to measure accuracy and latency.")
        return None
    try:
        return read_graph(folders.run / GRAPH)
    except MissingExtraError as error:
        notes.append(f"The run's graph was not measured: {error}")
        return None


def _model_config(manifest: Any) -> dict[str, Any]:
    """The model's configuration from the manifest, where there is no run."""
    names = ("features", "targets", "hidden", "proxies", "level", "regression", "alignment", "unit_step")
    return {name: getattr(manifest, name) for name in names}


def _describe(graph: "Graph", name: str) -> dict[str, Any]:
    from adar_runtime.graph import PARTS

    parts = {part: graph.labelled(part) for part in PARTS}
    return {
        "file": name,
        "nodes": graph.nodes,
        "edges": graph.edges,
        "features": graph.width,
        "targets": graph.targets,
        "described": graph.target_features is not None,
        "level": graph.level,
        "labelled": {part: int(mask.sum()) for part, mask in parts.items() if mask is not None},
    }
