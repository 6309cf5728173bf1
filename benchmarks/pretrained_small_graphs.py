"""Many small graphs with the pretrained model: in batches against one by one.

The graphs are generated block models with different numbers of nodes, classes and columns. All sides run in
turns in one process, and the largest difference of their scores is printed. Each line has the median
processor time of a graph and its ratio to the first line, with the range over the repeats.

    python -m benchmarks.pretrained_small_graphs --graphs 200
    python -m benchmarks.pretrained_small_graphs --graphs 60 --labels
"""

import argparse
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np

import adar_deploy
from adar_runtime import Bundle, Graph
from adar_train.data.context_episodes import block_model
from benchmarks.small_graphs import compare

SMALLEST, LARGEST = 10, 60  # nodes
LABELS = 0.2  # share of the nodes whose label is known


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--labels", action="store_true", help="a fifth of the labels are known")
    options = parser.parse_args()
    bundle = adar_deploy.pretrained(threads=1)
    single = copy(bundle)
    single.small_graphs = None
    graphs = [_graph(seed, labelled=options.labels) for seed in range(options.graphs)]
    print(f"{len(graphs)} graphs, {np.mean([graph.nodes for graph in graphs]):.1f} nodes on average")
    sides: dict[str, Callable[[], object]] = {
        "one by one": partial(_one_by_one, single, graphs),
        "in batches": partial(_in_batches, bundle, graphs),
        "one by one, only prepared": partial(_prepared, single, graphs),
    }
    compare({name: (action, len(graphs)) for name, action in sides.items()}, options.repeats)
    pairs = zip(_one_by_one(single, graphs), _in_batches(bundle, graphs), strict=True)
    print(f"largest relative difference of scores: {max(_difference(*pair) for pair in pairs):.1e}")


def _graph(seed: int, *, labelled: bool) -> Graph:
    random = np.random.default_rng(seed)
    graph = block_model(random, int(random.integers(SMALLEST, LARGEST + 1)))
    mask = np.arange(graph.nodes) < max(4, round(LABELS * graph.nodes))
    return replace(graph, train_mask=mask) if labelled else graph


def _one_by_one(bundle: Bundle, graphs: Sequence[Graph]) -> list[np.ndarray]:
    return [bundle.run(graph).scores for graph in graphs]


def _in_batches(bundle: Bundle, graphs: Sequence[Graph]) -> list[np.ndarray]:
    return [result.scores for result in bundle.run_many(graphs)]


def _prepared(bundle: Bundle, graphs: Sequence[Graph]) -> list[object]:
    return [bundle.prepare(graph) for graph in graphs]


def _difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max() / np.abs(one).max())


if __name__ == "__main__":
    main()
