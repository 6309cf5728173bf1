"""Judge the closed-form start of the pretrained model on validation problems, without a look at a test graph.

    python -m benchmarks.pretrained_start ../shared/data

Prints accuracies in percent for each kind of problem: the best free baseline (chosen by the test labels), the
start and, with --bundle, the model after 8 steps as hidden labels chose, and with full moves. Each task ends
with the mean of its kinds and the worst difference to the column before. The problems are drawn once and kept
in --kept, so another revision of the start is measured on the same problems.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from adar_runtime import Bundle, Graph, load
from adar_runtime.graph import Floats
from adar_runtime.in_context.start import free_scores, known_labels, start
from benchmarks.pretrained_problems import ProblemFolder

COLUMNS, STEPS = 64, 8
TASKS = ("descriptions", "labels", "both")


def accuracies(graph: Graph, bundle: Bundle | None) -> list[float]:
    """Accuracies of the best free baseline, of the start and, with a bundle, after STEPS steps."""
    hidden = known_labels(graph) < 0

    def accuracy(scores: Floats) -> float:
        return 100 * float((scores.argmax(axis=1) == graph.labels)[hidden].mean())

    free = max(accuracy(scores) for scores in free_scores(graph, COLUMNS))
    if bundle is None:
        return [free, accuracy(start(graph, COLUMNS).scores)]
    prepared = bundle.prepare(graph)
    path = [accuracy(step.scores()) for step in bundle.loop(prepared, STEPS, "final", "euler")]
    whole = path[-1]
    if prepared.check is not None and prepared.check.strength < 1:
        *_, last = bundle.loop(replace(prepared, check=None), STEPS, "final", "euler")
        whole = accuracy(last.scores())
    return [free, path[0], path[-1], whole]


def main() -> None:
    """Print one line of the table for each kind of problem, and two for each task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with the graph files, and with more/")
    parser.add_argument("--kept", type=Path, default=Path("build/pretrained_problems"))
    parser.add_argument("--bundle", type=Path, help="also run this bundle")
    parser.add_argument("--task", choices=TASKS, action="append", help="default: all")
    given = parser.parse_args()
    bundle = load(given.bundle, threads=1) if given.bundle else None
    names = ["free", "start"] + ([f"{STEPS} steps", "unchecked"] if bundle else [])
    sys.stdout.write(f"| task | problems | {' | '.join(names)} |\n|{'---|' * (len(names) + 2)}\n")
    folder = ProblemFolder(given.data, given.kept)
    kinds = dict(zip(TASKS, (folder.described, folder.labelled, folder.both), strict=True))
    for task in given.task or TASKS:
        means = []
        for problems in kinds[task]():
            rows = [accuracies(graph, bundle) for graph in problems.graphs]
            means.append(np.mean(rows, axis=0))
            _print(task, f"{problems.kind} ({len(rows)})", means[-1])
        _print(task, "mean", np.mean(means, axis=0))
        _print(task, "worst gain", np.diff(means, axis=1, prepend=np.nan).min(axis=0))


def _print(task: str, kind: str, values: np.ndarray) -> None:
    cells = " | ".join("–" if np.isnan(value) else f"{value:.1f}" for value in values)
    sys.stdout.write(f"| {task} | {kind} | {cells} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
