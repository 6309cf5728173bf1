"""The sections about the model: training, accuracy over time and budget, predictions."""

from collections.abc import Mapping, Sequence
from typing import Any

from adar_deploy.formatting import (
    CLASS_METRICS,
    class_metrics,
    exit_rule,
    metric_title,
    percent,
    plain,
    with_interval,
)
from adar_deploy.report.charts import Axis, Line, Mark, heat_grid, line_chart, scatter
from adar_deploy.report.markup import fact_table, figure, section, table
from adar_runtime.graph import PARTS
from adar_runtime.graph.labels import listed

Facts = Mapping[str, Any]
MOST_NAMES = 10  # of training graphs
PERCENT = Axis("", show=lambda value: f"{100 * value:g} %")


def training_section(facts: Facts) -> str:
    """The data, the settings and the learning curve."""
    metrics = facts["metrics"]
    rows = {"trained on": listed(facts["data"], MOST_NAMES) or "unknown"} | _graph_rows(facts)
    if "seconds" in metrics:
        rows["training time"] = f"{metrics.get('epochs', '?')} epochs, {metrics['seconds']:.0f} s"
    intervals = metrics.get("intervals", {})
    scores = [
        f"{part} {with_interval(metrics[part], intervals.get(part))}" for part in PARTS if part in metrics
    ]
    if scores:
        rows[metric_title(metrics.get("metric", "metric"))] = ", ".join(scores)
    found = {part: class_metrics(one) for part, one in metrics.get("class_metrics", {}).items()}
    if any(found.values()):
        rows[CLASS_METRICS] = "; ".join(f"{part} {values}" for part, values in found.items() if values)
    if facts["exit"]:
        rows["stop rule"] = exit_rule(facts["exit"])
    if "exit_reason" in metrics:
        rows["reason"] = str(metrics["exit_reason"])
    return section(
        "Training",
        "The stop rule was chosen on validation labels. The table says how far each rule is below the best "
        "step there.",
        fact_table(rows) + _stop_rules(facts) + _learning(facts),
    )


def _stop_rules(facts: Facts) -> str:
    """How far each stop rule is below the best step on validation labels; the rule that is used is marked."""
    below = facts["metrics"].get("exit_regret")
    if not below:
        return ""
    used = (facts["exit"] or {}).get("rule")
    rows = [(name, percent(value), "● used" if name == used else "") for name, value in below.items()]
    return table(["stop rule", "below the best step", ""], rows)


def configuration_section(facts: Facts) -> str:
    """The settings of the model and of the training, one row each."""
    tables = ""
    for title, settings in (("Model", facts["model"]), ("Training", facts["training"])):
        known = {name: plain(value) for name, value in (settings or {}).items() if value is not None}
        if known:
            tables += f"<div><h3>{title}</h3>{fact_table(known)}</div>"
    return section("Configuration", "", f'<div class="pair">{tables}</div>') if tables else ""


def _graph_rows(facts: Facts) -> dict[str, str]:
    """The graph of the measurements, where there is one."""
    if "graph" not in facts:
        return {}
    graph = facts["graph"]
    described = "described " if graph["described"] else ""
    several = f"{graph['graphs']:,} graphs, " if graph["graphs"] > 1 else ""
    rows = {
        "measured on": f"{several}{graph['nodes']:,} nodes, {graph['edges']:,} edges, "
        f"{graph['features']:,} features, {graph['targets']:,} {described}targets"
    }
    if graph["labelled"]:
        rows["labels"] = ", ".join(f"{part} {count:,}" for part, count in graph["labelled"].items())
    return rows


def _learning(facts: Facts) -> str:
    history = facts["history"]
    if not history:
        return ""
    x = Axis("epoch")
    loss = Line("loss", [(row["epoch"], row["loss"]) for row in history], tone=1)
    drawn = figure("Loss by epoch", line_chart([loss], x, Axis("loss", log=True), title="Loss"))
    measured = [(row["epoch"], row["val"]) for row in history if row.get("val") is not None]
    if measured:
        best = max(measured, key=lambda point: point[1])
        name = metric_title(facts["metrics"].get("metric", "metric"))
        line = Line("validation", measured, dots=len(measured) < 40)
        chart = line_chart(
            [line],
            x,
            Axis(name, show=PERCENT.show),
            [Mark(0, best, f"best: {percent(best[1])} in epoch {best[0]}")],
            title=f"Validation {name}",
        )
        drawn += figure(f"Validation {name}: the lowest over the selection budgets; ○ the best epoch", chart)
    return f'<h3>Learning curve</h3><div class="pair">{drawn}</div>'


