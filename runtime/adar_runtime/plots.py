"""Pictures: a learning curve, and what every step of every budget gives. PNG, drawn without a screen."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adar_runtime.curves import Curve
from adar_runtime.errors import MissingExtraError, UsageError


def plot_learning(history: Sequence[Mapping[str, Any]], metric: str, path: Path) -> None:
    """Loss of every epoch, and the validation metric where it was measured."""
    figure, axes = _axes("epoch", "loss")
    axes.plot([row["epoch"] for row in history], [row["loss"] for row in history], color="tab:gray", lw=1)
    axes.set_yscale("log")
    measured = [row for row in history if row.get("val") is not None]
    right = axes.twinx()
    right.plot([row["epoch"] for row in measured], [100 * row["val"] for row in measured], color="tab:blue")
    right.set_ylabel(f"validation {metric} (%)", color="tab:blue")
    _save(figure, path)


def plot_curves(curves: Sequence[Curve], part: str, metric: str, path: Path) -> None:
    """Metric and alignment against t, one line a budget, the alignment's peak marked."""
    figure, (top, bottom) = _stacked()
    for index, curve in enumerate(curves):
        colour = f"C{index % 10}"
        top.plot(
            curve.times,
            [100 * value for value in curve.metric(part)],
            color=colour,
            label=f"S = {curve.budget}",
        )
        bottom.plot(curve.times, curve.alignment, color=colour)
        peak = curve.alignment.index(max(curve.alignment))
        bottom.plot(curve.times[peak], curve.alignment[peak], "o", color=colour, ms=4)
        top.plot(curve.times[peak], 100 * curve.metric(part)[peak], "o", color=colour, ms=4)
    top.set_ylabel(f"{part} {metric} (%)")
    top.legend(fontsize=8, ncols=2)
    bottom.set_ylabel("alignment (● peak)")
    bottom.set_xlabel("t = s / S")
    _save(figure, path)


def check_suffix(path: Path) -> None:
    """Refuse a picture of a kind that is not drawn, before the work."""
    if path.suffix not in (".png", ".svg"):
        raise UsageError(f"{path}: a plot is drawn as .png or .svg, not {path.suffix or 'nothing'!r}")


def _axes(x: str, y: str) -> tuple[Any, Any]:
    figure = _figure(6.4, 3.6)
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _stacked() -> tuple[Any, Any]:
    figure = _figure(6.4, 5.6)
    return figure, figure.subplots(2, 1, sharex=True)


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure  # without pyplot there is no screen to look for
    except ImportError as error:
        raise MissingExtraError("drawing a plot", "plot") from error
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
