"""Text from outside, by lines and by rows of cells; whatever is wrong is named with its line."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from adar_runtime.errors import GraphError, reason, short
from adar_runtime.graph.limits import check_size

SEPARATORS = "\t,;"
BLANKS = " "  # any number of them, and no quotes


class Row(NamedTuple):
    """The cells of a row, and the line that it begins on: a cell between quotes may go on in the next."""

    line: int
    cells: list[str]


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Every line with its number, of a file that is within the limit."""
    check_size(path)
    with path.open(encoding="utf-8-sig", newline="") as file:  # Excel writes a byte order mark
        try:
            yield from enumerate(file, 1)
        except UnicodeDecodeError as error:
            raise GraphError(f"line {_undecodable(path)} is not text in UTF-8") from error


def read_rows(path: Path, otherwise: str, comments: tuple[str, ...] = ()) -> Iterator[Row]:
    """Rows of cells, without empty lines and those that begin like a comment.

    One separator holds for the whole file, since a text may have any of the others: the first line tells
    which and, if it has none, `otherwise`.
    """
    lines = read_lines(path)
    separator = ""
    for number, line in lines:
        if line.strip() and not line.startswith(comments):
            separator = separator or _separator(path, line) or otherwise
            yield Row(number, line.split() if separator == BLANKS else _cells(number, line, lines, separator))


def read_table(path: Path, otherwise: str, comments: tuple[str, ...] = ()) -> tuple[list[str], Sequence[Row]]:
    """The heading, and the rows below it, which have a cell for each of its names."""
    rows = list(read_rows(path, otherwise, comments))
    heading = [cell.strip() for cell in rows[0].cells] if rows else []
    for line, cells in rows[1:]:
        if len(cells) != len(heading):
            raise GraphError(f"line {line} has {len(cells)} cells, and the heading {len(heading)}")
    if len(rows) < 2:
        raise GraphError("the table is empty: it has to have a heading, and a line for each")
    return heading, rows[1:]


def number(names: Sequence[str], lines: Sequence[int], what: str, hint: str = "") -> dict[str, int]:
    """The place of each name; they have to differ. The `hint` is for whoever reads that they do not."""
    found: dict[str, int] = {}
    for line, name in zip(lines, names, strict=True):
        if not name:
            raise GraphError(f"line {line}: the {what} has no name{hint}")
        if name in found:
            already = lines[found[name]]
            twice = f"the {what} {short(name)!r} is there already, in line {already}"
            raise GraphError(f"line {line}: {twice}{hint}")
        found[name] = len(found)
    return found


def _separator(path: Path, line: str) -> str:
    """What the name of the file says, or what the first line has most of; "" where it has none."""
    if path.suffix == ".tsv":
        return "\t"
    most = max(SEPARATORS, key=line.count)
    return most if most in line else ""


def _cells(first: int, line: str, following: Iterator[tuple[int, str]], separator: str) -> list[str]:
    try:
        return next(csv.reader(_while_open(line, following), delimiter=separator))
    except csv.Error as error:
        raise GraphError(f"line {first} is no line of a table ({reason(error)})") from error


def _while_open(line: str, following: Iterator[tuple[int, str]]) -> Iterator[str]:
    """What `csv` asks for: lines after the first only as long as a quote is open."""
    yield line
    for _, more in following:
        yield more
    raise csv.Error("a quote is opened and never closed")


def _undecodable(path: Path) -> int:
    """The first line that is not UTF-8: a decoder that reads ahead knows only the byte."""
    with path.open("rb") as file:
        return next((number for number, line in enumerate(file, 1) if not _is_text(line)), 1)


def _is_text(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
