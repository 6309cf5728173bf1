"""The sections about a bundle: agreement with PyTorch, solvers, latency, environment."""

from collections.abc import Mapping
from html import escape
from typing import Any

from adar_deploy.formatting import percent, plain, seconds
from adar_deploy.report.charts import WIDE, Axis, Line, line_chart
from adar_deploy.report.markup import fact_table, figure, section, table
from adar_runtime.bundle.manifest import LARGEST_CHANGE, LEAST_SAME

Facts = Mapping[str, Any]


def parity_section(facts: Facts) -> str:
    """The difference from PyTorch after every number of steps."""
    parity = facts["parity"]
    if not parity:
        return ""
    checks = parity["checks"]
    drifts = {
        check["graph"]: check["drift"] for check in checks
    }  # the last check of a graph has the largest budget
    lines = [
        Line(str(graph), [(int(step), value) for step, value in drift.items()], tone=i % 5, dots=True)
        for i, (graph, drift) in enumerate(drifts.items())
    ]
    chart = line_chart(
        lines,
        Axis("steps", log=True),
        Axis("relative difference", log=True, show=lambda value: f"{value:.0e}"),
        title="Difference from PyTorch",
        size=WIDE,
    )
    rows = table(
        [
            "graph",
            "steps",
            "largest difference",
            "relative difference",
            "changed predictions",
            "stop step",
            "stop step in PyTorch",
        ],
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
        f"Differences of the states, relative to the largest entry of each state. Allowed difference: "
        f"{parity['tolerance']:.0e}; largest difference: {parity['needed']:.1e}.",
        figure("Relative difference after each step of the largest budget, one line per graph", chart) + rows,
    )


def convergence_section(facts: Facts) -> str:
    """The fewest cell calls that reproduce the result of many steps."""
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
    lines.append(Line("limit", [(min(calls), LARGEST_CHANGE), (max(calls), LARGEST_CHANGE)], dotted=True))
    chart = line_chart(
        lines,
        Axis("cell calls", log=True),
        Axis("distance from the reference", log=True, show=lambda value: f"{100 * value:g} %"),
        title="Distance from the reference",
        size=WIDE,
    )
    rows = [(name, found["calls"].get(name, "more than tried")) for name in by_solver]
    return section(
        "Convergence and solvers",
        f"Cell calls needed to match {found['reference']} Euler steps: at most {100 * LARGEST_CHANGE:g} % "
        f"of the nodes' total movement away, and at least {100 * LEAST_SAME:g} % of the predictions equal. "
        f"Measured on {found['graph']}. Order of convergence: {plain(found['order'])}; Euler's method on an "
        "ODE has order 1.",
        figure("Distance from the reference, relative to the total movement of the nodes", chart)
        + table(["solver", "cell calls needed"], rows),
    )


def latency_section(facts: Facts) -> str:
    """The time of a run, by solver and phase."""
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
        f"Time of a whole run, from features to scores, with a budget of {found['budget']} steps on "
        f"{found['backend']}: the median of {found['repeats']} runs per solver. The solvers took turns. "
        "auto is the default: the solver with the fewest calls that export proved.",
        table(
            ["solver", "cell calls", "time", "range", *phases, "per call", "same predictions as euler"], rows
        )
        + refused,
    )


def environment_section(facts: Facts) -> str:
    """The machine of the measurements, and the versions behind the bundle."""
    here = fact_table(facts["environment"])
    made = f"<h3>The bundle was made with</h3>{fact_table(facts['made_with'])}" if facts["made_with"] else ""
    return section("Environment", "The machine and packages of the measurements on this page.", here + made)
