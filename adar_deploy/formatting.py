"""How values are written in tables, on the console and in reports."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adar_runtime.formatting import exit_rule, metric_title, percent, plain, predicted

if TYPE_CHECKING:
    from adar_runtime.bundle.manifest import Manifest

IMBALANCED = 2.0  # labels of the largest class per label of the smallest from which tables show class metrics
CLASS_METRICS = "balanced accuracy, macro-F1"

__all__ = [
    "CLASS_METRICS",
    "class_metrics",
    "exit_rule",
    "megabytes",
    "metric_title",
    "outputs_of",
    "percent",
    "plain",
    "predicted",
    "seconds",
    "with_interval",
]


def with_interval(share: float, found: Mapping[str, Any] | None, unit: str | None = None) -> str:
    """A metric with its 95 % interval where that is wider than ± half a point: "33 % [6, 79] of 3 nodes"."""
    if not found:
        return percent(share)
    low, high = (100 * bound for bound in found["interval"])
    if high - low <= 1:
        return percent(share)
    wide = high - low > 10
    bounds = f"[{low:.0f}, {high:.0f}]" if wide else f"[{low:.1f}, {high:.1f}]"
    value = f"{100 * share:.0f} %" if wide else percent(share)
    return f"{value} {bounds}" + (f" of {found['count']:,} {unit}" if unit else "")


def class_metrics(found: Mapping[str, Any] | None) -> str:
    """Balanced accuracy and macro-F1 where classes are imbalanced: "71.30 %, 69.02 %"; empty otherwise."""
    if not found or found.get("imbalance", 1.0) < IMBALANCED:
        return ""
    return f"{percent(found['balanced_accuracy'])}, {percent(found['macro_f1'])}"


def outputs_of(level: str) -> str:
    """What a model of this level predicts, in the plural: nodes, pairs or graphs."""
    return {"node": "nodes", "edge": "pairs", "graph": "graphs"}.get(level, "labels")


def seconds(value: float) -> str:
    """A duration with its unit: seconds, or milliseconds where it is shorter than one second."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"


def megabytes(manifest: "Manifest") -> str:
    """The total size of a bundle's ONNX files."""
    return f"{sum(file.bytes for file in manifest.onnx_models.values()) / 1e6:.1f} MB"
