"""The content of a report as JSON values. The page shows these values and nothing else."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adar_deploy.environment import environment
from adar_deploy.model_folders import ModelFolders, check_not_replaced, name_of_run, replaced
from adar_deploy.paths import run_folders
from adar_deploy.report.measure import NamedGraphs, OnProgress, measure_on
from adar_runtime.bundle.run_files import CONFIG, GRAPH, HISTORY, METRICS
from adar_runtime.evaluation.training_data import KEY


def collect(
    folders: ModelFolders,
    given: NamedGraphs | None,
    budgets: Sequence[int],
    on_progress: OnProgress = lambda _, __: None,
) -> dict[str, Any]:
    """Read the results of train and export, and measure the rest on the graphs, or on the run's graph."""
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
        "notes": [*folders.notes],
    }
    if folders.bundle and manifest and folders.run is None and not manifest.in_context:
        searched = " or ".join(map(str, run_folders(folders.bundle)))
        facts["notes"].append(
            f"The page has no training curve: {name_of_run(manifest)} is not in {searched}. "
            "Give it with --run."
        )
    measured = given or _own_graph(folders, len(facts["data"]), facts["notes"])
    if measured is not None:
        facts["graph"] = _describe(measured)
        facts |= measure_on(folders, measured, budgets, facts["notes"], on_progress)
        facts["graph"]["labelled"] = facts.pop("labelled")
        if folders.bundle and manifest:
            check_not_replaced(folders.bundle, manifest)
        if json.dumps(folders.read(CONFIG) or {}) != json.dumps(config):  # as text, NaN is equal to itself
            raise replaced(folders.run or folders.model)
    return facts | {"environment": environment()}


def _own_graph(folders: ModelFolders, count: int, notes: list[str]) -> NamedGraphs | None:
    """The training graph of the run; of several (`count`), the first."""
    graph = folders.graph()
    if graph is None:
        notes.append("No graph was given and no run was found: name a graph to measure accuracy and latency.")
        return None
    if count > 1:
        notes.append(f"Accuracy and latency are those of the first of {count} training graphs.")
    return NamedGraphs(f"{folders.run}/{GRAPH}", [graph])


def _model_config(manifest: Any) -> dict[str, Any]:
    """The model's configuration from the manifest, where there is no run."""
    names = ("features", "targets", "hidden", "proxies", "level", "regression", "alignment", "unit_step")
    return {name: getattr(manifest, name) for name in names}


def _describe(measured: NamedGraphs) -> dict[str, Any]:
    graphs, first = measured.graphs, measured.graphs[0]
    return {
        "file": measured.name,
        "graphs": len(graphs),
        "nodes": sum(graph.nodes for graph in graphs),
        "edges": sum(graph.edges for graph in graphs),
        "features": first.width,
        "targets": max(graph.targets for graph in graphs),
        "described": first.target_features is not None,
        "level": first.level,
    }
