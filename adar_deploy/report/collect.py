"""The facts of a report, as plain as JSON has them. The page shows these and nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_deploy.report.environment import environment
from adar_deploy.report.measure import Progress, measure_on
from adar_deploy.report.sources import Sources
from adar_runtime.run_files import CONFIG, GRAPH, HISTORY, METRICS

if TYPE_CHECKING:
    from adar_runtime.graph import Graph


def collect(
    sources: Sources,
    graph_file: Path | None,
    budgets: Sequence[int],
    on_progress: Progress = lambda _, __: None,
) -> dict[str, Any]:
    """Read what is written down, and measure the rest on the graph."""
    manifest = sources.manifest()
    config = sources.read(CONFIG) or {}
    metrics = sources.read(METRICS) or (dict(manifest.training) if manifest else {})
    facts: dict[str, Any] = {
        "run": str(sources.run) if sources.run else None,
        "bundle": str(sources.bundle) if sources.bundle else None,
        "data": [Path(name).name for name in map(str, config.get("data", metrics.get("data", [])))],
        "kind": str(config.get("kind", "adar")),
        "model": config.get("model") or _model(manifest),
        "training": config.get("training"),
        "metrics": metrics,
        "exit": manifest.exit if manifest else metrics.get("exit"),
        "history": sources.read(HISTORY),
        "parity": (manifest.parity if manifest else None) or None,
        "convergence": (manifest.convergence if manifest else None) or None,
        "made_with": manifest.versions if manifest else None,
        "notes": [],
    }
    graph = _graph(sources, graph_file, facts["notes"])
    if graph is not None:
        name = str(graph_file or (sources.run or Path()) / GRAPH)
        facts["graph"] = _describe(graph, name)
        facts |= measure_on(sources, name, graph, budgets, facts["notes"], on_progress)
    return facts | {"environment": environment()}


def _graph(sources: Sources, path: Path | None, notes: list[str]) -> "Graph | None":
    """The graph to measure on: the given one, or the one that the run was trained on."""
    from adar_runtime import read_graph
    from adar_runtime.errors import MissingExtraError

    if path is not None:
        return read_graph(path)
    if sources.run is None or not (sources.run / GRAPH).is_file():
        notes.append("No graph was given and no run was found: name a graph to have it measured.")
        return None
    try:
        return read_graph(sources.run / GRAPH)
    except MissingExtraError as error:
        notes.append(f"The run's graph was not measured: {error}")
        return None


def _model(manifest: Any) -> dict[str, Any]:
    """What a manifest says of the model, for want of the run's own words."""
    names = ("features", "targets", "hidden", "proxies", "level", "regression", "alignment", "unit_step")
    return {name: getattr(manifest, name) for name in names}


def _describe(graph: "Graph", name: str) -> dict[str, Any]:
    parts = {part: graph.labelled(part) for part in ("train", "val", "test")}
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
