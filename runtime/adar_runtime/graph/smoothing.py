"""Smoothing: the propagation of GCN, applied to the nodes between the encoder and the first step of the loop.

One round multiplies the nodes by S = D^-1/2 (A + I) D^-1/2, where D has the row sums of A + I: a node becomes
a mean of itself and its incoming neighbours; neighbours with many neighbours of their own count less. With
edge weights, A has the weights. A node without neighbours does not change. Smoothing runs once per graph, in
numpy, for every backend. A round needs the rows of the direct neighbours only, like a step of the cell.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adar_runtime.graph import Floats, Integers
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.interruption import interruption_point

MAX_ROUNDS = 8  # after that many rounds, the nodes of a connected graph are nearly equal
EDGES_AT_ONCE = 8192  # their rows fit into the processor's cache: three times as fast as all edges at once


@dataclass(frozen=True)
class Smoothing:
    """The number of rounds and the edges of one graph; no round leaves the nodes as they are.

    Examples:
        >>> pair = Neighbours.of(np.array([[0, 1], [1, 0]]), nodes=2)
        >>> Smoothing(pair, rounds=1)(np.array([[0.0], [4.0]], np.float32)).tolist()
        [[2.0], [2.0]]
    """

    neighbours: Neighbours
    rounds: int

    def __call__(self, nodes: Floats, on_round: Callable[[Floats], None] = lambda _: None) -> Floats:
        """The smoothed nodes [n, d]. `on_round` receives D^-1/2 · nodes before each round."""
        root = np.sqrt(self.neighbours.share)  # D^-1/2, [n, 1]
        for _ in range(self.rounds):
            scaled = root * nodes
            on_round(scaled)
            nodes = root * (neighbour_sums(self.neighbours, scaled) + scaled)
        return nodes


def neighbour_sums(neighbours: Neighbours, rows: Floats) -> Floats:
    """The (weighted) sum of the rows of each node's neighbours, [n, d]. There may be more rows than nodes."""
    starts, sums = neighbours.starts, np.zeros((neighbours.nodes, rows.shape[1]), rows.dtype)
    for first, last in _blocks(starts):
        interruption_point()
        filled = first + np.flatnonzero(starts[first + 1 : last + 1] > starts[first:last])
        if len(filled):
            edges = slice(starts[first], starts[last])
            gathered = rows[neighbours.sources[edges]]
            if neighbours.weights is not None:
                gathered *= neighbours.weights[edges, None]
            sums[filled] = np.add.reduceat(gathered, starts[filled] - starts[first], axis=0)
    return sums


def _blocks(starts: Integers) -> list[tuple[int, int]]:
    """Spans of nodes that have at most `EDGES_AT_ONCE` edges together, or one node that has more."""
    spans, first, nodes = [], 0, len(starts) - 1
    while first < nodes:
        fitting = int(np.searchsorted(starts, starts[first] + EDGES_AT_ONCE, side="right")) - 1
        last = min(max(first + 1, fitting), nodes)
        spans.append((first, last))
        first = last
    return spans
