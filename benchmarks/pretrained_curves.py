"""Accuracy of the pretrained model by budget, as a table and a picture for the documents.

    python -m benchmarks.pretrained_curves cora-text.npz dblp-text.npz --picture docs/pictures/pretrained.svg

A graph with class descriptions is measured with them, any other graph with five labels of each class and full
moves, whatever hidden labels say.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from adar_deploy.report.charts import Axis, Line, line_chart
from adar_deploy.report.model_sections import PERCENT
from adar_runtime import Bundle, load, read_graph
from benchmarks.pretrained import BUNDLE, tasks
from docs.site.pictures import picture

BUDGETS = (8, 20, 50, 100, 300)


def curve(bundle: Bundle, path: Path, draws: int) -> tuple[str, list[float]]:
    """The first task of a graph, and the mean accuracy of its draws after all steps of each budget."""
    task, drawn = next(tasks(read_graph(path), 5, draws))
    rows = []
    for graph in drawn:
        prepared = replace(bundle.prepare(graph), check=None)
        known = graph.labelled("train")
        assert graph.labels is not None
        hidden = (graph.labels >= 0) if known is None else (graph.labels >= 0) & ~known
        ends = []
        for budget in BUDGETS:
            *_, last = bundle.loop(prepared, budget, "final", "euler")
            ends.append(float((last.scores().argmax(axis=1) == graph.labels)[hidden].mean()))
        rows.append(ends)
    return f"{path.stem}, {task}", [float(mean) for mean in np.mean(rows, axis=0)]


def main() -> None:
    """Print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="+", type=Path)
    parser.add_argument("--bundle", type=Path, default=BUNDLE)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--picture", type=Path, required=True)
    given = parser.parse_args()
    bundle = load(given.bundle, threads=1)
    sys.stdout.write(f"| graph | {' | '.join(map(str, BUDGETS))} |\n|{'---|' * (len(BUDGETS) + 1)}\n")
    lines = []
    for number, path in enumerate(given.graphs):
        name, found = curve(bundle, path, given.draws)
        sys.stdout.write(f"| {name} | {' | '.join(f'{100 * each:.1f}' for each in found)} |\n")
        sys.stdout.flush()
        lines.append(Line(name, list(zip(BUDGETS, found, strict=True)), tone=number, dots=True))
    title = "Accuracy of the pretrained model by budget"
    axes = Axis("budget, steps", log=True), Axis("accuracy", show=PERCENT.show)
    chart = line_chart(lines, *axes, title=title, size=(640, 300))
    given.picture.write_text(picture({title: chart}, title))


if __name__ == "__main__":
    main()
