"""The pictures of the page, from the rows alone."""

import io
from collections.abc import Collection, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.evaluation.curves import PAPER_BUDGETS
from adar_runtime.files import write_file
from benchmarks.paper import ablations, compute, theory
from benchmarks.paper.cells import UNFINISHED
from benchmarks.paper.published import NAMES
from benchmarks.paper.table import Key, Row, Table

STYLES = ("-", "--", "-.", ":")
FINE = 5  # points that the lower panels show
METRICS = {"roc_auc": "ROC-AUC", "accuracy": "accuracy"}


def draw_ablations(table: Table, path: Path) -> bool:
    """Test metric at the end of every budget: a column per set; below, the same with a finer scale."""
    figure = _figure(5.2 * len(ablations.SETS), 7.2)
    panels = figure.subplots(2, len(ablations.SETS), sharex=True, squeeze=False)
    for column, name in zip(panels.T, ablations.SETS, strict=True):
        keys = [Key(ablations.PART_NAME, name, 0, "adar", one) for one in ablations.WITHOUT]
        rows = {key.setting: row for key, row in table.find_alike(keys).items()}
        _draw_budgets(column, rows)
        column[0].set_title(f"{name}{_form(rows.values())}", fontsize=10)
        column[1].set_xlabel("budget: steps at inference (trained with 8)")
    lines = {
        label: line
        for axes in panels.flat
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if lines:
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, fontsize=8)
        _save(figure, path)
    return bool(lines)


def _form(rows: Collection[Row]) -> str:
    """What a title says about rows that are quick or not there."""
    if not rows:
        return f": {UNFINISHED}"
    return " (quick)" if any(row["quick"] for row in rows) else ""


def _draw_budgets(column: Any, rows: dict[str, Row]) -> None:
    ends = {
        variant: [100 * (row["ends"][str(budget)]["test"] or 0) for budget in PAPER_BUDGETS]
        for variant, row in rows.items()
    }
    colours = {variant: f"C{index}" for index, variant in enumerate(ablations.WITHOUT)}
    for axes in column:
        for (variant, values), style in zip(ends.items(), cycle(STYLES), strict=False):
            axes.plot(PAPER_BUDGETS, values, style, marker="o", ms=3, color=colours[variant], label=variant)
            axes.set_ylabel(f"test {METRICS[rows[variant]['metric']]} at the end (%)")
        axes.set_xscale("log")
        axes.set_xticks([8, 20, 50, 100, 300], ["8", "20", "50", "100", "300"])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    if ends:
        best = max(max(values) for values in ends.values())
        column[1].set_ylim(best - FINE, best + FINE / 10)


def draw_exit(rows: Sequence[tuple[str, Row]], path: Path) -> bool:
    """Test metric and mean inner product along the trajectory, with the peak of the latter."""
    if not rows:
        return False
    columns = 2 if len(rows) in (2, 4) else min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure = _figure(4.6 * columns, 3.4 * lines)
    panels = np.atleast_1d(figure.subplots(lines, columns)).ravel()
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    for axes, (title, row) in zip(panels, rows, strict=False):
        points = np.array(row["trajectory"], float)
        times, inner, test = points[:, 0], points[:, 1], points[:, -1]
        peak = int(np.argmax(inner))
        axes.plot(times, 100 * test, color="tab:blue")
        axes.plot(times[peak], 100 * test[peak], "o", color="tab:orange", ms=6)
        axes.axvline(times[peak], color="tab:orange", lw=1, ls=":")
        axes.set_ylabel(f"test {METRICS[row['metric']]} (%)", color="tab:blue")
        axes.set_xlabel("time t")
        right = axes.twinx()
        right.plot(times, inner, color="tab:gray", ls="--")
        right.set_ylabel("mean inner product", color="tab:gray")
        axes.set_title(
            f"{title}{_form([row])}\npeak of the inner product at t = {times[peak]:.2f}", fontsize=9
        )
    _save(figure, path)
    return True


def draw_compute(table: Table, path: Path) -> bool:
    """Test metric against the CPU time of an inference. The area of a point is the CPU time of an epoch."""
    rows = table.rows(compute.PART_NAME)
    if not rows:
        return False
    figure = _figure(7.2, 4.6)
    axes = figure.subplots()
    for index, method in enumerate(("adar", *compute.METHODS)):
        points = _compute_points(table, rows[0]["set"], method)
        points.sort()
        if not points:
            continue
        steps, seconds, test, epoch = zip(*points, strict=True)
        axes.plot(seconds, test, lw=0.8, color=f"C{index}")
        axes.scatter(seconds, test, s=[120 * one for one in epoch], color=f"C{index}", alpha=0.5)
        axes.plot(seconds, test, ".", color=f"C{index}", ms=4, label=NAMES[method])
        for at in range(len(steps)):
            if method != "adar" or steps[at] in (8, 50, 300):
                axes.annotate(
                    str(steps[at]),
                    (seconds[at], test[at]),
                    xytext=(5, 5),
                    textcoords="offset points",
                    fontsize=8,
                )
    axes.set_xscale("log")
    axes.margins(x=0.08)  # room for the number beside the last point
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("CPU seconds of an inference, one thread (number: layers or steps)")
    axes.set_ylabel(f"test {METRICS[rows[0]['metric']]} (%)")
    axes.set_title(
        f"{rows[0]['set']}, {rows[0]['epochs']} epochs; area: CPU time of a training epoch", fontsize=10
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)
    _save(figure, path)
    return True


def _compute_points(table: Table, name: str, method: str) -> list[tuple[int, float, float, float]]:
    """Steps, CPU seconds of an inference, test metric in percent, CPU seconds of an epoch."""
    depths = [compute.ADAR_SETTING] if method == "adar" else [f"{depth} layers" for depth in compute.DEPTHS]
    found = []
    for rows in (compute.searched(table, name, method, depth) for depth in depths):
        if rows:
            cost = compute.cost_row(rows)
            found += [
                (
                    int(steps),
                    cost["inference"][steps]["cpu_seconds"],
                    100 * one["test"],
                    cost["cpu_seconds_per_epoch"],
                )
                for steps, one in rows[0]["inference"].items()
            ]
    return found


def draw_theory(table: Table, path: Path) -> bool:
    """The error against the budget on two log axes, one line per seed, and the slope 1/S."""
    rows = table.rows(theory.PART_NAME)
    if not rows:
        return False
    figure = _figure(6.4, 4.4)
    axes = figure.subplots()
    for colour, setting in (("tab:blue", theory.WITH), ("tab:red", theory.WITHOUT)):
        for number, row in enumerate(one for one in rows if one["setting"] == setting):
            budgets = sorted(int(budget) for budget in row["errors"])
            errors = [row["errors"][str(budget)] for budget in budgets]
            axes.plot(budgets, errors, "o-", ms=3, color=colour, alpha=0.8, label=None if number else setting)
    slope = 4 / np.array(theory.BUDGETS, float)
    axes.plot(theory.BUDGETS, slope, color="gray", ls="--", lw=1, label="slope of order 1/S")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(theory.BUDGETS, [str(budget) for budget in theory.BUDGETS])
    axes.set_xlabel("budget S")
    axes.set_ylabel("largest error over all steps, relative")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)
    _save(figure, path)
    return True


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # pyplot would look for a display

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    figure.savefig(content, dpi=72, format="png", pil_kwargs={"optimize": True})
    write_file(path, content.getvalue())
