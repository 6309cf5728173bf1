"""How values are written in tables, on the console and in reports."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adar_runtime.bundle.manifest import Manifest


def percent(share: float) -> str:
    """0.9542 is "95.42 %"."""
    return f"{100 * share:.2f} %"


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


def outputs_of(level: str) -> str:
    """What a model of this level predicts, in the plural: nodes, pairs or graphs."""
    return {"node": "nodes", "edge": "pairs", "graph": "graphs"}.get(level, "labels")


def seconds(value: float) -> str:
    """A duration with its unit: seconds, or milliseconds where it is shorter than one second."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"


def metric_title(name: str) -> str:
    """The usual spelling of a metric."""
    return {"roc_auc": "ROC-AUC", "accuracy": "accuracy", "r2": "R²"}.get(name, name)


def plain(value: Any) -> str:
    """A setting: yes or no, a rounded number, or a list with slashes."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    return "/".join(map(plain, value)) if isinstance(value, list | tuple) else str(value)


def exit_rule(settings: Mapping[str, Any]) -> str:
    """A stop rule and its settings: "time, t 0.69"."""
    rest = {name: value for name, value in settings.items() if name != "rule"}
    return ", ".join([str(settings.get("rule")), *(f"{name} {plain(value)}" for name, value in rest.items())])


def predicted(count: int | None, level: str, *, regression: bool) -> str:
    """What a model predicts: "7 classes for each node", or "1 number …"; None means any number of classes."""
    if count == 0:
        return "nothing: no labels"
    singular, plural = ("number", "numbers") if regression else ("class", "classes")
    what = plural if count is None else f"{count:,} {singular if count == 1 else plural}"
    return f"{what} for each {level}"


def megabytes(manifest: "Manifest") -> str:
    """The total size of a bundle's ONNX files."""
    return f"{sum(file.bytes for file in manifest.onnx_models.values()) / 1e6:.1f} MB"
