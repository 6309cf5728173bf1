"""What the model learned, and what it answers: the sections on training, budgets and answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from adar_deploy.report.charts import Axis, Line, Mark, heat_grid, line_chart, scatter
from adar_deploy.report.markup import fact_table, figure, section, table
from adar_deploy.report.words import metric_title, percent, plain

Facts = Mapping[str, Any]
PERCENT = Axis("", show=lambda value: f"{100 * value:g} %")


def training_section(facts: Facts) -> str:
    """What it was trained on, with which settings, and how that went."""
    model, training, metrics = facts["model"] or {}, facts["training"] or {}, facts["metrics"]
    said = {"trained on": ", ".join(facts["data"]) or "unknown"}
    if "graph" in facts:
        graph = facts["graph"]
        said["graph here"] = (
            f"{graph['nodes']:,} nodes, {graph['edges']:,} edges, {graph['features']:,} features, "
            f"{graph['targets']:,} {'described ' if graph['described'] else ''}targets"
        )
        if graph["labelled"]:
            parts = ", ".join(f"{part} {count:,}" for part, count in graph["labelled"].items())
            said["labels here"] = parts
    said["model"] = ", ".join(f"{name} {plain(value)}" for name, value in model.items() if value is not None)
    if training:
        said["training"] = ", ".join(f"{name} {plain(value)}" for name, value in training.items())
    if "seconds" in metrics:
        said["took"] = f"{metrics.get('epochs', '?')} epochs, {metrics['seconds']:.0f} s"
    scores = [f"{part} {percent(metrics[part])}" for part in ("train", "val", "test") if part in metrics]
    if scores:
        said[metric_title(metrics.get("metric", "metric"))] = ", ".join(scores)
    if facts["exit"]:
        said["exit"] = ", ".join(f"{name} {plain(value)}" for name, value in facts["exit"].items())
    if "exit_regret" in metrics:
        said["what each exit loses"] = ", ".join(
            f"{name} {percent(value)}" for name, value in metrics["exit_regret"].items()
        )
    return section(
        "What was trained on what",
        "The exit was chosen on validation labels; what a rule loses is against the best step there.",
        fact_table(said) + _learning(facts),
    )


def _learning(facts: Facts) -> str:
    history = facts["history"]
    if not history:
        return ""
    x = Axis("epoch")
    loss = Line("loss", [(row["epoch"], row["loss"]) for row in history], tone=1)
    drawn = figure("Loss of every epoch", line_chart([loss], x, Axis("loss", log=True), title="Loss"))
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
        drawn += figure(f"Validation {name}, the worst of the budgets it is chosen by; ○ the best", chart)
    return f'<h3>Learning curve</h3><div class="pair">{drawn}</div>'


def budgets_section(facts: Facts) -> str:
    """Every step of every budget, where each stops, and what a larger budget is worth."""
    curves = facts.get("curves")
    if not curves:
        return ""
    scored = "evaluation" in facts
    t = Axis("t = step / budget", bounds=(0, max(1, *(curve["t"][-1] for curve in curves))))
    drawn = ""
    if scored:
        name = metric_title(facts["evaluation"]["metric"])
        drawn += figure(
            f"{name} against time; ○ the chosen stop",
            _over_time(curves, "metric", t, Axis(name, show=PERCENT.show)),
        )
    drawn += figure(
        "Alignment against time; ○ the chosen stop", _over_time(curves, "alignment", t, Axis("alignment"))
    )
    rows = ""
    if scored:
        drawn += figure(
            "What a larger budget gives",
            _over_budgets(facts["evaluation"]["budgets"], Axis(name, show=PERCENT.show)),
        )
        rows = table(
            ["budget", "chosen step", "at the chosen step", "at t = 1", "best step", "alignment there"],
            [
                (
                    f"{row['budget']:,}",
                    f"{row['exit_step']:,}",
                    percent(row["at_exit"]),
                    percent(row["at_end"]),
                    percent(row["best"]),
                    f"{row['alignment_at_exit']:.4g}",
                )
                for row in facts["evaluation"]["budgets"]
            ],
        )
        if facts["evaluation"]["free"]:
            free = facts["evaluation"]["free"].items()
            rows += table(["without any model", name], [(word, percent(value)) for word, value in free])
    return section(
        "Accuracy and alignment against time and budget",
        "Every budget goes from t = 0 to t = 1 in its own number of steps. The stop is the model's own; "
        "labels are used for the score and nothing else.",
        f'<div class="pair">{drawn}</div>{rows}',
    )


def _over_time(curves: Sequence[Facts], what: str, t: Axis, y: Axis) -> str:
    ranks = max(1, len(curves) - 1)
    lines = [
        Line(f"S = {curve['budget']}", list(zip(curve["t"], curve[what], strict=True)), shade=i / ranks)
        for i, curve in enumerate(curves)
    ]
    marks = [
        Mark(i, (curve["t"][step], curve[what][step]), f"S = {curve['budget']}: step {step}")
        for i, curve in enumerate(curves)
        for step in [curve["exit_step"]]
    ]
    return line_chart(lines, t, y, marks, title=f"{y.label} against time")


def _over_budgets(rows: Sequence[Facts], y: Axis) -> str:
    names = {"at_exit": "at the chosen step", "at_end": "at t = 1", "best": "at the best step"}
    found: dict[tuple[float, ...], list[str]] = {}  # of lines that are one, the names
    for key, name in names.items():
        found.setdefault(tuple(row[key] for row in rows), []).append(name)
    sizes = [row["budget"] for row in rows]
    lines = [
        Line(" = ".join(called), list(zip(sizes, values, strict=True)), tone=i, dots=True)
        for i, (values, called) in enumerate(found.items())
    ]
    return line_chart(lines, Axis("budget, steps", log=True), y, title=f"{y.label} against budget")


def answers_section(facts: Facts) -> str:
    """Which classes were taken for which, or numbers beside numbers."""
    found = facts.get("answers")
    if not found:
        return ""
    if "numbers" in found:
        drawn = figure(
            "Predicted numbers beside the labels (the first column); on the line they agree",
            scatter(found["numbers"], Axis("label"), Axis("predicted"), title="Predictions"),
        )
        return section("Answers", "", drawn)
    drawn = ""
    if "roc" in found:
        area = percent(max(facts["evaluation"]["budgets"], key=lambda row: row["budget"])["at_exit"])
        curve = line_chart(
            [Line("", found["roc"]), Line("", [(0, 0), (1, 1)], dotted=True)],
            Axis(f"share of {found['classes'][0]} above the threshold", bounds=(0, 1)),
            Axis(f"share of {found['classes'][1]} above it", bounds=(0, 1)),
            title="ROC",
            size=(400, 380),
        )
        drawn += figure(f"ROC; the area under it is {area}", curve)
    if "confusion" in found:
        grid = heat_grid(found["confusion"], found["classes"], title="Confusion matrix")
        drawn += figure(
            "Confusion matrix: a row is a class, a column what it was taken for; cells are as strong as "
            "their share of the row",
            grid,
        )
    else:
        drawn += f'<p class="note">{len(found["classes"])} classes are too many for a confusion matrix.</p>'
    part, budget = facts["evaluation"]["part"], max(row["budget"] for row in facts["evaluation"]["budgets"])
    return section(
        "Answers",
        f"Of the {part} labels, at the chosen stop of the budget of {budget} steps.",
        f'<div class="pair">{drawn}</div>',
    )
