"""Show a finished training run."""

import json
from pathlib import Path
from typing import Any

import typer

from adar_deploy.console import print_facts, print_next
from adar_deploy.formatting import (
    CLASS_METRICS,
    class_metrics,
    exit_rule,
    metric_title,
    outputs_of,
    percent,
    with_interval,
)

MAX_GRAPHS = 10  # in the table after training; metrics.json has all


def _search_facts(metrics: dict[str, Any]) -> dict[str, str]:
    """What the search of the default recipe chose, and its cost."""
    from adar_train.search import settings_line

    if "search_epochs" not in metrics:
        return {}
    return {
        "search": f"{settings_line(metrics['search'][0]['settings'])}; best of {len(metrics['search'])}, "
        f"{metrics['search_epochs']} more epochs in {metrics['search_seconds']:.0f} s"
    }


def _calibration(metrics: dict[str, Any]) -> str:
    """What the time after the training was for."""
    if metrics.get("calibration") == "none":
        return "evaluate"
    return f"calibrate the stop rule on budgets of {', '.join(metrics['budgets'])} steps"


def _class_facts(metrics: dict[str, Any]) -> dict[str, str]:
    """Balanced accuracy and macro-F1 of each part, where classes are imbalanced."""
    shown = {part: class_metrics(found) for part, found in metrics.get("class_metrics", {}).items()}
    line = "; ".join(f"{part} {values}" for part, values in shown.items() if values)
    return {CLASS_METRICS: line} if line else {}


def _parts(metrics: dict[str, Any]) -> str:
    """The metric of one graph on each part of the split, in one line."""
    from adar_runtime.graph import PARTS

    return ", ".join(f"{part} {percent(metrics[part])}" for part in PARTS if part in metrics) or "no labels"


def show_training(
    out: Path, graphs: Any, metrics: dict[str, Any], *, exportable: bool, as_json: bool
) -> None:
    """Print the metrics of a run as a table with the next command, or as JSON."""
    from adar_runtime.bundle.run_files import GRAPH
    from adar_runtime.graph import PARTS

    graph = out / GRAPH
    if as_json:
        typer.echo(json.dumps(metrics | {"run": str(out), "graph": str(graph)}))
        return
    metric = metric_title(metrics["metric"])
    facts = {
        "nodes, edges": f"{sum(g.nodes for g in graphs):,}, {sum(g.edges for g in graphs):,}",
        "epochs": f"{metrics['epochs']} in {metrics['seconds']:.0f} s, "
        f"plus {metrics['calibration_seconds']:.0f} s to {_calibration(metrics)}",
        **_search_facts(metrics),
        **{
            f"{part} {metric}": with_interval(
                metrics[part], metrics["intervals"].get(part), outputs_of(graphs[0].level)
            )
            for part in PARTS
            if part in metrics
        },
        **_class_facts(metrics),
        **{one["name"]: _parts(one) for one in metrics.get("graphs", [])[:MAX_GRAPHS]},
        "stop rule": exit_rule(metrics["exit"]),
        "reason": metrics["exit_reason"],
        "run": out,
        "graph": graph,
    }
    print_facts("trained", facts)
    if exportable:
        print_next("export", out, "--opset", 17)
