"""How numbers, metrics and stop rules are written for people, in every package."""

from collections.abc import Mapping
from typing import Any


def percent(share: float) -> str:
    """0.9542 is "95.42 %"."""
    return f"{100 * share:.2f} %"


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
    """A stop rule and its settings: "time, t = 0.69", or "peak, patience 10, t = 1 without a peak"."""
    if settings == {"rule": "final"}:
        return "final, t = 1"
    rest = (_rule_setting(name, plain(value)) for name, value in settings.items() if name != "rule")
    return ", ".join([str(settings.get("rule")), *rest])


def _rule_setting(name: str, value: str) -> str:
    return {"t": f"t = {value}", "fallback": f"t = {value} without a peak"}.get(name, f"{name} {value}")


def predicted(count: int | None, level: str, *, regression: bool) -> str:
    """What a model predicts: "7 classes for each node", or "1 number …"; None means any number of classes."""
    if count == 0:
        return "nothing: no labels"
    singular, plural = ("number", "numbers") if regression else ("class", "classes")
    what = plural if count is None else f"{count:,} {singular if count == 1 else plural}"
    return f"{what} for each {level}"
