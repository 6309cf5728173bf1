"""Plots: learning curves, alignment of an inference, metric by budget, speed. No display is needed."""

import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.benchmarking.sides import PYTORCH, Timing
from adar_runtime.errors import MissingExtraError, UsageError
from adar_runtime.evaluation.curves import AtExit, Curve
from adar_runtime.files import write_file
from adar_runtime.formatting import metric_title
from adar_runtime.loop.result import Result

# The colours of adar_deploy/report/charts.css; a test compares them.
TONES = ("#2a6fd0", "#d9622b", "#1a9a6c", "#8a56c9", "#b58900")
NEAR, FAR = "#0d3f8f", "#9cc3f5"  # of ordered lines, such as budgets: the largest and the smallest
INK, SOFT, RULE = "#16191d", "#5b6470", "#dfe3e8"
SHIFT = 0.02  # horizontal shift from one side of a comparison to the next, as a fraction of the size


def plot_learning(history: Sequence[Mapping[str, Any]], metric: str, path: Path) -> None:
    """Training loss by epoch, and the validation metric for the epochs that measured it."""
    figure, axes = _axes("epoch", "training loss (log scale)")
    axes.plot([row["epoch"] for row in history], [row["loss"] for row in history], color=TONES[1], lw=1.5)
    axes.set_yscale("log")
    measured = [row for row in history if row.get("val") is not None]
    right = axes.twinx()
    _style(right, grid="")
    right.plot([row["epoch"] for row in measured], [100 * row["val"] for row in measured], color=TONES[0])
    right.set_ylabel(f"validation {metric_title(metric)} (%)", color=TONES[0])
    save_figure(figure, path)


def plot_curves(curves: Sequence[Curve], exits: Sequence[AtExit], part: str, metric: str, path: Path) -> None:
    """Metric and alignment against t: one line per budget, with a ring at the stop step."""
    figure, (top, bottom) = _stacked()
    for index, (curve, at) in enumerate(zip(curves, exits, strict=True)):
        colour = _shade(index / max(1, len(curves) - 1))
        top.plot(
            curve.times,
            [100 * value for value in curve.metric(part)],
            color=colour,
            label=f"budget {curve.budget}",
        )
        bottom.plot(curve.times, curve.alignment, color=colour)
        _ring(bottom, curve.times[at.step], at.alignment, colour)
        _ring(top, curve.times[at.step], 100 * at.metrics[part], colour)
    top.set_ylabel(f"{part} {metric_title(metric)} (%)")
    top.legend(fontsize=8, ncols=2, frameon=False, labelcolor=SOFT)
    bottom.set_ylabel("alignment (○ = stop step)")
    bottom.set_xlabel("time t = step / budget")
    save_figure(figure, path)


def draw_run(result: Result) -> Any:
    """Alignment against t, with a mark at the time of the predictions."""
    figure, axes = _axes("time t", "alignment")
    points = sorted(zip(result.times, result.alignment, strict=True))
    axes.plot(*zip(*points, strict=True), color=TONES[0], lw=2, marker="." if len(points) < 64 else None)
    axes.axvline(result.best_time, color=SOFT, ls=(0, (3, 4)), lw=1)
    _ring(axes, result.best_time, result.alignment[result.best_step], TONES[0])
    calls = f"{result.cell_calls} cell calls, budget {result.budget}"
    axes.set_title(
        f"predictions from t = {result.best_time:.3g} ({calls})\nstop reason: {result.stop_reason.value}",
        fontsize=9,
        loc="left",
        color=INK,
    )
    return figure


def plot_speed(timings: Sequence[Timing], path: Path) -> None:
    """Time per inference and per step against nodes and edges, one colour per side.

    A line joins graphs of equal mean degree. Sides are shifted a little so that they do not overlap. Graphs
    of one size have no such axis: they get one bar per side.
    """
    if len({(one.case.nodes, one.case.edges) for one in timings}) == 1:
        _plot_one_size(timings, path)
        return
    figure = _figure(9.6, 7.2)
    panels = figure.subplots(2, 2, sharex="col", sharey="row")
    sides = list(dict.fromkeys(one.side.label for one in timings))
    for row, (what, seconds) in enumerate((("inference", "runs"), ("step", "steps"))):
        for axes, size in zip(panels[row], ("nodes", "edges"), strict=True):
            for index, label in enumerate(sides):
                mine = [one for one in timings if one.side.label == label]
                _draw_side(axes, mine, size, seconds, index, 1 + SHIFT * (index - len(sides) / 2))
            _log_axes(axes, sorted({getattr(one.case, size) for one in timings}))
        panels[row, 0].set_ylabel(f"milliseconds per {what}\n(median, 10th to 90th percentile)")
    for axes, size in zip(panels[1], ("nodes", "edges"), strict=True):
        axes.set_xlabel(f"{size} of the graph")
    handles = panels[0, 0].get_legend_handles_labels()
    style = {"ncols": 2, "fontsize": 8, "frameon": False, "labelcolor": SOFT}
    figure.legend(*handles, loc="outside lower center", **style)
    save_figure(figure, path)


