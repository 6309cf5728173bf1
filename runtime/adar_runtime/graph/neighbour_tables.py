"""Neighbour lists of any length -> a few rectangular tables, which every backend can sum over.

A list is cut into rows of one full width and one shorter row for the rest; rows of like length share a
table, padded to its width. A table is summed by a Gather and a ReduceSum. Where a list took several rows,
a second round of tables joins their sums. So a hub of 100,000 neighbours costs no more than its edges,
little is padded (0 to 20 % on real graphs), and sums are short, hence precise and always in the same order.

Scatter-add would need no tables. TensorRT has none, and ONNX Runtime's ScatterND loses updates when
several threads meet at a node.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adar_runtime.graph.neighbours import Neighbours

LEAVES = 6  # tables of messages: one of full rows, the others for what is left of the lists
JOINS = 3  # tables of their sums
FULL_WIDTHS = (8, 16, 32, 64, 128, 256, 512)
JOIN_WIDTH = (
    4096  # rows that one list is cut into at most, as long as wider rows can do it: TensorRT has to know
)
SAMPLE = 1024  # nodes, evenly spread: enough to tell how fast all of them move
CANDIDATES = 256  # widths that are considered for a table; more would not make them fit much better

Index = NDArray[np.int32]
Sizes = NDArray[np.int64]


@dataclass(frozen=True)
class Tables:
    """Where each node's neighbours are found. The entry 0 always stands for a row of zeros."""

    leaves: tuple[Index, ...]  # each [rows, width]; v + 1 is the message of node v
    joins: tuple[Index, ...]  # each [rows, width]; i + 1 is the i-th sum of all leaves
    place: Index  # [n]: the node's sum, among zeros, sums of leaves and sums of joins in this order
    sample: Index  # nodes by whose velocity the motion of all is judged

    @classmethod
    def of(cls, neighbours: Neighbours) -> "Tables":
        """Lay out all lists, in O(m)."""
        rows = _cut(neighbours, _full_width(neighbours.counts))
        messages = neighbours.sources + 1
        leaves, row_place = _fill(messages, rows.starts, rows.lengths, LEAVES)
        several = np.flatnonzero(rows.counts > 1)
        joins, join_place = _fill(row_place + 1, rows.firsts[several], rows.counts[several], JOINS)
        place = np.zeros(neighbours.nodes, np.int32)
        single = rows.counts == 1
        place[single] = row_place[rows.firsts[single]] + 1
        place[several] = join_place + 1 + sum(map(len, leaves))
        sample = np.linspace(0, len(place) - 1, min(len(place), SAMPLE)).astype(np.int32)
        return cls(leaves, joins, place, sample)

    def arrays(self) -> dict[str, Index]:
        """By the names that a cell has for them."""
        leaves = {f"leaf_{i}": table for i, table in enumerate(self.leaves)}
        joins = {f"join_{i}": table for i, table in enumerate(self.joins)}
        return leaves | joins | {"place": self.place, "sample": self.sample}


class _Rows(NamedTuple):
    """The rows that lists are cut into, those of one list after each other."""

    starts: Sizes  # of each row, in the array of all neighbours
    lengths: Sizes
    firsts: Sizes  # of each list: its first row,
    counts: Sizes  # and how many there are


def _cut(neighbours: Neighbours, width: int) -> _Rows:
    counts = -(-neighbours.counts // width)
    firsts = np.cumsum(counts) - counts
    number = np.arange(counts.sum()) - np.repeat(firsts, counts)  # of a row within its list
    starts = np.repeat(neighbours.starts[:-1], counts) + number * width
    lengths = np.minimum(np.repeat(neighbours.starts[1:], counts) - starts, width)
    return _Rows(starts, lengths, firsts, counts)


def _full_width(counts: Sizes) -> int:
    """The width of full rows that makes the tables smallest."""
    highest = int(counts.max(initial=0))
    useful = [width for width in FULL_WIDTHS if width < 2 * highest] or [FULL_WIDTHS[0]]
    joinable = [width for width in useful if highest <= JOIN_WIDTH * width] or [useful[-1]]
    return min(joinable, key=lambda width: _entries(counts, width))


def widest_join(longest: int) -> int:
    """How many rows a list may take, of those in a graph whose longest has so many neighbours."""
    narrow, wide = FULL_WIDTHS[0], FULL_WIDTHS[-1]
    return max(min(-(-longest // narrow), JOIN_WIDTH), -(-longest // wide))


def _entries(counts: Sizes, width: int) -> float:
    rests, rows = counts % width, -(-counts // width)
    full = int((counts // width).sum()) * width
    return full + _best_widths(rests, LEAVES - 1)[1] + _best_widths(rows[rows > 1], JOINS)[1]


def _fill(
    values: Sizes, starts: Sizes, lengths: Sizes, number: int
) -> tuple[tuple[Index, ...], NDArray[np.int64]]:
    """Tables of values[starts[i] : starts[i] + lengths[i]], and where among all their rows each list i is."""
    widths = _best_widths(lengths, number)[0]
    table = np.searchsorted(widths, lengths)
    tables, places, offset = [], np.zeros(len(lengths), np.int64), 0
    for index in range(number):
        chosen = np.flatnonzero(table == index)
        tables.append(_table(values, starts[chosen], lengths[chosen]))
        places[chosen] = offset + np.arange(len(chosen))
        offset += len(tables[-1])
    return tuple(tables), places


def _table(values: Sizes, starts: Sizes, lengths: Sizes) -> Index:
    """One row a list, padded with 0; a table that nobody needs is one row of it."""
    if not len(starts):
        return np.zeros((1, 1), np.int32)
    column = np.arange(lengths.max())
    inside = column < lengths[:, None]
    table = np.zeros(inside.shape, np.int32)
    table[inside] = values[(starts[:, None] + column)[inside]]
    return table


def _best_widths(lengths: Sizes, number: int) -> tuple[Sizes, float]:
    """Widths of at most `number` tables that pad least, ascending, and how many entries they have then."""
    widths, rows = np.unique(lengths[lengths > 0], return_counts=True)
    if not len(widths):
        return np.zeros(0, np.int64), 0.0
    if len(widths) > CANDIDATES:  # group lists of nearly the same length
        groups = np.unique(np.geomspace(1, len(widths), CANDIDATES).astype(np.int64)) - 1
        rows = np.diff(np.concatenate([[0], np.cumsum(rows)[groups]]))
        widths = widths[groups]
    # cost[i, j]: lists of widths i … j in one table; best[j]: those before j, in the tables so far.
    before = np.concatenate([[0], np.cumsum(rows)])
    cost = (before[1:] - before[:-1, None]) * widths.astype(np.float64)
    cost[np.tril_indices(len(widths), -1)] = np.inf
    best, cuts = np.concatenate([[0.0], np.full(len(widths), np.inf)]), []
    for _ in range(number):
        total = best[:-1, None] + cost
        cuts.append(total.argmin(axis=0))
        best = np.concatenate([[0.0], total.min(axis=0)])
    return _chosen(widths, cuts), float(best[-1])


def _chosen(widths: Sizes, cuts: list[NDArray[np.intp]]) -> Sizes:
    """Walk back through the best cuts, from the widest table to the narrowest."""
    chosen, end = [], len(widths)
    for cut in reversed(cuts):
        if end:
            chosen.append(widths[end - 1])
            end = int(cut[end - 1])
    return np.array(chosen[::-1], np.int64)
