"""Graphs made by the program: to train on with no network, and each needs to see another distance."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adar_runtime.errors import GraphError, UsageError
from adar_runtime.generated.blocks import blocks
from adar_runtime.generated.chain import chain
from adar_runtime.generated.minesweeper import board
from adar_runtime.generated.tree import tree
from adar_runtime.graph import Graph
from adar_runtime.limits import max_bytes

__all__ = ["FAMILIES", "Family", "make"]

BYTES_A_NODE = 1_000  # of the largest family, features and edges, with room to spare


@dataclass(frozen=True)
class Family:
    """A kind of graph."""

    make: Callable[..., Graph]
    about: str
    sees: str  # how far a node has to, for its label

    @property
    def settings(self) -> dict[str, Any]:
        """What it takes, and what each is where it is not said."""
        return {name: one.default for name, one in inspect.signature(self.make).parameters.items()}


FAMILIES = {
    "minesweeper": Family(board, "which cells are mines, from counts on half of them", "2 hops"),
    "chain": Family(chain, "the end of a path has the class that its start shows", "as many hops as you say"),
    "tree": Family(
        tree, "the root has the colour of most leaves", "as many hops as you say, and every leaf there"
    ),
    "blocks": Family(blocks, "communities whose features are mostly noise", "the further, the surer"),
}
"""By name. Adding one is a file and a line here."""


def make(name: str, **settings: Any) -> Graph:
    """A graph of that family; what is not said is as the family has it."""
    if name not in FAMILIES:
        raise GraphError(f"there is no family {name!r}: choose {', '.join(FAMILIES)}")
    known = FAMILIES[name].settings
    for setting in settings:
        if setting not in known:
            raise UsageError(f"{name} has no {setting}: it takes {', '.join(known)}")
    chosen = known | settings
    if chosen["nodes"] * BYTES_A_NODE > max_bytes():
        raise UsageError(
            f"{chosen['nodes']:,} nodes may take more than {max_bytes():,} bytes: set ADAR_MAX_BYTES"
        )
    return FAMILIES[name].make(**chosen)
