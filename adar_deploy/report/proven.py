"""What was proven and measured: the sections on agreement, solvers, latency and the machine."""

from collections.abc import Mapping
from html import escape
from typing import Any

from adar_deploy.report.charts import WIDE, Axis, Line, line_chart
from adar_deploy.report.markup import fact_table, figure, section, table
from adar_deploy.report.words import percent, seconds

Facts = Mapping[str, Any]
ENOUGH = 1e-3  # of the way: what counts as the answer of many steps


def parity_section(facts: Facts) -> str:
    """How far from PyTorch, after how many steps."""
    parity = facts["parity"]
    if not parity:
        return ""
    checks = parity["checks"]
    drifts = {check["graph"]: check["drift"] for check in checks}  # the last of a graph is its largest budget
    lines = [
        Line(str(graph), [(int(step), value) for step, value in drift.items()], tone=i % 5, dots=True)
        for i, (graph, drift) in enumerate(drifts.items())
    ]
    chart = line_chart(
        lines,
        Axis("steps taken", log=True),
        Axis("relative difference", log=True, show=lambda value: f"{value:.0e}"),
        title="Drift from PyTorch",
        size=WIDE,
    )
    rows = table(
        ["graph", "steps", "absolute", "relative", "other class", "stop", "PyTorch's stop"],
        [
            (
                check["graph"],
                check["steps"],
                f"{check['absolute']:.1e}",
                f"{check['relative']:.1e}",
                check["predictions"],
                check["stop"],
                check["reference_stop"],
            )
            for check in checks
        ],
    )
    return section(
        "Agreement with PyTorch",
        f"The largest difference of any state, relative to its largest entry. {parity['tolerance']:g} is "
        f"allowed, {parity['needed']:.1e} would have been enough.",
        figure("Drift over the steps of the largest budget, a line for each graph", chart) + rows,
    )


def convergence_section(facts: Facts) -> str:
    """How few calls give the answer of many steps."""
    found = facts["convergence"]
    if not found:
        return ""
    by_solver: dict[str, list[tuple[float, float]]] = {}
    for trial in found["trials"]:
        by_solver.setdefault(trial["solver"], []).append((trial["calls"], trial["change"]))
    lines = [
        Line(name, sorted(points), tone=i % 5, dots=True)
        for i, (name, points) in enumerate(by_solver.items())
    ]
    calls = [point[0] for points in by_solver.values() for point in points]
    lines.append(Line("enough", [(min(calls), ENOUGH), (max(calls), ENOUGH)], dotted=True))
    chart = line_chart(
        lines,
        Axis("calls of the cell", log=True),
        Axis("distance from the answer", log=True, show=lambda value: f"{100 * value:g} %"),
        title="Distance from the answer of many steps",
        size=WIDE,
    )
    rows = [(name, found["calls"].get(name, "more than was tried")) for name in by_solver]
    return section(
        "Convergence and solvers",
        f"How few calls of the cell give the answer of {found['reference']} steps of Euler's, within 0.1 % "
        f"of the nodes' way and with 99.9 % of its predictions. Measured on {found['graph']}. The order of "
        f"convergence is {found['order']}; 1 is that of Euler's method on an ODE.",
        figure("Distance from that answer, relative to the nodes' way", chart)
        + table(["solver", "calls that are enough"], rows),
    )


def latency_section(facts: Facts) -> str:
    """How long an answer takes, by solver and by phase."""
    found = facts.get("latency")
    if not found:
        return ""
    phases = list(next(row["phases"] for row in found["rows"] if "phases" in row))
    rows = [
        (
            row["solver"],
            row["calls"],
            seconds(row["seconds"]),
            f"{seconds(row['spread'][0])} to {seconds(row['spread'][1])}",
            *(seconds(row["phases"][phase]) for phase in phases),
            seconds(row["phases"]["loop"] / max(1, row["calls"])),
            "–" if row["same"] is None else percent(row["same"]),
        )
        for row in found["rows"]
        if "seconds" in row
    ]
    refused = "".join(
        f'<p class="caption">{escape(row["solver"])}: {escape(row["refused"])}</p>'
        for row in found["rows"]
        if "refused" in row
    )
    return section(
        "Latency",
        f"Whole answers for a budget of {found['budget']} steps on {found['backend']}, features to scores: "
        f"the median of {found['repeats']} each, solvers taking turns.",
        table(["solver", "calls", "seconds", "from, to", *phases, "a call", "as euler"], rows) + refused,
    )


def environment_section(facts: Facts) -> str:
    """What all of it was measured on and made with."""
    here = fact_table(facts["environment"])
    made = f"<h3>The bundle was made with</h3>{fact_table(facts['made_with'])}" if facts["made_with"] else ""
    return section("Environment", "What this page was measured on.", here + made)
