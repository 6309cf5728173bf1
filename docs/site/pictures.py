"""Draws the pictures of the documents from a bundle and a graph with labels.

python -m docs.site.pictures build/demo/bundle build/demo/runs/minesweeper/graph.pt
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from adar_deploy.formatting import metric_title
from adar_deploy.report.charts import Axis, Line, Mark, line_chart, svg
from adar_deploy.report.model_sections import PERCENT
from adar_deploy.report.page import style
from adar_runtime import Bundle, Converged, Final, Graph, Peak, load, read_graph
from adar_runtime.evaluation.curves import Curve
from adar_runtime.evaluation.evaluate import Evaluation, evaluate
from adar_runtime.loop.stopping import AtTime, StopRule

FOLDER = Path(__file__).parents[1] / "pictures"
BUDGETS = (8, 12, 20, 50, 100, 200, 300)
SHOWN = (8, 50, 300)
GAP, HEAD = 24, 30


def main() -> None:
    """Measure once, then draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("graph", type=Path)
    given = parser.parse_args()
    bundle, graph = load(given.bundle), read_graph(given.graph)
    found = measured(bundle, graph)
    FOLDER.mkdir(exist_ok=True)
    for name, drawing in {
        "alignment": alignment(found),
        "budget": budget(found),
        "exit": exits(found),
        "solver": solvers(bundle),
        "bundle": parts(),
    }.items():
        (FOLDER / f"{name}.svg").write_text(drawing)


def measured(bundle: Bundle, graph: Graph) -> Evaluation:
    """Score every step of every budget on the test labels."""
    return evaluate("graph", [graph], bundle.subject(), BUDGETS, bundle.split_for(graph))


def alignment(found: Evaluation) -> str:
    """Draw the metric and the alignment of three budgets, with the step where the bundle stops."""
    shown = [i for i, curve in enumerate(found.curves) if curve.budget in SHOWN]
    name = metric_title(found.metric)

    def over_time(y: Axis, values: Sequence[Sequence[float]]) -> str:
        lines, marks = [], []
        for rank, i in enumerate(shown):
            curve, step = found.curves[i], found.exits[i].step
            points = list(zip(curve.times, values[i], strict=True))
            lines.append(Line(f"{curve.budget} steps", points, shade=rank / (len(shown) - 1)))
            marks.append(Mark(rank, points[step], f"result from step {step}"))
        t = Axis("t = step / budget", bounds=(0, 1))
        return line_chart(lines, t, y, marks, title=y.label, size=(420, 280))

    scored = [curve.metric(found.part) for curve in found.curves]
    metric = over_time(Axis(f"test {name}", show=PERCENT.show), scored)
    watched = over_time(Axis("alignment"), [curve.alignment for curve in found.curves])
    return picture(
        {f"{name} at every step; ○ the stop": metric, "Alignment, which needs no labels": watched},
        "The same weights with budgets of 8, 50 and 300 steps: metric and alignment against t",
    )


def budget(found: Evaluation) -> str:
    """Draw the metric at the step of the bundle's stop rule by budget."""
    points = [(row["budget"], row["at_exit"]) for row in found.budgets()]
    name = metric_title(found.metric)
    chart = line_chart(
        [Line("", points, dots=True)],
        Axis("budget, steps", log=True),
        Axis(f"test {name}", show=PERCENT.show),
        title=name,
        size=(640, 300),
    )
    return picture({f"{name} by budget, one set of weights": chart}, f"{name} against the budget")


def exits(found: Evaluation) -> str:
    """Draw where each rule stops on the second half of the largest budget's curve."""
    curve: Curve = max(found.curves, key=lambda curve: curve.budget)
    start = len(curve.times) // 2
    points = list(zip(curve.times, curve.alignment, strict=True))
    rules: dict[str, StopRule] = {
        "peak": Peak(),
        "converged": Converged(0.05),
        "time": AtTime(0.7),
        "final": Final(),
    }
    lines = [Line("", points[start:], shade=1.0)]
    marks = []
    for tone, (name, rule) in enumerate(rules.items()):
        step = curve.answer_step(rule)
        lines.append(Line(f"{name}, step {step}", [points[step]], tone=tone))
        marks.append(Mark(tone + 1, points[step], f"{name}: result from step {step}"))
    size = (640, 300)
    chart = line_chart(lines, Axis("t"), Axis("alignment"), marks, title="Where each rule stops", size=size)
    title = f"Where each rule takes its result: {curve.budget} steps, the second half"
    return picture({title: chart}, title)