def _plot_one_size(timings: Sequence[Timing], path: Path) -> None:
    """One bar per side: the median time per inference and per step, with the 10th to 90th percentile."""
    figure = _figure(9.6, 1.2 + 0.4 * len(timings))
    for axes, (what, seconds) in zip(
        figure.subplots(1, 2, sharey=True), (("inference", "runs"), ("step", "steps")), strict=True
    ):
        spreads = [np.quantile(getattr(one, seconds), [0.1, 0.5, 0.9]) * 1e3 for one in timings]
        for index, (low, middle, high) in enumerate(spreads):
            axes.barh(index, middle, color=TONES[index % len(TONES)], height=0.6)
            axes.plot([low, high], [index, index], color=INK, lw=1)
            axes.annotate(f" {middle:.3g}", (high, index), va="center", fontsize=8, color=INK)
        axes.set_xlabel(f"milliseconds per {what}\n(median, 10th to 90th percentile)")
        axes.margins(x=0.15)
        _style(axes, grid="x")
    first = figure.axes[0]
    first.set_yticks(range(len(timings)), [one.side.label for one in timings])
    first.invert_yaxis()
    case = timings[0].case
    figure.suptitle(f"{case.name}: {case.nodes:,} nodes, {case.edges:,} edges", fontsize=9, color=INK)
    save_figure(figure, path)


def _draw_side(
    axes: Any, timings: Sequence[Timing], size: str, seconds: str, index: int, shift: float
) -> None:
    colour, marker = TONES[index % len(TONES)], "s" if timings[0].side.backend == PYTORCH else "o"
    degrees = sorted({round(one.case.edges / one.case.nodes) for one in timings})
    for degree in degrees:
        line = [one for one in timings if round(one.case.edges / one.case.nodes) == degree]
        sizes = [getattr(one.case, size) * shift for one in line]
        spreads = [np.quantile(getattr(one, seconds), [0.1, 0.5, 0.9]) * 1e3 for one in line]
        low, middle, high = zip(*spreads, strict=True)
        axes.vlines(sizes, low, high, color=colour, lw=1, alpha=0.6)
        label = timings[0].side.label if degree == degrees[0] else None
        axes.plot(sizes, middle, f"{marker}-", color=colour, ms=5, lw=0.8, label=label)


def _log_axes(axes: Any, sizes: Sequence[int]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30, ha="right")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _style(axes)


def check_drawable(path: Path) -> None:
    """Raise an error for an unknown file type or a missing matplotlib, before any work is done."""
    if path.suffix not in (".png", ".svg"):
        raise UsageError(f"{path}: a plot is a .png or .svg file, not {path.suffix or 'nothing'!r}")
    _check_installed()


def _check_installed() -> None:
    if find_spec("matplotlib") is None:
        raise MissingExtraError("drawing a plot", "plot")


def _axes(x: str, y: str) -> tuple[Any, Any]:
    figure = _figure(6.4, 3.6)
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    _style(axes)
    return figure, axes


def _stacked() -> tuple[Any, Any]:
    figure = _figure(6.4, 5.6)
    both = figure.subplots(2, 1, sharex=True)
    for axes in both:
        _style(axes)
    return figure, both


def _style(axes: Any, *, grid: str = "y") -> None:
    """The style of the report: grid lines for the numbers of one axis (or ""), no frame, soft labels."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    axes.tick_params(which="both", colors=SOFT, labelsize=8, left=False, right=False)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=SOFT, fontsize=9)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=RULE, lw=0.8)


def _ring(axes: Any, x: float, y: float, colour: Any) -> None:
    """A mark at the exit, as in the report."""
    axes.plot(x, y, "o", mfc="white", mec=colour, mew=2, ms=7, zorder=3, clip_on=False)


def _shade(share: float) -> tuple[float, ...]:
    """A colour between FAR (0) and NEAR (1)."""
    ends = [[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in (FAR, NEAR)]
    return tuple(far + share * (near - far) for far, near in zip(*ends, strict=True))


def _figure(width: float, height: float) -> Any:
    _check_installed()
    from matplotlib.figure import Figure  # pyplot would look for a display

    class Shown(Figure):
        """A figure that a notebook shows although pyplot is not loaded."""

        def _repr_png_(self) -> bytes:
            return _encode(self, "png")

    return Shown(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure to a .png or .svg file."""
    write_file(path, _encode(figure, path.suffix.removeprefix(".")))


def _encode(figure: Any, form: str) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, dpi=150, format=form)
    return content.getvalue()
