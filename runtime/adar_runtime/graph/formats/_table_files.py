"""Read a table from a file into columns: CSV, TSV, JSON lines or Parquet.

Parquet needs pyarrow. Text tables of at least `LARGE` bytes are read by pyarrow too, if it is installed. JSON
lines are not: pyarrow's reader crashes on deeply nested values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adar_runtime.errors import GraphError
from adar_runtime.graph.formats import _arrow
from adar_runtime.graph.formats._columns import Column, Locate, ValueColumn, column_of
from adar_runtime.graph.formats._rows import (
    BLANKS,
    check_header,
    read_objects,
    read_rows,
    read_table,
    separator_of,
)
from adar_runtime.graph.limits import CELL_BYTES, ByteBudget, check_size

TEXT = (".csv", ".tsv", ".txt", ".edges")
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
TABLES = (".csv", ".tsv", *JSON_LINES, PARQUET)
"""Suffixes of tables with a header."""

COMMENTS = ("#", "%")
LARGE = 16 * 2**20  # bytes from which pyarrow reads a text table, if it is installed


@dataclass(frozen=True)
class Table:
    """The columns of a table.

    Attributes:
        columns: The columns by name.
        rows: The number of rows.
        locate: Row number -> where the row is in the file.
        skipped: Names of columns that hold lists or objects.
        exact: Whether `locate` gives the line. pyarrow does not know the lines of a text table.
    """

    columns: Mapping[str, Column]
    rows: int
    locate: Locate
    skipped: tuple[str, ...] = ()
    exact: bool = True


def read_table_file(path: Path, *, exact: bool = False) -> Table:
    """Read a table. `exact` reads text so that all lines are known, which is slow for large files."""
    check_size(path)
    if path.suffix == PARQUET:
        found, rows, skipped = _arrow.read_parquet(path)
        if not rows:
            raise GraphError("the table is empty: it needs at least one row")
        check_header(list(found), 1)
        return Table(found, rows, lambda row: f"row {row + 1}", tuple(skipped))
    if path.suffix in JSON_LINES:
        return _json_lines(path)
    large = None if exact else large_text(path)
    if large is not None:
        return large
    header, cells = read_table(path, BLANKS, COMMENTS)
    columns = {name: ValueColumn([row.cells[i] for row in cells]) for i, name in enumerate(header)}
    return Table(columns, len(cells), lambda row: f"line {cells[row].line}")


def _json_lines(path: Path) -> Table:
    rows = read_objects(path)
    places, values = dict[str, list[int]](), dict[str, list[Any]]()
    for row, (_, cells) in enumerate(rows):
        for name, value in cells.items():
            places.setdefault(name, []).append(row)
            values.setdefault(name, []).append(value)
    check_header(list(values), 1)
    ByteBudget(path.stat().st_size).reserve("columns", len(rows) * len(values), CELL_BYTES // 4)
    nested = [name for name, given in values.items() if any(isinstance(one, dict | list) for one in given)]
    plain = {
        name: column_of(places[name], given, len(rows))
        for name, given in values.items()
        if name not in nested
    }
    return Table(plain, len(rows), lambda row: f"line {rows[row][0]}", tuple(nested))


def large_text(path: Path) -> Table | None:
    """The table as pyarrow reads it; None for a small one, and if `read_table` would read it differently."""
    if path.stat().st_size < LARGE:
        return None
    first = next(read_rows(path, BLANKS, COMMENTS), None)
    if first is None or first.line > 1 or len(first.cells) > _arrow.MAX_COLUMNS:
        return None
    header = [cell.strip() for cell in first.cells]
    with path.open(encoding="utf-8-sig", newline="") as file:
        line = file.readline()
    separator = separator_of(path, line)
    check_header(header, 1)
    found = _arrow.read_text(path, separator, header) if separator and '"' not in line else None
    if found is None:
        return None
    column = found[header[0]]
    if not len(column.codes.codes) or any(word.startswith(COMMENTS) for word in column.codes.words):
        return None
    return Table(found, len(column.codes.codes), lambda row: f"row {row + 1}", exact=False)
