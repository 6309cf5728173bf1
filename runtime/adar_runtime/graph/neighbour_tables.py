"""Neighbour lists as a few rectangular tables, so that every backend can sum over neighbours.

A list of neighbours is cut into rows of one full width and one shorter row for the rest. Rows of similar
length share a table, padded with 0. A Gather and a ReduceSum sum all rows of a table. If a list was cut into
several rows, a second round of tables joins the sums of these rows.

Example with full rows of width 2, without the unused tables. m0 … m3 are the messages of the nodes. In a leaf
table, the entry v + 1 stands for the message of node v. In every table, 0 stands for zeros.

    neighbours        rows          leaf tables    row sums              join table   joined sums
    node 0: 1, 2, 3   (1 2), (3)    [[4],          1: m3                 [[3, 1]]     4: m1 + m2 + m3
    node 1: 0         (0)            [1]]          2: m0
    nodes 2, 3: -                   [[2, 3]]       3: m1 + m2

place = [4, 2, 0, 0]: the sum of node 0 is a joined sum, that of node 1 a row sum, the others are zero.

There are two layouts. By default, the widths are chosen for the graph. TensorRT needs the shapes before there
is a graph: with fixed widths, only the number of rows depends on the graph. A list is then cut into rows of
512, its rest into rows of 64 and 16, and the last rest takes the narrowest row that holds it.

If edges have weights, a table of weights belongs to each leaf table. It has the weight of every entry, and 0
for the padding, so that a row sum is a product of weights and messages.

- A hub of 100,000 neighbours costs no more than its edges.
- Padding is 0 to 20 % on real graphs with chosen widths.
- Sums are short, therefore precise, and always in the same order.

Scatter-add would need no tables, but TensorRT has no scatter-add, and ONNX Runtime's ScatterND loses updates
when several threads write to one node.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.interruption import interruption_point

LEAVES = 6  # leaf tables: one for full rows, the others for the shorter rows
JOINS = 3  # join tables
FULL_WIDTHS = (8, 16, 32, 64, 128, 256, 512)
JOIN_WIDTH = 4096  # most rows per list, unless the widest rows need more: long sums are less precise
SAMPLE = 1024  # nodes, evenly spaced: enough to estimate how fast all nodes move
CANDIDATES = 256  # widths to choose from for a table; more would hardly reduce the padding

Index = NDArray[np.int32]
Sizes = NDArray[np.int64]
Value = TypeVar("Value")


class Widths(NamedTuple):
    """Widths of all tables, ascending, and the leaf widths at which lists are cut."""

    leaves: tuple[int, ...]
    joins: tuple[int, ...]
    cuts: tuple[int, ...]


FIXED = Widths(leaves=(2, 4, 8, 16, 64, 512), joins=(4, 32, 4096), cuts=(16, 64, 512))
"""Widths that need little memory for any graph within given numbers of nodes and edges, see `most_rows`."""

LONGEST = (4096 - 9) * 512  # neighbours of a node with the fixed widths: after full rows, up to 9 rows remain

# With the fixed widths: the fewest neighbours of a list per row in each leaf table, and the most rows of a
# list. 49 to 64 neighbours take one row of 64, because they would fill as many entries in rows of 16.
_LEAST_PER_LEAF = (1, 3, 5, 9, 49, 449)
_MOST_PER_LIST = (1, 1, 1, 3, 7, -(-LONGEST // 512))
_LEAST_PER_JOIN = (17, 161, 24 * 512)  # lists of 2 to 4, 5 to 32, and more rows


def most_rows(nodes: int, edges: int) -> dict[str, int]:
    """The most rows of each table with the fixed widths, by name, for any graph of these sizes."""
    leaves = (
        min(edges // least, most * nodes) for least, most in zip(_LEAST_PER_LEAF, _MOST_PER_LIST, strict=True)
    )
    joins = (min(edges // least, nodes) for least in _LEAST_PER_JOIN)
    found = _named("leaf", leaves) | _named("join", joins)
    return {name: max(1, rows) for name, rows in found.items()}


def fixed_widths() -> dict[str, int]:
    """The fixed width of each table, by name."""
    return _named("leaf", FIXED.leaves) | _named("join", FIXED.joins)


def _named(kind: str, values: Iterable[Value]) -> dict[str, Value]:
    return {f"{kind}_{index}": value for index, value in enumerate(values)}


@dataclass(frozen=True)
class Tables:
    """The neighbour tables of a graph. In every table, the entry 0 stands for a row of zeros.

    Attributes:
        leaves: LEAVES tables [rows, width]. The entry v + 1 is the message of node v.
        joins: JOINS tables [rows, width]. The entry i + 1 is the i-th row sum of all leaf tables.
        place: [n], the index of each node's sum in [zero, row sums of the leaves, row sums of the joins].
        sample: Nodes whose velocity is measured to estimate the movement of all nodes.
        weights: The weight of every entry of the leaves, [rows, 1, width]; None without weights.
    """

    leaves: tuple[Index, ...]
    joins: tuple[Index, ...]
    place: Index
    sample: Index
    weights: tuple[NDArray[np.float32], ...] | None = None

    @classmethod
    def of(cls, neighbours: Neighbours, widths: Widths | None = None) -> "Tables":
        """Build the tables, in O(m). Without `widths`, they are chosen for the least padding.

        Raises:
            ValueError: A list is longer than the widths can hold.
        """
        rows = _cut(neighbours, widths.cuts if widths else (_full_width(neighbours.counts),))
        leaf_widths, join_widths = (widths.leaves, widths.joins) if widths else (None, None)
        messages, edge_weights, weights = neighbours.sources + 1, neighbours.weights, None
        if edge_weights is None:
            leaves, row_position = _build(messages, rows.starts, rows.lengths, LEAVES, leaf_widths)
        else:  # tables of edges: messages and weights are looked up in them, so both have the same layout
            numbers = np.arange(1, len(messages) + 1)
            edges, row_position = _build(numbers, rows.starts, rows.lengths, LEAVES, leaf_widths)
            message_of = np.concatenate([[0], messages]).astype(np.int32)
            edge_weights = np.concatenate([[0], edge_weights]).astype(np.float32)
            leaves = tuple(message_of[table] for table in edges)
            weights = tuple(edge_weights[table][:, None, :] for table in edges)
        several = np.flatnonzero(rows.counts > 1)
        joins, join_position = _build(
            row_position + 1, rows.firsts[several], rows.counts[several], JOINS, join_widths
        )
        place = np.zeros(neighbours.nodes, np.int32)
        single = rows.counts == 1
        place[single] = row_position[rows.firsts[single]] + 1
        place[several] = join_position + 1 + sum(map(len, leaves))
        return cls(leaves, joins, place, sample_of(len(place)), weights)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The tables by the names of the cell's inputs."""
        tables: dict[str, NDArray[Any]] = {**_named("leaf", self.leaves), **_named("join", self.joins)}
        tables |= {"place": self.place, "sample": self.sample}
        return tables | _named("leaf_weight", self.weights or ())


