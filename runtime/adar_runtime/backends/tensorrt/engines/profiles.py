"""Optimization profiles: ranges of graph sizes -> ranges of the shapes of every input of an engine.

TensorRT needs the minimum, typical and maximum shape of each input. The user gives the numbers of
nodes, edges, targets and pairs. The sizes of the neighbour tables follow from these numbers.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from adar_runtime.bundle.manifest import Port
from adar_runtime.errors import UsageError, short
from adar_runtime.graph import Graph
from adar_runtime.graph.neighbour_tables import FULL_WIDTHS, SAMPLE, widest_join

Shape = tuple[int, ...]
LARGEST = 2**31 - 1  # node ids are 32-bit integers
HEADROOM = 2  # a profile made for a graph allows graphs this many times larger


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
    """The graph sizes that an engine accepts."""

    n: Range  # nodes
    m: Range  # edges
    c: Range  # targets, for zero-shot bundles
    k: Range  # node pairs, for link prediction

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
            if name not in cls.__dataclass_fields__ or name in given:
                raise UsageError(
                    f"unknown profile {short(text)!r}: choose {', '.join(PROFILES)}, or give sizes of "
                    "n, m, c, k (each at most once), as in n=1:10000:100000,m=1:80000:1000000"
                )
            given[name] = _range(name, numbers)
        return cls.of(given)

    @classmethod
    def around(cls, graph: Graph) -> "Profile":
        """A profile for this graph and for graphs up to twice as large."""
        pairs = 1 if graph.pairs is None else graph.pairs.shape[1]
        sizes = {"n": graph.nodes, "m": graph.edges, "c": graph.targets, "k": pairs}
        return cls(
            **{
                name: Range(1, size, HEADROOM * max(1, size)).within(1, LARGEST)
                for name, size in sizes.items()
            }
        )

    def to_dict(self) -> dict[str, list[int]]:
        return {name: list(getattr(self, name)) for name in self.__dataclass_fields__}

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

    def _dimension(self, dimension: int | str) -> Range:
        if isinstance(dimension, int):
            return Range(dimension, dimension, dimension)
        kind = dimension.rstrip("0123456789").rstrip("_")  # neighbour tables are numbered
        if kind not in self._dimensions():
            raise UsageError(f"no profile gives a range for the dimension {short(dimension)!r} of an input")
        return self._dimensions()[kind]

    def _dimensions(self) -> dict[str, Range]:
        """Ranges by dimension name. `neighbour_tables` gives full rows at least 8 entries."""
        n, m, narrow, wide = self.n, self.m, FULL_WIDTHS[0], FULL_WIDTHS[-1]
        degree = math.ceil(m.likely / n.likely)
        longest = min(n.most, m.most)  # neighbour list of a hub
        rows = min(m.most, n.most + m.most // narrow)
        several = max(1, min(n.most, m.most // narrow))  # neighbour lists that span more than one row
        joined = widest_join(longest)
        return {
            "n": n,
            "m": m,
            "c": self.c,
            "k": self.k,
            "s": Range(1, SAMPLE, SAMPLE).within(1, n.most),
            "leaf_rows": Range(1, n.likely, rows).within(1, rows),
            "leaf_width": Range(1, degree, wide).within(1, min(wide, longest)),
            "join_rows": Range(1, n.likely // 64, several).within(1, several),
            "join_width": Range(1, narrow, joined).within(1, joined),
        }


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


PROFILES = {
    name: Profile.of({"n": Range(1, likely, 10 * likely)})
    for name, likely in (("small", 1_000), ("medium", 10_000), ("large", 100_000))
}
"""Profiles by their command-line names. By default engines are built for all of them."""
