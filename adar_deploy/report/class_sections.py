"""The sections about classes and probabilities: per-class scores, class balance, reliability, a baseline."""

from collections.abc import Mapping, Sequence
from typing import Any

from adar_deploy.formatting import metric_title, percent, with_interval
from adar_deploy.report.charts import Axis, Line, bars, line_chart
from adar_deploy.report.markup import figure, section, table

Facts = Mapping[str, Any]
MOST_BARS = 20  # classes in the drawing of the class balance
SHARE = Axis("", bounds=(0, 1), show=lambda value: f"{100 * value:g} %")


def classes_section(facts: Facts) -> str:
    """Precision, recall and F1 of each class, and the class balance."""
    found = facts.get("answers", {})
    rows = found.get("by_class")
    if not rows:
        return ""
    names, total = found["classes"], sum(row["labels"] for row in rows) or 1
    shown = table(
        ["class", "labels", "share", "precision", "recall", "95 % interval of recall", "F1"],
        [
            (
                name,
                f"{row['labels']:,}",
                percent(row["labels"] / total),
                _share(row["precision"]),
                _share(row["recall"]),
                _interval(row["recall_interval"]),
                _share(row["f1"]),
            )
            for name, row in zip(names, rows, strict=True)
        ],
    )
    lead = (
        f"Measured on {facts['evaluation']['counted']}. Macro-F1 {_mean(rows, 'f1')}, balanced accuracy "
        f"{_mean(rows, 'recall')}: means over the classes, whatever their size."
    )
    balance = bars(
        {
            "labels": [row["labels"] / total for row in rows],
            "predictions": [r["predicted"] / total for r in rows],
        },
        names,
        title="Class balance",
        show=lambda value: f"{100 * value:.1f} %",
    )
    drawn = figure("Class balance: shares of the labels and of the predictions", balance)
    return section("Classes", lead, shown + (drawn if len(rows) <= MOST_BARS else ""))


def reliability_section(facts: Facts) -> str:
    """Confidence against the share of correct predictions."""
    found = facts.get("answers", {}).get("reliability")
    if not found:
        return ""
    bins = found["bins"]
    points = [(one["confidence"], one["correct"]) for one in bins]
    chart = line_chart(
        [
            Line("perfect", [(0, 0), (1, 1)], dotted=True),
            Line("model", points, dots=True),
            *(
                Line("", [(one["confidence"], low), (one["confidence"], high)])
                for one in bins
                for low, high in [one["interval"]]
            ),
        ],
        Axis("confidence", bounds=(0, 1), show=SHARE.show),
        Axis("correct predictions", bounds=(0, 1), show=SHARE.show),
        title="Reliability diagram",
        size=(460, 400),
    )
    rows = table(
        ["confidence", "correct", "95 % interval", "outputs"],
        [
            (
                percent(one["confidence"]),
                percent(one["correct"]),
                _interval(one["interval"]),
                f"{one['count']:,}",
            )
            for one in bins
        ],
    )
    drawn = figure("Reliability diagram; bars are 95 % intervals", chart)
    return section(
        "Reliability of the probabilities",
        f"Expected calibration error (ECE): {percent(found['ece'])}. Confidence is the largest probability "
        "of an output. Below the diagonal the model is too sure; above it, too careful.",
        f'<div class="pair">{drawn}<div>{rows}</div></div>',
    )


def baseline_section(facts: Facts) -> str:
    """The model beside a simple one."""
    found = facts.get("baseline")
    if not found:
        return ""
    done = facts["evaluation"]
    row = max(done["budgets"], key=lambda row: row["budget"])
    name = metric_title(done["metric"])
    rows = [
        ("this model", with_interval(row["at_exit"], row), f"budget {row['budget']:,}, at the stop step"),
        (found["name"], with_interval(found["value"], found), f"fitted in {found['seconds']:.1f} s"),
    ]
    better = found["value"] > row["at_exit"]
    lead = (
        "A linear model on the features and their means over one and two hops, trained on the same labels. "
        + ("It is better than this model here: use it instead, or train longer." if better else "")
    )
    return section("Beside a simple model", lead.strip(), table(["model", name, ""], rows))


def _share(value: float | None) -> str:
    return "–" if value is None else percent(value)


def _interval(bounds: Sequence[float] | None) -> str:
    return "–" if bounds is None else f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f} %"


def _mean(rows: Sequence[Facts], key: str) -> str:
    known = [row[key] for row in rows if row["labels"] and row[key] is not None]
    return percent(sum(known) / len(known)) if known else "–"