def sample_of(nodes: int) -> Index:
    """The nodes whose movement is measured, in a graph of this many nodes."""
    return np.linspace(0, nodes - 1, min(nodes, SAMPLE)).astype(np.int32)


class _Rows(NamedTuple):
    """The rows that the lists are cut into, list by list."""

    starts: Sizes  # [rows], first position of each row in Neighbours.sources
    lengths: Sizes  # [rows]
    firsts: Sizes  # [n], the first row of each list
    counts: Sizes  # [n], the number of rows of each list


def _cut(neighbours: Neighbours, cuts: tuple[int, ...]) -> _Rows:
    """Cut lists into rows of the widest cut, their rests into rows of the next one, and so on."""
    rest, numbers = neighbours.counts, []
    for width, narrower in zip(cuts[::-1], (*cuts[-2::-1], cuts[0]), strict=True):
        # A rest takes a row of this width if it would fill as many entries in narrower rows.
        number = rest // width + (rest % width > width - narrower)
        rest = np.maximum(rest - number * width, 0)
        numbers.append(number)
    number_of_each = np.stack(numbers, axis=1)  # [n, cuts]
    counts = number_of_each.sum(axis=1)
    firsts = np.cumsum(counts) - counts
    interruption_point()
    widths = np.repeat(np.tile(cuts[::-1], neighbours.nodes), number_of_each.ravel())
    filled = np.concatenate([[0], np.cumsum(widths)])  # entries before each row
    starts = np.repeat(neighbours.starts[:-1] - filled[firsts], counts) + filled[:-1]
    lengths = np.minimum(np.repeat(neighbours.starts[1:], counts) - starts, widths)
    return _Rows(starts, lengths, firsts, counts)


