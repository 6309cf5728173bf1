"""Zero-shot without a model: the cosine of what a node says with what each target says."""

from collections.abc import Callable
from functools import partial

import numpy as np

from adar_runtime.errors import GraphError
from adar_runtime.graph import Floats, Graph
from adar_runtime.graph.neighbours import Neighbours

COLUMNS = 32  # columns averaged at a time: an edge then takes 128 bytes, not 4 f


def cosine(graph: Graph) -> Floats:
    """Cosines [n, c] of the node features with the target features."""
    return cosines(graph.rows(0, graph.nodes), _descriptions(graph))


def smoothed_cosine(graph: Graph, rounds: int = 2, *, centred: bool = False) -> Floats:
    """The same after `rounds` of averaging over each node and its neighbours.

    `centred` subtracts the nodes' mean from the nodes and the targets' mean from the targets, which
    removes what all texts have in common.
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
        # No list is empty, for each node is in its own: reduceat would get an empty one wrong.
        np.add.reduceat(values[closed.sources, start : start + COLUMNS], closed.starts[:-1], axis=0)
        for start in range(0, values.shape[1], COLUMNS)
    ]
    count: Floats = closed.counts.astype(np.float32)[:, None]
    return np.concatenate(sums, axis=1) / count


def _descriptions(graph: Graph) -> Floats:
    if graph.target_features is None:
        raise GraphError(
            "the graph has no descriptions of its classes (target_x), and cosine compares with those: "
            "add them, or train a model"
        )
    return graph.target_features


def cosines(nodes: Floats, targets: Floats) -> Floats:
    """Of every row with every row, [n, c]."""
    return _unit(nodes) @ _unit(targets).T


def _unit(rows: Floats) -> Floats:
    """Rows of length 1; a row of zeros stays one, at cosine 0 with everything."""
    length: Floats = np.linalg.norm(rows, axis=1, keepdims=True)
    length[length == 0] = 1
    return rows / length


TRAINING_FREE: dict[str, Callable[[Graph], Floats]] = {
    "cosine": cosine,
    "smoothed-cosine": smoothed_cosine,
    "centred-smoothed-cosine": partial(smoothed_cosine, centred=True),
}
"""Scores that cost nothing, for graphs with described targets. A model has to beat them to be of use."""
