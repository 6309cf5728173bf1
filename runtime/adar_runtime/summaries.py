"""What `repr` and notebooks show of a graph, a bundle, a result or a model.

Each kind of object has a function that returns its facts: name -> text. `repr` shows the facts in one line,
and a notebook shows them as a table. Facts come from files, and files may come from anybody: the table is
escaped, and long texts are cut.
"""

import html
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adar_runtime.errors import short
from adar_runtime.formatting import exit_rule, metric_title, percent, predicted

if TYPE_CHECKING:
    from adar_runtime.bundle.manifest import Manifest
    from adar_runtime.evaluation.drift import Drift
    from adar_runtime.evaluation.evaluate import Evaluation
    from adar_runtime.graph import Graph
    from adar_runtime.loop.result import Result

Facts = dict[str, str]
"""Name -> text. A name that begins with "(" is only shown in the table."""

MAX_NAMES = 10  # class names that are shown
LONGEST = 200  # characters of a fact
PARTS = ("test", "val", "train")  # the part whose metric says most, first
IN_TABLE = "("  # begins the name of a fact that the line of repr leaves out


def line(kind: str, facts: Mapping[str, str]) -> str:
    """One line for `repr`: the facts without their names."""
    shown = [_one_line(text) for name, text in facts.items() if not name.startswith(IN_TABLE)]
    return f"{kind}({', '.join(shown)})"


def table(title: str, facts: Mapping[str, str]) -> str:
    """All facts as an HTML table."""
    rows = "".join(_row(name.removeprefix(IN_TABLE), text) for name, text in facts.items())
    return f"<table><caption style='text-align:left'><b>{html.escape(title)}</b></caption>{rows}</table>"


def _row(name: str, text: str) -> str:
    """One row. In the table, the name stands beside the text, which need not repeat it."""
    text = text.removeprefix(f"{name} ").removesuffix(f" {name}")
    cells = [html.escape(_one_line(cell)) for cell in (name, text)]
    return "<tr><th {0}>{1}</th><td {0}>{2}</td></tr>".format("style='text-align:left'", *cells)


def graph_facts(graph: "Graph") -> Facts:
    """Sizes, what the labels are, and the first split."""
    facts = {
        "nodes": _counted(graph.nodes, "nodes"),
        "edges": _counted(graph.edges, "edges"),
        "features": _counted(graph.width, "features"),
    }
    if graph.labels is not None or graph.target_features is not None:
        facts["labels"] = predicted(graph.targets, graph.level, regression=graph.regression)
    else:
        facts["labels"] = "no labels"
    masks = {part: getattr(graph, f"{part}_mask") for part in reversed(PARTS)}
    counts = [f"{int(mask[0].sum()):,} {part}" for part, mask in masks.items() if mask is not None]
    if counts:
        facts["split"] = " / ".join(counts)
    return facts | _class_names(graph.class_names)


def manifest_facts(manifest: "Manifest") -> Facts:
    """What an exported model predicts, how well, when it stops, and how exactly it repeats PyTorch."""
    facts = {
        "predicts": predicted(manifest.targets, manifest.level, regression=manifest.regression),
        "features": f"{manifest.features:,} features",
        **training_facts(manifest.training),
        "stop rule": f"stop rule {exit_rule(manifest.exit)}",
        "format": f"{manifest.precision}, opset {manifest.opset}",
    }
    needed = manifest.parity.get("needed")
    if isinstance(needed, float):
        facts["parity"] = f"differs from PyTorch by {needed:.1e}"
    return facts | _class_names(manifest.class_names)


def training_facts(metrics: Mapping[str, Any]) -> Facts:
    """The metric of the part that says most. A stranger may have written the metrics."""
    part = next((part for part in PARTS if isinstance(metrics.get(part), float)), None)
    if part is None:
        return {}
    title = metric_title(str(metrics.get("metric")))
    facts = {"metric": f"{part} {title} {percent(metrics[part])}"}
    facts |= {
        f"{IN_TABLE}{other} {title}": percent(metrics[other])
        for other in PARTS
        if other != part and isinstance(metrics.get(other), float)
    }
    return facts


def result_facts(result: "Result") -> Facts:
    """Sizes, where the predictions come from, and how the loop ended."""
    outputs, classes = result.scores.shape
    what = "numbers" if result.regression else "classes"
    facts = {
        "predictions": _counted(outputs, "predictions"),
        "classes": _counted(classes, what),
        "taken from": f"from t = {result.best_time:.2f} (call {result.best_step:,})",
        "stop reason": result.stop_reason.value,
        "cell calls": f"{result.cell_calls:,} cell calls, budget {result.budget:,}",
        "time": f"{result.seconds:.2f} s on {result.backend}",
    }
    return facts if result.regression else facts | _counts(result)


def evaluation_facts(evaluation: "Evaluation") -> Facts:
    """The metric at the exit of every budget."""
    title = metric_title(evaluation.metric)
    rows = evaluation.budgets()
    facts = {"graph": evaluation.graph, "metric": f"{title} on {evaluation.counted}"} | {
        f"at budget {row['budget']}": f"{percent(row['at_exit'])} at budget {row['budget']}" for row in rows
    }
    return facts | ({"warning": f"warning {'; '.join(evaluation.warnings)}"} if evaluation.warnings else {})


def drift_facts(drift: "Drift") -> Facts:
    """The largest changes, and the alignment."""
    facts = {
        "statistics": _counted(len(drift.changes), "statistics"),
        "PSI": f"largest PSI {drift.score:.3f}",
    }
    if drift.alignment is not None and drift.lowest_alignment is not None:
        facts["alignment"] = f"alignment {drift.alignment:.3g}, lowest expected {drift.lowest_alignment:.3g}"
    largest = [f"{change.name} {change.psi:.3f}" for change in drift.changes[:MAX_NAMES]]
    facts[f"{IN_TABLE}largest changes"] = ", ".join(largest)
    warnings = drift.warnings()
    return facts | ({"warning": f"warning {'; '.join(warnings)}"} if warnings else {})


def _counted(count: int, what: str) -> str:
    """A number with its noun, which is given in the plural."""
    return f"{count:,} {what}" if count != 1 else f"1 {what.removesuffix('es' if what == 'classes' else 's')}"


def _counts(result: "Result") -> Facts:
    """How often each class is predicted, the most frequent first."""
    counts = Counter(result.predictions.tolist()).most_common()
    names = result.class_names or range(result.scores.shape[1])
    shown = [f"{short(names[number], 40)}: {count:,}" for number, count in counts[:MAX_NAMES]]
    more = f" and {len(counts) - MAX_NAMES:,} more" if len(counts) > MAX_NAMES else ""
    return {f"{IN_TABLE}predicted": ", ".join(shown) + more}


def _class_names(names: "tuple[str, ...] | None") -> Facts:
    if not names:
        return {}
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return {f"{IN_TABLE}class names": ", ".join(short(name, 40) for name in names[:MAX_NAMES]) + more}


def _one_line(text: object) -> str:
    """One line without control characters, cut if it is long."""
    line = " ".join(short(text, LONGEST).split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
