"""Edges -> the layout that a cell sums over. Built once per graph, on the host, in O(m log m)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Neighbours:
    """For each node its neighbours: sources[starts[v] : starts[v + 1]].

    A neighbourhood is a set, as in the paper (A_ij is 0 or 1): an edge given twice counts once. A
    self-loop makes a node its own neighbour. Messages flow from an edge's source to its target.
    """

    starts: NDArray[np.int64]  # [n + 1]
    sources: NDArray[np.int64]  # [m]

    @classmethod
    def of(cls, edge_index: NDArray[np.integer], nodes: int) -> "Neighbours":
        """Group the edges [2, m] (row 0 source, row 1 target) by target."""
        source, target = edge_index.astype(np.int64)
        edges = np.sort(target * nodes + source)  # np.unique hashes, which is many times slower
        edges = edges[np.diff(edges, prepend=-1) != 0]
        counts = np.bincount(edges // nodes, minlength=nodes)
        return cls(np.concatenate([[0], np.cumsum(counts)]), edges % nodes)

    @property
    def nodes(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """|N(v)| for each node."""
        return np.diff(self.starts)

    @property
    def targets(self) -> NDArray[np.int64]:
        """The receiving node of each edge [m], ascending."""
        return np.repeat(np.arange(self.nodes), self.counts)

    @property
    def share(self) -> NDArray[np.float32]:
        """1 / (|N(v)| + 1) of Eq. local-mp, [n, 1]."""
        return (1.0 / (self.counts + 1.0)).astype(np.float32)[:, None]

    def reversed(self) -> "Neighbours":
        """The same edges, each turned round: what a gradient flows along."""
        return Neighbours.of(np.stack([self.targets, self.sources]), self.nodes)
