"""Incoming neighbours of every node, as one array (CSR). Built once per graph in O(m log m).

Example: the edges 1→0, 2→0, 0→2, 1→2 and, given twice, 2→0 on 4 nodes:

    node      0      1    2      3
    sources   1 2         0 1           [1, 2, 0, 1]
    starts    0      2    2      4  4   [0, 2, 2, 4, 4]

The neighbours of node v are sources[starts[v] : starts[v + 1]]. Nodes 1 and 3 have none.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Neighbours:
    """Incoming neighbours of every node: messages flow from an edge's source to its target.

    A neighbourhood is a set, as in the paper (A_ij is 0 or 1): repeated edges count once. A self-loop makes
    a node its own neighbour.

    Attributes:
        starts: [n + 1], the position of each node's first neighbour in `sources`.
        sources: [m], the neighbours of node 0, of node 1 and so on, ascending for each node.

    Examples:
        >>> neighbours = Neighbours.of(np.array([[1, 2, 0, 1, 2], [0, 0, 2, 2, 0]]), nodes=4)
        >>> neighbours.sources.tolist(), neighbours.starts.tolist()
        ([1, 2, 0, 1], [0, 2, 2, 4, 4])
    """

    starts: NDArray[np.int64]
    sources: NDArray[np.int64]

    @classmethod
    def of(cls, edge_index: NDArray[np.integer], nodes: int) -> "Neighbours":
        """Group the edges [2, m] (row 0 source, row 1 target) by target."""
        source, target = edge_index.astype(np.int64)
        edges = np.sort(target * nodes + source)  # many times faster than np.unique, which hashes
        edges = edges[np.diff(edges, prepend=-1) != 0]
        counts = np.bincount(edges // nodes, minlength=nodes)
        return cls(np.concatenate([[0], np.cumsum(counts)]), edges % nodes)

    @property
    def nodes(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """In-degrees |N(v)|, [n]."""
        return np.diff(self.starts)

    @property
    def targets(self) -> NDArray[np.int64]:
        """The target of each edge, ascending, [m]."""
        return np.repeat(np.arange(self.nodes), self.counts)

    @property
    def share(self) -> NDArray[np.float32]:
        """1 / (|N(v)| + 1) of Eq. local-mp, [n, 1]."""
        return (1.0 / (self.counts + 1.0)).astype(np.float32)[:, None]

    def reversed(self) -> "Neighbours":
        """The same edges in the opposite direction. Gradients flow along these."""
        return Neighbours.of(np.stack([self.targets, self.sources]), self.nodes)