def _full_width(counts: Sizes) -> int:
    """The width of full rows that gives the smallest tables."""
    highest = int(counts.max(initial=0))
    useful = [width for width in FULL_WIDTHS if width < 2 * highest] or [FULL_WIDTHS[0]]
    joinable = [width for width in useful if highest <= JOIN_WIDTH * width] or [useful[-1]]
    return min(joinable, key=lambda width: _entries(counts, width))


def _entries(counts: Sizes, width: int) -> float:
    """Entries of all tables, with full rows of this width."""
    remainders, rows = counts % width, -(-counts // width)
    full = int((counts // width).sum()) * width
    return full + _best_widths(remainders, LEAVES - 1)[1] + _best_widths(rows[rows > 1], JOINS)[1]


def largest_leaf(counts: Sizes) -> int:
    """The entries of the largest leaf table, for lists of these lengths."""
    width = _full_width(counts)
    lengths = np.concatenate([counts % width, np.full(int((counts // width).sum()), width)])
    widths = _best_widths(lengths, LEAVES)[0]
    lengths = lengths[lengths > 0]
    rows = np.bincount(np.searchsorted(widths, lengths), minlength=len(widths))
    return int((rows * widths).max(initial=0))


def _build(
    values: Sizes, starts: Sizes, lengths: Sizes, number: int, fixed: tuple[int, ...] | None
) -> tuple[tuple[Index, ...], NDArray[np.int64]]:
    """Tables of the rows values[starts[i] : starts[i] + lengths[i]], and the position of each row in them."""
    widths = tuple(_best_widths(lengths, number)[0].tolist()) if fixed is None else fixed
    if lengths.max(initial=0) > max(widths, default=0):
        raise ValueError(f"a row of {lengths.max()} entries is wider than every table")
    table = np.searchsorted(widths, lengths)
    widths += (1,) * (number - len(widths))
    entries = np.bincount(table, minlength=number) * widths
    # ONNX Runtime sums the last table first. If it is the largest, its memory is enough for the others.
    order = range(number) if fixed else np.argsort(entries, kind="stable")
    tables, positions, offset = [], np.zeros(len(lengths), np.int64), 0
    for index in order:
        interruption_point()
        chosen, width = np.flatnonzero(table == index), widths[index]
        tables.append(_table(values, starts[chosen], lengths[chosen], width))
        positions[chosen] = offset + np.arange(len(chosen))
        offset += len(tables[-1])
    return tuple(tables), positions


def _table(values: Sizes, starts: Sizes, lengths: Sizes, width: int) -> Index:
    """One table, padded with 0; an unused table is a single row of 0."""
    if not len(starts):
        return np.zeros((1, width), np.int32)
    column = np.arange(width)
    inside = column < lengths[:, None]
    table = np.zeros(inside.shape, np.int32)
    table[inside] = values[(starts[:, None] + column)[inside]]
    return table


def _best_widths(lengths: Sizes, number: int) -> tuple[Sizes, float]:
    """Widths of at most `number` tables with the least padding, ascending, and the entries of all tables."""
    widths, rows = np.unique(lengths[lengths > 0], return_counts=True)
    if not len(widths):
        return np.zeros(0, np.int64), 0.0
    if len(widths) > CANDIDATES:  # group rows of nearly the same length
        groups = np.unique(np.geomspace(1, len(widths), CANDIDATES).astype(np.int64)) - 1
        rows = np.diff(np.concatenate([[0], np.cumsum(rows)[groups]]))
        widths = widths[groups]
    # Dynamic programming. cost[i, j]: entries of one table for the widths i … j. best[j]: entries of the best
    # tables so far for all widths before j.
    before = np.concatenate([[0], np.cumsum(rows)])
    cost = (before[1:] - before[:-1, None]) * widths.astype(np.float64)
    cost[np.tril_indices(len(widths), -1)] = np.inf
    best, cuts = np.concatenate([[0.0], np.full(len(widths), np.inf)]), []
    for _ in range(number):
        total = best[:-1, None] + cost
        cuts.append(total.argmin(axis=0))
        best = np.concatenate([[0.0], total.min(axis=0)])
    return _trace_back(widths, cuts), float(best[-1])


def _trace_back(widths: Sizes, cuts: list[NDArray[np.intp]]) -> Sizes:
    """Follow the best cuts back, from the widest table to the narrowest."""
    chosen, end = [], len(widths)
    for cut in reversed(cuts):
        if end:
            chosen.append(widths[end - 1])
            end = int(cut[end - 1])
    return np.array(chosen[::-1], np.int64)
