"""How names and numbers are written for people."""

from typing import Any

from adar_deploy.console import percent

__all__ = ["metric_title", "percent", "plain", "seconds"]


def metric_title(name: str) -> str:
    """A metric as people write it."""
    return {"roc_auc": "ROC-AUC", "accuracy": "accuracy", "r2": "R²"}.get(name, name)


def plain(value: Any) -> str:
    """A setting as people say it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)


def seconds(value: float) -> str:
    """A time with as many digits as it deserves."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"
