"""Tables as text: CSV and JSON lines. Every error names its line.

A CSV file has one separator, and cells in quotes may contain line breaks.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from adar_runtime.errors import GraphError, reason, short, warn
from adar_runtime.graph.formats._columns import Locate
from adar_runtime.graph.limits import CELL_BYTES, MAX_TABLE_COLUMNS, ROW_BYTES, ByteBudget, check_size
from adar_runtime.json_files import parse_json

SEPARATORS = "\t,;"
BLOCK_BYTES = 2**20  # that are read at once to count lines
BLANKS = " "  # cells between any number of blanks, without quotes


class Row(NamedTuple):
    """The cells of a row, and the number of its first line. A quoted cell may span several lines."""

    line: int
    cells: list[str]


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, line). The size of the file is checked first."""
    check_size(path)
    with path.open(encoding="utf-8-sig", newline="") as file:  # Excel writes a byte order mark
        try:
            yield from enumerate(file, 1)
        except UnicodeDecodeError as error:
            raise GraphError(
                f"line {_first_undecodable(path)} is not UTF-8 text: save the file as UTF-8"
            ) from error


def read_rows(path: Path, default_separator: str, comments: tuple[str, ...] = ()) -> Iterator[Row]:
    """Yield the rows of a table without empty lines and comments.

    The first row decides the separator of the whole file, because texts in later rows may contain other
    separators. `default_separator` is used if the first row has none. A warning names comments that look like
    rows: an id may begin with #.
    """
    lines = read_lines(path)
    separator, width, skipped = "", 0, list[int]()
    for number, line in lines:
        if not line.strip():
            continue
        if line.startswith(comments):
            skipped += [number] if width > 1 and line.count(separator) == width - 1 else []
            continue
        separator = separator or separator_of(path, line) or default_separator
        cells = line.split() if separator == BLANKS else _cells(number, line, lines, separator)
        width = width or len(cells)
        yield Row(number, cells)
    if skipped:
        warn(
            f"{path}: {len(skipped):,} lines with as many cells as a row begin with {' or '.join(comments)} "
            f"and were skipped as comments, first line {skipped[0]}: put an id that begins so in quotes"
        )


def collect(path: Path, rows: Iterator[Row]) -> list[Row]:
    """All rows in a list. Their memory is counted while they are read."""
    budget, found = ByteBudget(path.stat().st_size), []
    for row in rows:
        budget.reserve(f"line {row.line}", 1, ROW_BYTES + CELL_BYTES * len(row.cells))
        found.append(row)
    return found


def read_table(
    path: Path, default_separator: str, comments: tuple[str, ...] = ()
) -> tuple[list[str], Sequence[Row]]:
    """Return the header and the rows below it. Every row has one cell per column of the header."""
    rows = collect(path, read_rows(path, default_separator, comments))
    header = [cell.strip() for cell in rows[0].cells] if rows else []
    check_header(header, rows[0].line if rows else 1)
    for line, cells in rows[1:]:
        if len(cells) != len(header):
            raise GraphError(f"line {line} has {len(cells)} cells, but the header has {len(header)}")
    if len(rows) < 2:
        raise GraphError("the table is empty: it needs a header and at least one row")
    return header, rows[1:]


def check_header(header: Sequence[str], line: int) -> None:
    """Refuse two columns of the same name, of which one would be lost, and too many columns."""
    check_width(len(header))
    seen: set[str] = set()
    for name in header:
        if name in seen:
            what = f"two columns have the name {short(name)!r}" if name else "two columns have no name"
            raise GraphError(f"line {line}: {what}: rename or remove one")
        seen.add(name)


def check_width(columns: int) -> None:
    """Refuse too many columns."""
    if columns > MAX_TABLE_COLUMNS:
        raise GraphError(
            f"{columns:,} columns, and a table may have {MAX_TABLE_COLUMNS:,}: write the features to a "
            ".npz file (x, or x_indptr, x_indices and x_data where most are zero)"
        )


