"""Measure the pretrained model on graphs that it was not trained on, beside free baselines and a GCN.

    python -m benchmarks.pretrained dblp-text.npz amazon-computers.npz

Each graph is measured with its class descriptions, if it has any, with a few labels per class (mean of
several draws), and with both. All scores are accuracies on the nodes whose labels the model does not see.
"free" is the free baseline whose mean over the draws is highest.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch

from adar_runtime import Bundle, Graph, load, read_graph
from adar_runtime.evaluation.zero_shot_baselines import smoothed_cosine
from adar_runtime.graph import Floats, Mask
from adar_runtime.in_context.start import free_scores
from benchmarks.pretrained_gcn import gcn_scores

BUNDLE = Path(__file__).parents[1] / "adar_deploy" / "pretrained"
SHORT, LONG = 8, 300


@dataclass(frozen=True)
class Row:
    """Accuracies in percent."""

    start: float  # the closed-form start that leave-one-out chose: the model with gates of zero
    short: float  # after SHORT steps
    long: float  # after LONG steps, or --steps
    whole: float  # the same with full moves, whatever hidden labels say
    strength: float  # of the moves, which hidden labels chose; 1 is full
    peak: float  # loss by stopping at the peak of the alignment instead of the best step
    gcn: float  # trained on the same labels


def few_labels(graph: Graph, count: int, seed: int) -> Graph:
    """The graph with `count` known labels of each class."""
    assert graph.labels is not None
    random, mask = np.random.default_rng(seed), np.zeros(graph.nodes, np.bool_)
    for number in range(graph.targets):
        mask[random.permutation(np.flatnonzero(graph.labels == number))[:count]] = True
    return replace(graph, train_mask=mask, val_mask=None, test_mask=None)


def measure(bundle: Bundle, graph: Graph, *, steps: int, with_gcn: bool) -> tuple[list[float], Row]:
    """Measure the free baselines and the model. The labels of train_mask are given; all others are scored."""
    labels = graph.labels
    assert labels is not None
    known = graph.labelled("train")
    hidden: Mask = (labels >= 0) if known is None else (labels >= 0) & ~known

    def accuracy(scores: Floats) -> float:
        return 100 * float((scores.argmax(axis=1) == labels)[hidden].mean())

    free = [accuracy(scores) for scores in free_scores(graph, bundle.manifest.features)]
    if graph.target_features is not None:
        free.append(accuracy(smoothed_cosine(graph, centred=True)))
    prepared = bundle.prepare(graph)
    short = [accuracy(step.scores()) for step in bundle.loop(prepared, SHORT, "final", "euler")]
    path, alignment = [], []
    for step in bundle.loop(prepared, steps, "final"):
        path.append(accuracy(step.scores()))
        alignment.append(step.alignment)
    peak = max(path) - path[int(np.argmax(alignment))]
    whole, strength = path[-1], 1.0 if prepared.check is None else prepared.check.strength
    if strength < 1:
        *_, last = bundle.loop(replace(prepared, check=None), steps, "final")
        whole = accuracy(last.scores())
    gcn = accuracy(gcn_scores(graph)) if with_gcn and known is not None else float("nan")
    return free, Row(path[0], short[-1], path[-1], whole, strength, peak, gcn)


def tasks(graph: Graph, count: int, draws: int, first: int = 0) -> Iterator[tuple[str, list[Graph]]]:
    """The tasks of a graph, each with its draws of labels."""
    unlabelled = replace(graph, train_mask=None, val_mask=None, test_mask=None)
    drawn = [few_labels(graph, count, seed) for seed in range(first, first + draws)]
    if graph.target_features is not None:
        yield "descriptions", [unlabelled]
    yield f"{count} labels", [replace(one, target_features=None) for one in drawn]
    if graph.target_features is not None:
        yield "both", drawn


def main() -> None:
    """Print one line of the table for each graph and task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="+", type=Path)
    parser.add_argument("--bundle", type=Path, default=BUNDLE)
    parser.add_argument("--labels", type=int, default=5)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--first-draw", type=int, default=0, help="seed of the first draw of labels")
    parser.add_argument("--steps", type=int, default=LONG, help="of the longer run")
    parser.add_argument("--gcn", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args()
    bundle = load(given.bundle, threads=1)
    torch.set_num_threads(1)
    names = ["free", *(field.name for field in fields(Row))]
    sys.stdout.write(f"| graph | task | {' | '.join(names)} |\n|{'---|' * (len(names) + 2)}\n")
    for path in given.graphs:
        graph = read_graph(path)
        for task, drawn in tasks(graph, given.labels, given.draws, given.first_draw):
            found = (measure(bundle, one, steps=given.steps, with_gcn=given.gcn) for one in drawn)
            free, rows = zip(*found, strict=True)
            means = [np.mean(free, axis=0).max(), *np.mean([astuple(row) for row in rows], axis=0)]
            cells = " | ".join("–" if np.isnan(mean) else f"{mean:.1f}" for mean in means)
            sys.stdout.write(f"| {path.stem} | {task} | {cells} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
