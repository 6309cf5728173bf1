"""The incoming edges of nodes that are computed anew: from kept nodes, and from one another."""

from typing import NamedTuple

import numpy as np

from adar_runtime.graph import Floats, Integers

MOST_WEIGHTS = 2**16
"""Up to this size, a dense product is faster than sums of slices."""


class Group(NamedTuple):
    """Rows to sum for each of k nodes."""

    sources: Integers  # [r], the nodes whose rows are summed
    counts: Integers | None  # [k], rows of each node: the first ones are those of node 0, and so on
    weights: Floats | None  # [k, r], 1 where a row is one of a node; instead of `counts` if it is small

    @classmethod
    def of(cls, target: Integers, source: Integers, nodes: int) -> "Group":
        """Group edges that are sorted by target."""
        sources, place = np.unique(source, return_inverse=True)
        if nodes * len(sources) <= MOST_WEIGHTS:
            weights = np.zeros((nodes, len(sources)), np.float32)
            weights[target, place] = 1.0
            return cls(sources, None, weights)
        return cls(source, np.bincount(target, minlength=nodes), None)

    def sums(self, rows: Floats) -> Floats:
        """The sum of the rows of each node [k, d]; `rows` has one row for each source."""
        if self.weights is not None:
            return self.weights @ rows
        assert self.counts is not None
        found = np.zeros((len(self.counts), rows.shape[1]), np.float32)
        filled = np.flatnonzero(self.counts)
        starts = (np.cumsum(self.counts) - self.counts)[filled]
        found[filled] = np.add.reduceat(rows, starts, axis=0)
        return found


class Incoming(NamedTuple):
    """The incoming edges of k nodes that are computed anew."""

    kept: Group  # from nodes of the kept graph
    anew: Group  # from nodes that are computed anew too; sources are their rows
    share: Floats  # [k, 1], 1 / (neighbours + 1)

    @classmethod
    def of(cls, pairs: Integers, computed: Integers) -> "Incoming":
        """Group the edges `pairs` [2, m] that end at the nodes `computed` [k], which are computed anew."""
        nodes, order = len(computed), np.argsort(computed)
        ascending = computed[order]

        def rows(of: Integers) -> Integers:
            """The row of each node that is computed anew, -1 for other nodes."""
            place = np.minimum(np.searchsorted(ascending, of), nodes - 1)
            return np.where(ascending[place] == of, order[place], -1)

        row, source = rows(pairs[1]), pairs[0]
        received = row >= 0  # other edges would change nodes that stay as they are
        base = int(source.max(initial=0)) + 1
        keys = np.unique(row[received] * base + source[received])  # repeated edges count once
        target, source = keys // base, keys % base
        from_row = rows(source)
        is_kept = from_row < 0
        counts = np.bincount(target, minlength=nodes)
        return cls(
            Group.of(target[is_kept], source[is_kept], nodes),
            Group.of(target[~is_kept], from_row[~is_kept], nodes),
            (1.0 / (counts + 1.0)).astype(np.float32)[:, None],
        )
