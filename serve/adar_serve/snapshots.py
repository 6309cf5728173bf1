"""Metrics and statistics of several workers as those of one server.

A snapshot is JSON: the families of metrics with their samples, and the statistics of the models. Counts of a
worker that has ended stay in the sum, because a count must not decrease.
"""

from collections.abc import Sequence
from typing import Any

Snapshot = dict[str, Any]
KEPT = ("counter", "histogram")  # types of metrics that outlive their worker
LARGEST = ("adar_drift_score", "adar_graphs", "adar_graphs_bytes", "process_max_fds")
SMALLEST = ("process_start_time_seconds",)
CREATED = "_created"  # the end of the name of a sample that is the time of the first count


def merged(snapshots: Sequence[Snapshot]) -> Snapshot:
    """The snapshot of all."""
    return {
        "metrics": _metrics([family for each in snapshots for family in each["metrics"]]),
        "statistics": _statistics([one for each in snapshots for one in each["statistics"]]),
    }


def of_ended(snapshot: Snapshot) -> Snapshot:
    """What stays of a worker that has ended: its counts, without its memory and its queue."""
    families = [family for family in snapshot["metrics"] if family["type"] in KEPT]
    return {"metrics": families, "statistics": snapshot["statistics"]}


def _metrics(families: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for family in families:
        into = found.setdefault(family["name"], {**family, "samples": {}})["samples"]
        for name, labels, value in family["samples"]:
            key = name, tuple(sorted(labels.items()))
            into[key] = value if key not in into else _joined(name, into[key], value)
    return [
        {**family, "samples": [[name, dict(key), value] for (name, key), value in family["samples"].items()]}
        for family in found.values()
    ]


def _joined(name: str, one: float, other: float) -> float:
    if name in SMALLEST or name.endswith(CREATED):
        return min(one, other)
    return max(one, other) if name in LARGEST else one + other


def _statistics(models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for model in models:
        key = model["name"], model["version"]
        found[key] = model if key not in found else _summed(found[key], model)
    return [*found.values()]


def _summed(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    by_size = {each["batch_size"]: each for each in one["batch_stats"]}
    for each in other["batch_stats"]:
        size = each["batch_size"]
        by_size[size] = each if size not in by_size else _durations(by_size[size], each)
    return {
        **one,
        "last_inference": max(one["last_inference"], other["last_inference"]),
        "inference_count": one["inference_count"] + other["inference_count"],
        "execution_count": one["execution_count"] + other["execution_count"],
        "inference_stats": _durations(one["inference_stats"], other["inference_stats"]),
        "batch_stats": [by_size[size] for size in sorted(by_size)],
    }


def _durations(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The sum of durations by kind. Other values, such as the size of a batch, are the same in both."""
    return {
        kind: {key: value[key] + other[kind][key] for key in value} if isinstance(value, dict) else value
        for kind, value in one.items()
    }
