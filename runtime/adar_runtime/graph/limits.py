"""Size limits for graphs from files. Checked before memory is allocated."""

import os
from pathlib import Path

from adar_runtime.errors import GraphError, UsageError

MAX_BYTES = 8 * 2**30
"""Limit for all arrays of one graph together. The environment variable ADAR_MAX_BYTES overrides it."""

MAX_COLUMNS = 1_000_000
"""Feature columns. A model has one row of weights for each."""

MAX_CLASSES = 100_000
"""Classes of a graph. A model has one score for each; one large label would ask for any number of them."""


def max_bytes() -> int:
    """The limit in use: ADAR_MAX_BYTES if set, else MAX_BYTES."""
    given = os.environ.get("ADAR_MAX_BYTES", str(MAX_BYTES))
    if not given.isdecimal() or len(given) > 18 or not int(given):
        raise UsageError(f"ADAR_MAX_BYTES is {given!r}: set it to a whole number of bytes")
    return int(given)


def check_size(path: Path) -> None:
    """Raise a GraphError if a text file is larger than the limit."""
    if path.stat().st_size > max_bytes():
        raise GraphError(
            f"larger than {max_bytes():,} bytes: if you trust the file, set ADAR_MAX_BYTES higher"
        )


def limit_is_given() -> bool:
    """Whether the user set ADAR_MAX_BYTES."""
    return "ADAR_MAX_BYTES" in os.environ


class ByteBudget:
    """The bytes left for further arrays of one graph."""

    def __init__(self) -> None:
        self._limit = self._left = max_bytes()

    def reserve(self, name: str, count: int, item_bytes: int) -> None:
        """Reserve an array; at least 4 bytes per item, because a Graph converts items to 32 or 64 bits."""
        self._left -= count * max(item_bytes, 4)
        if self._left < 0:
            raise GraphError(
                f"{name} would bring the arrays of the graph above {self._limit:,} bytes: "
                "if you trust the file, set ADAR_MAX_BYTES higher"
            )