def number_names(names: Sequence[str], locate: Locate, what: str, hint: str = "") -> dict[str, int]:
    """Map each name to its position. Empty and repeated names are errors, which end with `hint`."""
    found: dict[str, int] = {}
    for position, name in enumerate(names):
        if not name:
            raise GraphError(f"{locate(position)}: the {what} has no name{hint}")
        if name in found:
            before = locate(found[name])
            raise GraphError(
                f"{locate(position)}: {what} {short(name)!r} is already defined in {before}{hint}"
            )
        found[name] = position
    return found


def read_objects(path: Path) -> list[tuple[int, Mapping[str, Any]]]:
    """The JSON objects of a file of JSON lines, each with its line number."""
    budget, found = ByteBudget(path.stat().st_size), list[tuple[int, Mapping[str, Any]]]()
    for line, text in read_lines(path):
        if text.strip():
            cells = _object(line, text)
            budget.reserve(f"line {line}", 1, ROW_BYTES + CELL_BYTES * len(cells) + len(text))
            found.append((line, cells))
    if not found:
        raise GraphError("the table is empty: it needs one JSON object per line")
    return found


def _object(line: int, text: str) -> Mapping[str, Any]:
    try:
        cells = parse_json(text)
    except ValueError as error:
        raise GraphError(f"line {line}: not JSON ({reason(error)})") from error
    if not isinstance(cells, dict):
        raise GraphError(f"line {line}: not a JSON object")
    return cells


def separator_of(path: Path, line: str) -> str:
    """The separator: a tab in a .tsv file, else the most frequent one of the first line, or ""."""
    if path.suffix == ".tsv":
        return "\t"
    most = max(SEPARATORS, key=line.count)
    return most if most in line else ""


def check_quotes(path: Path, separator: str, rows: int) -> None:
    """Refuse a quote that is not closed in its cell: pyarrow reads the lines below as one cell.

    Args:
        path: The table, with a header.
        separator: Its separator.
        rows: The rows that pyarrow found. If there is one line for each, no cell has several lines. Then only
            the last quote can be open.
    """
    lines, quotes, end = 0, 0, b"\n"
    with path.open("rb") as binary:
        while block := binary.read(BLOCK_BYTES):
            lines, quotes, end = lines + block.count(b"\n"), quotes + block.count(b'"'), block[-1:]
    if lines + (end != b"\n") == rows + 1 and quotes % 2 == 0:
        return
    with path.open(encoding="latin-1", newline="") as text:  # any encoding has the same quotes
        following = iter(enumerate(text, 1))
        for number, line in following:
            if '"' in line:
                _cells(number, line, following, separator)


def _cells(first: int, line: str, following: Iterator[tuple[int, str]], separator: str) -> list[str]:
    lines = [line]
    try:
        cells = next(csv.reader(_until_quotes_close(lines, following), delimiter=separator))
    except csv.Error as error:
        raise GraphError(f"line {first} is not a valid table row ({reason(error)})") from error
    if len(lines) > 1:
        _check_end(first, lines, separator)
    return cells


def _until_quotes_close(lines: list[str], following: Iterator[tuple[int, str]]) -> Iterator[str]:
    """Yield lines to `csv`, which asks for another line only while a quote is open. Add them to `lines`."""
    yield lines[0]
    for _, more in following:
        lines.append(more)
        yield more
    raise csv.Error("a quote is opened and never closed")


def _check_end(first: int, lines: list[str], separator: str) -> None:
    """Refuse a cell of several lines that goes on after its quote, which is then that of another cell."""
    try:
        next(csv.reader(lines, delimiter=separator, strict=True))
    except csv.Error as error:
        raise GraphError(
            f"line {first} has a quote that is not closed in its cell, which ends in line "
            f"{first + len(lines) - 1}: close it, or write a quote in a text twice"
        ) from error


def _first_undecodable(path: Path) -> int:
    """The number of the first line that is not UTF-8. A buffered decoder knows only the byte position."""
    with path.open("rb") as file:
        return next((number for number, line in enumerate(file, 1) if not _is_text(line)), 1)


def _is_text(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
