"""Judge a pretrained bundle on sets of classes of graphs with descriptions, without a look at a test graph.

    python -m benchmarks.pretrained_validation arxiv-2023-text.npz dblp-text.npz

Each graph is measured as a whole, on random sets of its classes with all their nodes, and on episodes as in
training, beside the free baseline and the closed-form start.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from adar_runtime import Bundle, Graph, load, read_graph
from adar_runtime.evaluation.zero_shot_baselines import smoothed_cosine
from adar_runtime.graph import Floats
from adar_train.data.episodes import EpisodeSource
from benchmarks.pretrained import BUNDLE

STEPS = 8
SMALLEST_CLASS = 90  # nodes of a class in a set
LARGEST_SHARE, MOST_NODES = 0.75, 9_000  # of the largest class of a set, and of all its classes
EPISODE_NODES = (600, 2000)


def accuracies(bundle: Bundle, graph: Graph) -> list[float]:
    """Accuracies in percent of the free baseline, of the start and after STEPS steps."""

    def accuracy(scores: Floats) -> float:
        return 100 * float((scores.argmax(axis=1) == graph.labels).mean())

    path = [accuracy(step.scores()) for step in bundle.loop(graph, STEPS, "final", "euler")]
    return [accuracy(smoothed_cosine(graph, centred=True)), path[0], path[-1]]


def class_sets(source: EpisodeSource, random: np.random.Generator, most: int = MOST_NODES) -> Iterator[Graph]:
    """Sets of three to ten classes (of small graphs: two or more), with all of their at most `most` nodes."""
    labels, count = source.graph.labels, source.graph.targets
    assert labels is not None
    sizes = np.bincount(labels.astype(np.int64), minlength=count)
    usable = np.flatnonzero(sizes >= SMALLEST_CLASS)
    if len(usable) < 2:
        raise SystemExit(f"fewer than two classes have {SMALLEST_CLASS} nodes")
    low, high = max(2, min(3, count - 2)), min(10, len(usable))
    while True:
        drawn = random.choice(usable, int(random.integers(low, high + 1)), replace=False)
        total = sizes[drawn].sum()
        if total <= most and sizes[drawn].max() <= LARGEST_SHARE * total:
            yield source.of_classes(np.sort(drawn))


def main() -> None:
    """Print one line of the table for each graph and kind of problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="+", type=Path, help="graph files with class descriptions")
    parser.add_argument("--bundle", type=Path, default=BUNDLE)
    parser.add_argument("--sets", type=int, default=30, help="problems of each kind")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    bundle = load(given.bundle, threads=1)
    sys.stdout.write(f"| graph | problems | free | start | {STEPS} steps | worst gain |\n|{'---|' * 6}\n")
    for path in given.graphs:
        graph = replace(read_graph(path), train_mask=None, val_mask=None, test_mask=None)
        source, random = EpisodeSource(graph, np.arange(graph.nodes)), np.random.default_rng(given.seed)
        kinds = {
            "whole": [graph],
            "sets of classes": islice(class_sets(source, random), given.sets),
            "patches": (source.draw(random, EPISODE_NODES, patches=True) for _ in range(given.sets)),
            "one patch": (source.draw(random, EPISODE_NODES) for _ in range(given.sets)),
        }
        for kind, problems in kinds.items():
            rows = np.array([accuracies(bundle, problem) for problem in problems])
            cells = " | ".join(f"{mean:.1f}" for mean in rows.mean(axis=0))
            worst = (rows[:, 2] - rows[:, 1]).min()
            sys.stdout.write(f"| {path.stem} | {kind} | {cells} | {worst:+.1f} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
