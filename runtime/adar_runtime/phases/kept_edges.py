"""The edges of a kept graph, which changed nodes replace, and which nodes react to new and changed nodes."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adar_runtime.graph import Integers
from adar_runtime.graph.neighbours import Neighbours

EDGES_PER_NODE = 1000
"""Most edges of reacting nodes, for each new or changed node: they bound the time of an answer."""
MOST_EDGES = 2**21
"""Most edges of reacting nodes in one answer: they bound its memory, d numbers for each."""


def most_edges(asked: int) -> int:
    """Most edges of the nodes that react to so many new or changed nodes."""
    return min(EDGES_PER_NODE * asked, MOST_EDGES)


@dataclass
class KeptEdges:
    """The edges of the kept graph. `replace` changes the edges that end at some nodes.

    Attributes:
        incoming: The incoming neighbours of every node, before changes.
        outgoing: The same edges in the opposite direction. The same object if all edges go both ways.
    """

    incoming: Neighbours
    outgoing: Neighbours
    _changed: NDArray[np.bool_] = field(init=False)  # [n], nodes whose incoming edges are in `_pairs`
    _pairs: Integers = field(init=False)  # [2, k], sources and targets
    _changed_any: bool = False

    def __post_init__(self) -> None:
        self._changed = np.zeros(self.incoming.nodes, np.bool_)
        self._pairs = np.zeros((2, 0), np.int64)

    @classmethod
    def of(cls, incoming: Neighbours) -> "KeptEdges":
        """Keep the edges of a graph."""
        outgoing = incoming.reversed()
        is_same = np.array_equal(outgoing.starts, incoming.starts) and np.array_equal(
            outgoing.sources, incoming.sources
        )
        return cls(incoming, incoming if is_same else outgoing)

    @property
    def bytes(self) -> int:
        kept = [self.incoming] if self.go_both_ways else [self.incoming, self.outgoing]
        return sum(each.starts.nbytes + each.sources.nbytes for each in kept) + self._pairs.nbytes

    @property
    def go_both_ways(self) -> bool:
        return self.outgoing is self.incoming

    @property
    def changed(self) -> int:
        """The number of nodes whose edges were replaced."""
        return int(np.count_nonzero(self._changed))

    def ending_at(self, nodes: Integers) -> Integers:
        """The edges [2, m] that end at these nodes."""
        if not self._changed_any:
            return np.stack(_rows(self.incoming, nodes))
        source, target = _rows(self.incoming, nodes[~self._changed[nodes]])
        changed = self._pairs[:, np.isin(self._pairs[1], nodes)]
        return np.concatenate([np.stack([source, target]), changed], axis=1)

    def receivers(self, nodes: Integers) -> Integers:
        """The nodes that receive from these nodes, ascending."""
        target, _ = _rows(self.outgoing, nodes)
        if not self._changed_any:
            return np.unique(target)
        changed = self._pairs[1, np.isin(self._pairs[0], nodes)]
        return np.unique(np.concatenate([target[~self._changed[target]], changed]))

    def replace(self, nodes: Integers, pairs: Integers) -> None:
        """Replace the edges that end at these nodes by the `pairs` [2, m] that end there."""
        ending, others = np.isin(pairs[1], nodes), ~np.isin(self._pairs[1], nodes)
        self._pairs = np.concatenate([self._pairs[:, others], pairs[:, ending]], axis=1)
        self._changed[nodes] = self._changed_any = True

    @property
    def changes(self) -> tuple[Integers, Integers]:
        """The nodes whose edges were replaced, and all edges [2, k] that end at them now."""
        return np.flatnonzero(self._changed), self._pairs

    def take_over(self, nodes: Integers, pairs: Integers) -> None:
        """Use the changes of another process, in place of those of this one."""
        self._changed[:] = False
        self._changed[nodes] = True
        self._pairs, self._changed_any = pairs, bool(len(nodes))

    def merged(self) -> "KeptEdges":
        """The same edges, with the changes in place."""
        if not self._changed_any:
            return self
        all_nodes = np.arange(self.incoming.nodes)
        return KeptEdges.of(Neighbours.of(self.ending_at(all_nodes), len(all_nodes)))

    def reacting(self, first: Integers, asked: Integers, hops: int, limit: int) -> Integers:
        """The nodes that are computed anew because a node that was asked for reaches them.

        Args:
            first: Nodes that receive from the nodes that were asked for.
            asked: Nodes of the kept graph that were asked for, which are not part of the answer.
            hops: Most edges on the way from a node that was asked for.
            limit: Most edges of reacting nodes. Nodes with few edges come first within a hop: the fewer
                neighbours a node has, the more one of them changes it.

        Returns:
            [k] numbers of nodes.
        """
        found, candidates = [np.zeros(0, np.int64)], first
        taken = asked
        for hop in range(hops):
            if hop:
                candidates = self.receivers(candidates)
            candidates = np.setdiff1d(candidates, taken)
            counts = self.incoming.starts[candidates + 1] - self.incoming.starts[candidates]
            order = np.argsort(counts, kind="stable")
            totals = np.cumsum(counts[order] + 1)
            candidates = candidates[order[: np.searchsorted(totals, limit, side="right")]]
            if not len(candidates):
                break
            limit -= int(totals[len(candidates) - 1])
            found.append(candidates)
            taken = np.concatenate([taken, candidates])
        return np.concatenate(found)


def _rows(neighbours: Neighbours, nodes: Integers) -> tuple[Integers, Integers]:
    """The neighbours of some nodes, and the node that each one belongs to."""
    starts = neighbours.starts[nodes]
    counts = neighbours.starts[nodes + 1] - starts
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return neighbours.sources[np.repeat(starts, counts) + inside], np.repeat(nodes, counts)
