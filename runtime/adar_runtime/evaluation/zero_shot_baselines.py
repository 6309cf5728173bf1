"""Zero-shot baselines without training: cosine similarity of node features and target features."""

from collections.abc import Callable
from functools import partial

import numpy as np

from adar_runtime.errors import GraphError
from adar_runtime.graph import Floats, Graph
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.in_context.features import unit_rows

COLUMNS = 32  # columns averaged at a time, so that an edge takes 128 bytes instead of 4 f


def cosine(graph: Graph) -> Floats:
    """Cosine similarities [n, c] of node features and target features."""
    return cosines(graph.rows(0, graph.nodes), _descriptions(graph))


def smoothed_cosine(graph: Graph, rounds: int = 2, *, centred: bool = False) -> Floats:
    """Like `cosine`, after `rounds` of averaging over each node and its neighbours.

    `centred` subtracts the mean node from the nodes and the mean target from the targets. This removes what
    all texts have in common.
    """
    nodes, targets = graph.rows(0, graph.nodes), _descriptions(graph)
    for _ in range(rounds):
        nodes = average(graph, nodes)
    if centred:
        nodes, targets = nodes - nodes.mean(axis=0), targets - targets.mean(axis=0)
    return cosines(nodes, targets)


def average(graph: Graph, values: Floats) -> Floats:
    """Means [n, f] of values [n, f] over each node and its neighbours."""
    loops = np.tile(np.arange(graph.nodes), (2, 1))
    closed = Neighbours.of(np.concatenate([graph.edge_index, loops], axis=1), graph.nodes)
    sums: list[Floats] = [
        # Self-loops keep every neighbour list non-empty: reduceat gives wrong sums for empty ones.
        np.add.reduceat(values[closed.sources, start : start + COLUMNS], closed.starts[:-1], axis=0)
        for start in range(0, values.shape[1], COLUMNS)
    ]
    count: Floats = closed.counts.astype(np.float32)[:, None]
    return np.concatenate(sums, axis=1) / count


def _descriptions(graph: Graph) -> Floats:
    if graph.target_features is None:
        raise GraphError(
            "the graph has no class descriptions (target_x), which the cosine baselines need: "
            "add them, or train a model"
        )
    return graph.target_features


def cosines(nodes: Floats, targets: Floats) -> Floats:
    """Cosine similarities [n, c] of every row of `nodes` with every row of `targets`."""
    return unit_rows(nodes) @ unit_rows(targets).T


TRAINING_FREE: dict[str, Callable[[Graph], Floats]] = {
    "cosine": cosine,
    "smoothed-cosine": smoothed_cosine,
    "centred-smoothed-cosine": partial(smoothed_cosine, centred=True),
}
"""Baselines for graphs with class descriptions, by name. A useful model has to beat them."""
