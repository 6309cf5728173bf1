"""How large a thing from outside may be. Checked before memory is asked for on its behalf."""

import os
from pathlib import Path

from adar_runtime.errors import GraphError, UsageError

MAX_BYTES = 8 * 2**30
"""All arrays of one graph together. The environment's ADAR_MAX_BYTES is used instead where it is set."""

MAX_COLUMNS = 1_000_000
"""Features of a node; a model has a row of weights for each."""

MAX_CLASSES = 100_000
"""Targets of a graph; a model has scores for each, and labels alone can ask for any number."""


def max_bytes() -> int:
    """The limit that holds here."""
    given = os.environ.get("ADAR_MAX_BYTES", str(MAX_BYTES))
    if not given.isdecimal() or len(given) > 18 or not int(given):
        raise UsageError(f"ADAR_MAX_BYTES is {given!r}: it has to be a whole number of bytes")
    return int(given)


def check_size(path: Path) -> None:
    """Refuse a file of text that is larger than all arrays of a graph may be."""
    if path.stat().st_size > max_bytes():
        raise GraphError(
            f"it is larger than {max_bytes():,} bytes: if you trust it, set ADAR_MAX_BYTES higher"
        )


def limit_is_given() -> bool:
    """Whether the user has said how much a file may ask for."""
    return "ADAR_MAX_BYTES" in os.environ


class Allowance:
    """What is left of the limit while the arrays of one graph are looked at."""

    def __init__(self) -> None:
        self._limit = self._left = max_bytes()

    def take(self, name: str, count: int, item_bytes: int) -> None:
        """Count an array in, with at least the 4 bytes a number that it becomes in a Graph."""
        self._left -= count * max(item_bytes, 4)
        if self._left < 0:
            raise GraphError(
                f"{name} would bring its arrays above {self._limit:,} bytes: "
                "if you trust it, set ADAR_MAX_BYTES higher"
            )
