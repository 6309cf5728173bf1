"""Which shapes an engine takes: ranges of a graph's sizes -> ranges of every side of every input.

TensorRT wants the least, the likeliest and the largest shape of each input. A person knows how many nodes,
edges, targets and pairs there may be; how large the tables of neighbours are then follows from that.
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
LARGEST = 2**31 - 1  # indices of nodes are 32-bit numbers
ROOM = 2  # how much larger than a graph the profile is that is made for it


class Range(NamedTuple):
    """Of one size."""

    least: int
    likely: int
    most: int

    def within(self, least: int, most: int) -> "Range":
        """The same, cut at both ends."""
        return Range(*(min(max(number, least), most) for number in self))


class Shapes(NamedTuple):
    """Of one input."""

    least: Shape
    likely: Shape
    most: Shape

    def take(self, shape: Sequence[int]) -> bool:
        """Whether a shape lies between the least and the largest."""
        return len(shape) == len(self.least) and all(
            low <= side <= high for low, side, high in zip(self.least, shape, self.most, strict=True)
        )


@dataclass(frozen=True)
class Profile:
    """Graphs of these sizes."""

    n: Range  # nodes
    m: Range  # edges
    c: Range  # targets, where a graph describes them
    k: Range  # pairs of nodes, where links are judged

    @classmethod
    def of(cls, given: Mapping[str, Range]) -> "Profile":
        """What was not said follows from the number of nodes."""
        if "n" not in given:
            raise UsageError("a profile needs n, the number of nodes, as in n=1:10000:100000")
        n = given["n"]
        m = given.get("m", Range(1, 8 * n.likely, 10 * n.most).within(1, LARGEST))
        k = given.get("k", Range(1, n.likely, m.most).within(1, m.most))
        return cls(n, m, given.get("c", Range(1, 8, 1000)), k)

    @classmethod
    def parse(cls, text: str) -> "Profile":
        """`small`, `medium`, `large`, or sizes such as n=1:10000:100000,m=1:80000:1000000,c=2."""
        if text in PROFILES:
            return PROFILES[text]
        given = {}
        for part in text.split(","):
            name, _, numbers = part.partition("=")
            name = name.strip()
            if name not in cls.__dataclass_fields__ or name in given:
                raise UsageError(
                    f"the profile {short(text)!r} is none of {', '.join(PROFILES)}, nor sizes of n, m, c, k "
                    "(each once), as in n=1:10000:100000,m=1:80000:1000000"
                )
            given[name] = _range(name, numbers)
        return cls.of(given)

    @classmethod
    def around(cls, graph: Graph) -> "Profile":
        """For this graph, and those up to twice as large."""
        pairs = 1 if graph.pairs is None else graph.pairs.shape[1]
        sizes = {"n": graph.nodes, "m": graph.edges, "c": graph.targets, "k": pairs}
        return cls(
            **{name: Range(1, size, ROOM * max(1, size)).within(1, LARGEST) for name, size in sizes.items()}
        )

    def to_dict(self) -> dict[str, list[int]]:
        return {name: list(getattr(self, name)) for name in self.__dataclass_fields__}

    @property
    def in_words(self) -> str:
        """The sizes that every graph has."""
        named = {"nodes": self.n, "edges": self.m}
        return ", ".join(f"{sizes.least:,} to {sizes.most:,} {name}" for name, sizes in named.items())

    def shapes(self, ports: Iterable[Port]) -> dict[str, Shapes]:
        """Of every input that has a free side, by its name."""
        found = {}
        for port in ports:
            if any(isinstance(side, str) for side in port.shape):
                sides = [self._side(side) for side in port.shape]
                found[port.name] = Shapes(*(tuple(side[i] for side in sides) for i in range(3)))
        return found

    def _side(self, side: int | str) -> Range:
        if isinstance(side, int):
            return Range(side, side, side)
        kind = side.rstrip("0123456789").rstrip("_")  # the tables are numbered
        if kind not in self._sides():
            raise UsageError(f"no profile says how large the side {short(side)!r} of an input may be")
        return self._sides()[kind]

    def _sides(self) -> dict[str, Range]:
        """Bounds from how `neighbour_tables` cuts lists: full rows have at least 8 entries."""
        n, m, narrow, wide = self.n, self.m, FULL_WIDTHS[0], FULL_WIDTHS[-1]
        degree = math.ceil(m.likely / n.likely)
        longest = min(n.most, m.most)  # a hub's list
        rows = min(m.most, n.most + m.most // narrow)
        several = max(1, min(n.most, m.most // narrow))  # lists that take more than one row
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
            f"{name}={short(text)} is no range: give the least, the likeliest and the largest number, "
            f"as in {name}=1:100:1000"
        )
    return Range(*numbers)


PROFILES = {
    name: Profile.of({"n": Range(1, likely, 10 * likely)})
    for name, likely in (("small", 1_000), ("medium", 10_000), ("large", 100_000))
}
"""By the names of the command line; a bundle's engines are built for all of them."""