def budgets_section(facts: Facts) -> str:
    """Every step of every budget, the stop step of each, and the gain of a larger budget."""
    curves = facts.get("curves")
    if not curves:
        return ""
    scored = "evaluation" in facts
    t = Axis("t = step / budget", bounds=(0, max(1, *(curve["t"][-1] for curve in curves))))
    drawn = ""
    if scored:
        name = metric_title(facts["evaluation"]["metric"])
        drawn += figure(
            f"{_capital(name)} against time; ○ the stop step",
            _over_time(curves, "metric", t, Axis(name, show=PERCENT.show)),
        )
    drawn += figure(
        "Alignment against time; ○ the stop step", _over_time(curves, "alignment", t, Axis("alignment"))
    )
    rows = ""
    if scored:
        drawn += figure(
            f"{_capital(name)} against budget",
            _over_budgets(facts["evaluation"]["budgets"], Axis(name, show=PERCENT.show)),
        )
        by_class = any(class_metrics(row) for row in facts["evaluation"]["budgets"])
        columns = ["budget", "stop step", "at stop", "at t = 1", "at best step", "alignment at stop"]
        rows = table(
            columns + [CLASS_METRICS] * by_class,
            [
                (
                    f"{row['budget']:,}",
                    f"○ {row['exit_step']:,}",
                    with_interval(row["at_exit"], row),
                    percent(row["at_end"]),
                    percent(row["best"]),
                    f"{row['alignment_at_exit']:.4g}",
                    *([class_metrics(row)] if by_class else []),
                )
                for row in facts["evaluation"]["budgets"]
            ],
        )
        if facts["evaluation"]["free"]:
            free = facts["evaluation"]["free"].items()
            rows += table(["without a model", name], [(word, percent(value)) for word, value in free])
    return section(
        "Accuracy and alignment against time and budget",
        "Every budget divides the time from t = 0 to t = 1 into its number of steps. The model's stop rule "
        "chooses the stop step; labels are used for the score only. Graphs with one label each "
        "stop at their own steps, and the stop step is the median. Brackets show 95 % intervals.",
        f'<div class="pair">{drawn}</div>{rows}',
    )


def _capital(text: str) -> str:
    """The text as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def _over_time(curves: Sequence[Facts], what: str, t: Axis, y: Axis) -> str:
    ranks = max(1, len(curves) - 1)
    lines = [
        Line(f"S = {curve['budget']}", list(zip(curve["t"], curve[what], strict=True)), shade=i / ranks)
        for i, curve in enumerate(curves)
    ]
    marks = [
        Mark(i, (curve["t"][step], curve["at_exit"][what]), f"S = {curve['budget']}: step {step}")
        for i, curve in enumerate(curves)
        for step in [curve["exit_step"]]
    ]
    return line_chart(lines, t, y, marks, title=f"{y.label} against time")


def _over_budgets(rows: Sequence[Facts], y: Axis) -> str:
    names = {"at_exit": "at stop", "at_end": "at t = 1", "best": "at best step"}
    found: dict[tuple[float, ...], list[str]] = {}  # identical lines share one entry
    for key, name in names.items():
        found.setdefault(tuple(row[key] for row in rows), []).append(name)
    sizes = [row["budget"] for row in rows]
    if len(sizes) < 2:  # one point says no more than the table
        return ""
    lines = [
        Line(" = ".join(called), list(zip(sizes, values, strict=True)), tone=i, dots=True)
        for i, (values, called) in enumerate(found.items())
    ]
    return line_chart(lines, Axis("budget, steps", log=True), y, title=f"{y.label} against budget")


def predictions_section(facts: Facts) -> str:
    """The confusion matrix and ROC curve, or predicted numbers against labels."""
    found = facts.get("answers")
    if not found:
        return ""
    if "numbers" in found:
        drawn = figure(
            "Predicted numbers against labels (first column); on the line both are equal",
            scatter(found["numbers"], Axis("label"), Axis("predicted"), title="Predictions"),
        )
        return section("Predictions", "", drawn)
    drawn = ""
    if "roc" in found:
        area = percent(max(facts["evaluation"]["budgets"], key=lambda row: row["budget"])["at_exit"])
        curve = line_chart(
            [Line("", found["roc"]), Line("", [(0, 0), (1, 1)], dotted=True)],
            Axis(f"fraction of {found['classes'][0]} above the threshold", bounds=(0, 1)),
            Axis(f"fraction of {found['classes'][1]} above it", bounds=(0, 1)),
            title="ROC curve",
            size=(400, 380),
        )
        drawn += figure(f"ROC curve; area {area}", curve)
    if "confusion" in found:
        grid = heat_grid(found["confusion"], found["classes"], title="Confusion matrix")
        drawn += figure(
            "Confusion matrix: rows are true classes, columns predicted classes; strong colours are large "
            "fractions of the row",
            grid,
        )
    else:
        drawn += f'<p class="note">{len(found["classes"])} classes are too many for a confusion matrix.</p>'
    scored = facts["evaluation"]["counted"]
    budget = max(row["budget"] for row in facts["evaluation"]["budgets"])
    return section(
        "Predictions",
        f"Measured on {scored}, at the stop step of the budget of {budget} steps.",
        f'<div class="pair">{drawn}</div>',
    )