def solvers(bundle: Bundle) -> str:
    """Draw what export measured: distance from the result of 300 Euler steps by cell calls."""
    trials = bundle.manifest.convergence["trials"]
    names = list(dict.fromkeys(trial["solver"] for trial in trials))
    lines = [
        Line(
            name, sorted((t["calls"], t["change"]) for t in trials if t["solver"] == name), tone=i, dots=True
        )
        for i, name in enumerate(names)
    ]
    calls = [trial["calls"] for trial in trials]
    lines.append(Line("allowed", [(min(calls), 1e-3), (max(calls), 1e-3)], dotted=True))
    chart = line_chart(
        lines,
        Axis("cell calls", log=True),
        Axis("distance", log=True, show=PERCENT.show),
        title="Solvers",
        size=(640, 300),
    )
    title = f"Distance from the result of {bundle.manifest.convergence['reference']} Euler steps"
    return picture({title: chart}, title)


def parts() -> str:
    """Draw the three ONNX models of a bundle, and the loop of the runtime."""
    boxes = [
        (20, "encoder.onnx", ("features →", "first state")),
        (240, "cell.onnx", ("state, neighbours, t →", "next state, alignment")),
        (500, "head.onnx", ("state →", "scores")),
    ]
    drawn = []
    for x, name, lines in boxes:
        width = 160 if name != "cell.onnx" else 200
        drawn.append(f'<rect class="box" x="{x}" y="52" width="{width}" height="76" rx="8"/>')
        drawn.append(_text(x + width / 2, 78, name, "strong"))
        for row, line in enumerate(lines):
            drawn.append(_text(x + width / 2, 98 + 17 * row, line))
    arrows = ["M180 90 H236", "M440 90 H496", "M380 52 C380 8 300 8 300 48"]
    drawn += [f'<path class="arrow" d="{path}" marker-end="url(#head)"/>' for path in arrows]
    drawn += [
        _text(100, 150, "once"),
        _text(340, 150, "once per step"),
        _text(580, 150, "once"),
    ]
    title = "A bundle: three ONNX models and a manifest"
    return picture({title: svg([ARROW, *drawn], 680, 162, title)}, title)


def _text(x: float, y: float, text: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="middle">{text}</text>'


ARROW = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path class="tip" d="M0 0 L10 5 L0 10 z"/></marker></defs>'
)
OWN = (
    ".paper{fill:var(--paper);stroke:var(--rule)}.strong{fill:var(--ink);font-weight:600}"
    ".box{fill:var(--raised);stroke:var(--tone-0);stroke-width:1.5}.tip{fill:var(--soft)}"
    ".arrow{stroke:var(--soft);stroke-width:1.5;fill:none}"
)


def picture(panels: dict[str, str], title: str) -> str:
    """Drawings side by side on a card that works in light and dark."""
    placed, x, tallest = [], float(GAP), 0.0
    for caption, drawing in panels.items():
        found = re.search(r'viewBox="0 0 (\S+) (\S+)"', drawing)
        assert found is not None
        width, height = map(float, found.groups())
        place = f'x="{x:g}" y="{HEAD + 12}" width="{width:g}" height="{height:g}"'
        inner = drawing.replace("<svg ", f"<svg {place} ", 1)
        placed += [f'<text class="strong" x="{x + 4:g}" y="{HEAD}">{caption}</text>', inner]
        x, tallest = x + width + GAP, max(tallest, height)
    size = (x, HEAD + 12 + tallest + 14)
    card = f'<rect class="paper" x="0.5" y="0.5" width="{size[0] - 1:g}" height="{size[1] - 1:g}" rx="10"/>'
    sheet = re.sub(r"@media print \{.*?\n\}\n", "", style("charts.css"), flags=re.DOTALL)
    drawn = svg([f"<style>{sheet}{OWN}</style>", card, *placed], *size, title)
    return drawn.replace("<svg ", f'<svg width="{size[0]:g}" height="{size[1]:g}" ', 1) + "\n"


if __name__ == "__main__":
    main()
