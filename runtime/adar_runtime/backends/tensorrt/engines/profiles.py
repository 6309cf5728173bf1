"""Optimization profiles: ranges of graph sizes -> ranges of the shapes of every input of an engine.

TensorRT needs the minimum, typical and maximum shape of each input. The user gives the numbers of nodes,
edges, targets and pairs, or graphs. The neighbour tables have fixed widths. The most rows of a table follow
from the numbers of nodes and edges, or from the tables of a given graph.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from adar_runtime.bundle.manifest import Port
from adar_runtime.errors import GraphError, UsageError, short
from adar_runtime.graph import Graph
from adar_runtime.graph.neighbour_tables import (
    FIXED,
    LONGEST,
    SAMPLE,
    Tables,
    fixed_widths,
    most_rows,
)
from adar_runtime.graph.neighbours import Neighbours

Shape = tuple[int, ...]
LARGEST = 2**31 - 1  # node ids are 32-bit integers
HEADROOM = 0.25  # a profile made for a graph allows graphs that are larger by this share
SPARE_ROWS = 16  # and a few more rows of each table, as another graph has other degrees
TYPICAL_SHARE = 2  # at the typical sizes, a table has about this many times fewer rows than it may have


class Range(NamedTuple):
    """The values that one size may take."""

    least: int
    likely: int
    most: int

    def within(self, least: int, most: int) -> "Range":
        """The range clipped to [least, most]."""
        return Range(*(min(max(number, least), most) for number in self))


class Shapes(NamedTuple):
    """The shapes that one input may take."""

    least: Shape
    likely: Shape
    most: Shape

    def take(self, shape: Sequence[int]) -> bool:
        """Whether a shape lies between the least and the largest shape."""
        return len(shape) == len(self.least) and all(
            low <= size <= high for low, size, high in zip(self.least, shape, self.most, strict=True)
        )


@dataclass(frozen=True)
class Profile:
    """The graph sizes that an engine accepts.

    Attributes:
        n: Nodes.
        m: Edges.
        c: Targets, for zero-shot bundles.
        k: Node pairs, for link prediction.
        rows: The rows of each neighbour table, by name, in a profile that was made for a graph.
    """

    n: Range
    m: Range
    c: Range
    k: Range
    rows: Mapping[str, Range] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Range]) -> "Profile":
        """A profile of the given sizes. Missing sizes follow from the number of nodes."""
        if "n" not in given:
            raise UsageError("a profile needs n, the number of nodes, as in n=1:10000:100000")
        n = given["n"]
        m = given.get("m", Range(1, 8 * n.likely, 10 * n.most).within(1, LARGEST))
        k = given.get("k", Range(1, n.likely, m.most).within(1, m.most))
        return cls(n, m, given.get("c", Range(1, 8, 1000)), k)

    @classmethod
    def parse(cls, text: str) -> "Profile":
        """Parse `small`, `medium`, `large`, or sizes such as n=1:10000:100000,m=1:80000:1000000,c=2."""
        if text in PROFILES:
            return PROFILES[text]
        given = {}
        for part in text.split(","):
            name, _, numbers = part.partition("=")
            name = name.strip()
            if name not in SIZES or name in given:
                raise UsageError(
                    f"unknown profile {short(text)!r}: choose {', '.join(PROFILES)}, or give sizes of "
                    "n, m, c, k (each at most once), as in n=1:10000:100000,m=1:80000:1000000"
                )
            given[name] = _range(name, numbers)
        return cls.of(given)

    @classmethod
    def around(cls, graph: Graph) -> "Profile":
        """A profile for this graph and for similar graphs that are a little larger."""
        pairs = 1 if graph.pairs is None else graph.pairs.shape[1]
        sizes = {"n": graph.nodes, "m": graph.edges, "c": graph.targets, "k": pairs}
        found = {name: _with_headroom(size) for name, size in sizes.items()}
        bounds = most_rows(found["n"].most, found["m"].most)
        neighbours = Neighbours.of(graph.edge_index, graph.nodes)
        longest = int(neighbours.counts.max(initial=0))
        if longest > LONGEST:
            raise GraphError(
                f"a node has {longest:,} neighbours, and TensorRT engines take up to {LONGEST:,}"
            )
        tables = Tables.of(neighbours, FIXED).arrays()
        rows = {
            name: _with_headroom(len(tables[name]), SPARE_ROWS).within(1, most)
            for name, most in bounds.items()
        }
        return cls(**found, rows=rows)

    def to_dict(self) -> dict[str, Any]:
        sizes: dict[str, Any] = {name: list(getattr(self, name)) for name in SIZES}
        return sizes | ({"rows": {name: list(rows) for name, rows in self.rows.items()}} if self.rows else {})

    @property
    def name(self) -> str:
        """The command-line name, or the sizes as text."""
        for name, profile in PROFILES.items():
            if profile == self:
                return name
        sizes = ",".join(f"{name}={':'.join(map(str, getattr(self, name)))}" for name in SIZES)
        return f"for a graph of {sizes}" if self.rows else sizes

    @property
    def in_words(self) -> str:
        """The numbers of nodes and edges, as text."""
        named = {"nodes": self.n, "edges": self.m}
        return ", ".join(f"{sizes.least:,} to {sizes.most:,} {name}" for name, sizes in named.items())

    def shapes(self, ports: Iterable[Port]) -> dict[str, Shapes]:
        """Shape ranges of every input that has a dynamic dimension, by name."""
        found = {}
        for port in ports:
            if any(isinstance(dimension, str) for dimension in port.shape):
                ranges = [self._dimension(dimension) for dimension in port.shape]
                found[port.name] = Shapes(*(tuple(one[i] for one in ranges) for i in range(3)))
        return found

    def at_most(self, nodes: int) -> "Profile":
        """The same sizes, for a model that takes this many nodes at once."""
        return replace(self, n=self.n.within(1, nodes)._replace(least=1))

    def _dimension(self, dimension: int | str) -> Range:
        if isinstance(dimension, int):
            return Range(dimension, dimension, dimension)
        if dimension not in self._dimensions:
            raise UsageError(f"no profile gives a range for the dimension {short(dimension)!r} of an input")
        return self._dimensions[dimension]

    @cached_property
    def _dimensions(self) -> dict[str, Range]:
        """Ranges by dimension name."""
        found = {name: getattr(self, name) for name in SIZES}
        found["s"] = Range(1, SAMPLE, SAMPLE).within(1, self.n.most)
        for table, most in most_rows(self.n.most, self.m.most).items():
            kind, _, index = table.partition("_")
            likely = max(1, most_rows(self.n.likely, self.m.likely)[table] // TYPICAL_SHARE)
            found[f"{kind}_rows_{index}"] = self.rows.get(table, Range(1, likely, most).within(1, most))
            width = fixed_widths()[table]
            found[f"{kind}_width_{index}"] = Range(width, width, width)
        return found


def _with_headroom(size: int, spare: int = 0) -> Range:
    most = math.ceil((1 + HEADROOM) * max(1, size)) + spare
    return Range(1, size, most).within(1, LARGEST)


def _range(name: str, text: str) -> Range:
    try:
        numbers = [int(number) for number in text.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) == 1:
        numbers *= 3
    if len(numbers) != 3 or sorted(numbers) != numbers or not 1 <= numbers[0] <= numbers[-1] <= LARGEST:
        raise UsageError(
            f"{name}={short(text)} is not a range: give the minimum, typical and maximum number, "
            f"as in {name}=1:100:1000"
        )
    return Range(*numbers)


SIZES = ("n", "m", "c", "k")  # the fields of a profile that the user gives

PROFILES = {
    name: Profile.of({"n": Range(1, likely, 10 * likely)})
    for name, likely in (("small", 1_000), ("medium", 10_000), ("large", 100_000))
}
"""Profiles by their command-line names. By default engines are built for all of them."""
