"""Judge the closed-form start of the pretrained model on validation problems, without a look at a test graph.

    python -m benchmarks.pretrained_start ../shared/data

Prints accuracies in percent for each kind of problem: the free baseline that is best on this kind, the start
and, for each --bundle, the model after 8 steps as hidden labels chose, and with full moves. Each task
ends with the mean of its kinds and the worst difference: of the start to the baseline, of a bundle to the
start. The problems are drawn once and kept in --kept, so another revision of the start is measured on the
same problems. Several bundles share the start of each problem.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from adar_runtime import Bundle, Graph, load
from adar_runtime.bundle.label_checks import PlacedGraph, check_moves
from adar_runtime.graph import Floats
from adar_runtime.in_context.start import free_scores, known_labels, start
from benchmarks.pretrained_problems import ProblemFolder

COLUMNS, STEPS = 64, 8
TASKS = ("descriptions", "labels", "both")


def accuracies(graph: Graph, bundles: Sequence[Bundle]) -> tuple[list[float], list[float]]:
    """Accuracies of all free baselines; and of the start, with two for each bundle after STEPS steps."""
    hidden = known_labels(graph) < 0

    def accuracy(scores: Floats) -> float:
        return 100 * float((scores.argmax(axis=1) == graph.labels)[hidden].mean())

    free = [accuracy(scores) for scores in free_scores(graph, COLUMNS)]
    if not bundles:
        return free, [accuracy(start(graph, COLUMNS).scores)]
    placed = PlacedGraph.of(graph, bundles[0].manifest, by_row=bundles[0].by_row)
    found: list[float] = []
    parts = list(placed.parts())
    for bundle in bundles:
        prepared = check_moves(bundle, placed, parts)
        path = [accuracy(step.scores()) for step in bundle.loop(prepared, STEPS, "final", "euler")]
        whole = path[-1]
        if prepared.check is not None and prepared.check.strength < 1:
            *_, last = bundle.loop(replace(prepared, check=None), STEPS, "final", "euler")
            whole = accuracy(last.scores())
        found += [path[-1], whole] if found else [path[0], path[-1], whole]
    return free, found


def main() -> None:
    """Print one line of the table for each kind of problem, and two for each task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with the graph files, and with more/")
    parser.add_argument("--kept", type=Path, default=Path("build/pretrained_problems"))
    parser.add_argument("--bundle", type=Path, action="append", default=[], help="also run this bundle")
    parser.add_argument("--task", choices=TASKS, action="append", help="default: all")
    given = parser.parse_args()
    bundles = [load(path, threads=1) for path in given.bundle]
    of_bundles = (name for path in given.bundle for name in (f"{path.name}, {STEPS} steps", "unchecked"))
    names = ["free", "start", *of_bundles]
    sys.stdout.write(f"| task | problems | {' | '.join(names)} |\n|{'---|' * (len(names) + 2)}\n")
    folder = ProblemFolder(given.data, given.kept)
    kinds = dict(zip(TASKS, (folder.described, folder.labelled, folder.both), strict=True))
    for task in given.task or TASKS:
        means = []
        for problems in kinds[task]():
            free, own = zip(*(accuracies(graph, bundles) for graph in problems.graphs), strict=True)
            means.append([np.mean(free, axis=0).max(), *np.mean(own, axis=0)])
            _print(task, f"{problems.kind} ({len(own)})", means[-1])
        _print(task, "mean", np.mean(means, axis=0))
        found = np.array(means)
        before = found[:, [0, 0] + [1] * (found.shape[1] - 2)]
        _print(task, "worst gain", (found - before).min(axis=0))


def _print(task: str, kind: str, values: Iterable[float]) -> None:
    cells = " | ".join("–" if np.isnan(value) else f"{value:.1f}" for value in values)
    sys.stdout.write(f"| {task} | {kind} | {cells} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
