"""Size limits for graphs from files: one estimate of memory for all readers, checked before allocation.

A reader counts the memory of every array: as stored, as converted, and the temporary arrays of conversion and
checks. A file may always take `SMALL_BYTES`. Beyond that, it may take `MAX_RATIO` times its own size, so that
a small file from a stranger cannot take much memory, and never more than `max_bytes()`.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, UsageError
from adar_runtime.files import check_holes

MAX_BYTES = 8 * 2**30
"""Limit for the memory of one graph. The environment variable ADAR_MAX_BYTES overrides it."""

SMALL_BYTES = 256 * 2**20
"""Memory that every file may take."""

MAX_RATIO = 200
"""Memory by size of the file, above SMALL_BYTES. Compressed zeros have 1,000; bags of words about 100."""

MAX_COLUMNS = 1_000_000
"""Feature columns. A model has one row of weights for each."""

MAX_TABLE_COLUMNS = 20_000
"""Columns of a table: each one takes 35 µs, however few rows there are."""

MAX_CLASSES = 100_000
"""Classes of a graph. A model has one score for each; one large label would ask for any number of them."""

MAX_NAME = 500
"""Characters of a class name. numpy pads all names to the longest, and a table repeats a name in each row."""

MAX_SPLITS = 10_000
"""Splits in the masks of a graph: training draws missing masks for each, at 15 µs."""

CHECK_BYTES = 2  # temporary booleans per item, for checks of values
NAME_BYTES = 120  # a short name as a Python string, in a list
ROW_BYTES = 200  # a row of a text table: its list, tuple and line number
CELL_BYTES = 60  # a cell of a text table: a short string
SPARSE_ENTRY_BYTES = 48  # temporary arrays per entry, to sort the columns of a sparse matrix
SPARSE_ROW_BYTES = 32  # the same, per row
GRAPH_BYTES = 1500  # a graph of its own: the object and the headers of its arrays


def max_bytes() -> int:
    """The limit in use: ADAR_MAX_BYTES if set, else MAX_BYTES."""
    given = os.environ.get("ADAR_MAX_BYTES", str(MAX_BYTES))
    if not (given.isascii() and given.isdecimal()) or len(given) > 18 or not int(given):
        raise UsageError(f"ADAR_MAX_BYTES is {given!r}: set it to a whole number of bytes")
    return int(given)


def check_size(path: Path) -> None:
    """Raise a GraphError if a text file is larger than the limit."""
    if path.stat().st_size > max_bytes():
        raise GraphError(
            f"larger than {max_bytes():,} bytes: if you trust the file, set ADAR_MAX_BYTES higher"
        )


def check_stored(paths: Iterable[Path]) -> None:
    """Raise a GraphError if files are almost nothing but holes, unless the user set ADAR_MAX_BYTES."""
    try:
        if not limit_is_given():
            check_holes(paths)
    except ValueError as error:
        raise GraphError(f"{error}: if you trust the file, set ADAR_MAX_BYTES") from error


def limit_is_given() -> bool:
    """Whether the user set ADAR_MAX_BYTES."""
    return "ADAR_MAX_BYTES" in os.environ


class ByteBudget:
    """The memory left for one graph.

    Args:
        file_bytes: Size of the file; None for a graph from memory, which has no limit by ratio.
        most: A lower limit that a program sets, such as a server; None if there is none.
    """

    def __init__(self, file_bytes: int | None, most: int | None = None) -> None:
        self._file_bytes, self._limit, self._most, self._used = file_bytes, max_bytes(), most, 0
        self._by_ratio = self._limit if file_bytes is None else max(SMALL_BYTES, MAX_RATIO * file_bytes)

    def reserve(self, name: str, count: int, item_bytes: int) -> None:
        """Reserve memory for `count` items, or raise a GraphError that names the array."""
        self._used += count * item_bytes
        if self._most is not None and self._used > self._most:
            raise GraphError(f"{name} would bring the arrays of the graph above {self._most:,} bytes")
        if self._used > self._limit:
            raise GraphError(
                f"{name} would bring the arrays of the graph above {self._limit:,} bytes: "
                "if you trust the file, set ADAR_MAX_BYTES higher"
            )
        if self._used > self._by_ratio and not limit_is_given():
            raise GraphError(
                f"would unpack from {self._file_bytes:,} to at least {self._used:,} bytes with {name}: "
                "if you trust the file, set ADAR_MAX_BYTES"
            )

    def reserve_array(self, name: str, count: int, stored: np.dtype[Any], *, copied: bool = False) -> None:
        """Reserve an array that is read as `stored` and converted to the type that a `Graph` uses.

        `copied` says that the conversion needs a copy even if the type stays, for example for another
        order of the items in memory.
        """
        self.reserve(name, count, stored.itemsize + _converted_bytes(stored, copied=copied) + CHECK_BYTES)


def _converted_bytes(stored: np.dtype[Any], *, copied: bool) -> int:
    """Bytes per item of the converted copy; 0 if the array is used as it is."""
    if stored.kind in "US":
        return stored.itemsize + NAME_BYTES
    # Integers become int64 (ids, labels) or float32 (features): the larger of the two.
    converted = {"f": np.dtype(np.float32), "b": np.dtype(np.bool_)}.get(stored.kind, np.dtype(np.int64))
    same = stored == converted and not copied
    return 0 if same else max(4, converted.itemsize)
