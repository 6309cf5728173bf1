"""Check a Parquet file before a library reads it: its footer, and the header of every page.

Pages are compressed, and a library allocates the size that a page's header claims. The sizes are counted here
first. The numbers of the fields are those of parquet.thrift.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from adar_runtime.errors import GraphError, short
from adar_runtime.graph.formats._thrift import MAX_DEPTH, ThriftReader
from adar_runtime.graph.limits import ByteBudget, limit_is_given

MAGIC = b"PAR1"
TAIL = 8  # bytes: the length of the footer, and MAGIC
MAX_FOOTER = 2**20  # enough for 1,000 columns in 10 groups of rows
MAX_HEADER = 2**16  # of a page
MAX_PAGES, PAGE_BYTES = 10_000, 4096  # pages of any file, and one more for each 4 KiB
MAX_DECLARED = 10_000  # columns, and groups of rows
DELTA_BYTE_ARRAY = 7  # an encoding in which a value repeats any part of the value before
VALUE_BYTES = 32  # a value in its column, as a number or code, and as a feature
TEXT_RATIO = 16  # a short text as a Python string, by its size in the file


def check_parquet(path: Path, budget: ByteBudget) -> None:
    """Raise a GraphError if the file is damaged or would take too much memory."""
    try:
        with path.open("rb") as file:
            _check(file, path.stat().st_size, budget)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        detail = short(error) if isinstance(error, ValueError) else "its header is incomplete"
        raise GraphError(f"not a readable .parquet file ({detail})") from error


def _check(file: BinaryIO, size: int, budget: ByteBudget) -> None:
    footer = _footer(file, size)
    schema, groups, rows = footer[2], footer[4], footer[3]
    if len(schema) > MAX_DECLARED or len(groups) > MAX_DECLARED:
        raise GraphError(f"it has more than {MAX_DECLARED:,} columns or groups of rows")
    _check_depth(schema)
    if rows < 0 or sum(group[3] for group in groups) != rows:
        raise ValueError("its groups have another number of rows than the file")
    budget.reserve("rows", rows * (len(schema) - 1), VALUE_BYTES)
    pages = MAX_PAGES + size // PAGE_BYTES
    for group in groups:
        for chunk in group[1]:
            if 1 in chunk:
                raise GraphError("a column is in another file: write all columns to one file")
            values = -group[3]  # the values of rows are counted; a list in a row may have any number of them
            for header in _page_headers(file, chunk[3], size):
                pages -= 1
                values += max(0, header.get(5, {}).get(1, 0)) + max(0, header.get(8, {}).get(1, 0))
                budget.reserve("values", max(0, values), VALUE_BYTES)
                values = min(0, values)
                if pages < 0:
                    raise ValueError("it has far more pages than its size needs")
                budget.reserve("pages", header[2], TEXT_RATIO)
                if DELTA_BYTE_ARRAY in (header.get(5, {}).get(2), header.get(8, {}).get(4)):
                    raise GraphError("it uses the encoding DELTA_BYTE_ARRAY: write it with another encoding")


def _check_depth(schema: list[dict[int, Any]]) -> None:
    """Refuse deeply nested columns: a library follows them by recursion."""
    open_levels = [1]  # columns that are still to come at each level
    for element in schema:
        while open_levels and not open_levels[-1]:
            open_levels.pop()
        if not open_levels:
            raise ValueError("its columns do not form a tree")
        open_levels[-1] -= 1
        if element.get(5):
            open_levels.append(element[5])
        if len(open_levels) > MAX_DEPTH or open_levels[-1] < 0:
            raise ValueError("its columns are nested too deeply")


def _footer(file: BinaryIO, size: int) -> dict[int, Any]:
    """The description of the file, at its end."""
    if size < len(MAGIC) + TAIL:
        raise ValueError("it is too short")
    file.seek(size - TAIL)
    tail = file.read(TAIL)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] == b"PARE":
        raise GraphError("the file is encrypted: write it without encryption")
    if tail[4:] != MAGIC or length > size - TAIL - len(MAGIC):
        raise ValueError("it does not end with a footer")
    if length > MAX_FOOTER and not limit_is_given():
        raise GraphError(
            f"its footer is larger than {MAX_FOOTER:,} bytes: if you trust the file, set ADAR_MAX_BYTES"
        )
    file.seek(size - TAIL - length)
    return ThriftReader(file.read(length)).struct()


def _page_headers(file: BinaryIO, column: dict[int, Any], size: int) -> Iterator[dict[int, Any]]:
    """The headers of the pages of one column in one group of rows."""
    first_data, dictionary = column[9], column.get(11, 0)
    start = dictionary if 0 < dictionary < first_data else first_data
    end = start + column[7]
    if not 0 <= start <= end <= size:
        raise ValueError("a column is outside the file")
    while start < end:
        file.seek(start)
        reader = ThriftReader(file.read(min(MAX_HEADER, end - start)))
        header = reader.struct()
        if header[2] < 0 or header[3] < 0:
            raise ValueError("a page has a negative size")
        yield header
        start += reader.position + header[3]
