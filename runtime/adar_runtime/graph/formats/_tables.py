"""Text tables: read their rows, and turn their columns into the features, labels and masks of a graph.

Rows: one separator per file, cells in quotes may contain line breaks, every error names its line.

Columns: a column is the label, the split or a feature, by its name. Columns of numbers become features as
they are. Columns of few different words become one-hot features. Columns of free text are left out.
"""

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adar_runtime.errors import GraphError, UsageError, reason, short
from adar_runtime.graph import PARTS, Floats, Graph, Integers
from adar_runtime.graph.limits import CELL_BYTES, ROW_BYTES, ByteBudget, check_size

SEPARATORS = "\t,;"
BLANKS = " "  # cells between any number of blanks, without quotes

LABEL_COLUMNS = ("y", "label", "class", "target")
SPLIT_COLUMN = "split"
SPLIT_WORDS = {part: part for part in PARTS} | {"valid": "val", "validation": "val"}
CLASSES, NUMBERS = LABEL_KINDS = ("classes", "numbers")
MAX_WORDS = 50  # different words of a column that becomes one-hot features
MAX_LISTED = 5  # columns that a note names

WHOLE = re.compile(r"[+-]?[0-9]+\.0*")  # a whole number that is written as a decimal number
NUMBER_BYTES = 16  # a number in its column, as a feature, and in the joined features
ONE_HOT_BYTES = 8  # a number of a one-hot column, and in the joined features

Columns = Mapping[str, Sequence[Any]]
"""Column name -> one value per node; None or "" where the value is unknown."""

Locate = Callable[[int], str]
"""Node number -> how a person finds this node in the file: its line or its name."""


# Rows --------------------------------------------------------------------------------------------------


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
            raise GraphError(f"line {_first_undecodable(path)} is not UTF-8 text") from error


def read_rows(path: Path, default_separator: str, comments: tuple[str, ...] = ()) -> Iterator[Row]:
    """Yield the rows of a table without empty lines and comments.

    The first row decides the separator of the whole file, because texts in later rows may contain other
    separators. `default_separator` is used if the first row has none.
    """
    lines = read_lines(path)
    separator = ""
    for number, line in lines:
        if line.strip() and not line.startswith(comments):
            separator = separator or _separator(path, line) or default_separator
            yield Row(number, line.split() if separator == BLANKS else _cells(number, line, lines, separator))


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
    _check_header(header, rows[0].line if rows else 1)
    for line, cells in rows[1:]:
        if len(cells) != len(header):
            raise GraphError(f"line {line} has {len(cells)} cells, but the header has {len(header)}")
    if len(rows) < 2:
        raise GraphError("the table is empty: it needs a header and at least one row")
    return header, rows[1:]


def _check_header(header: Sequence[str], line: int) -> None:
    """Refuse two columns of the same name: one of them would be lost."""
    seen: set[str] = set()
    for name in header:
        if name in seen:
            what = f"two columns have the name {short(name)!r}" if name else "two columns have no name"
            raise GraphError(f"line {line}: {what}: rename or remove one")
        seen.add(name)


def number_names(names: Sequence[str], lines: Sequence[int], what: str, hint: str = "") -> dict[str, int]:
    """Map each name to its position. Empty and repeated names are errors, which end with `hint`."""
    found: dict[str, int] = {}
    for line, name in zip(lines, names, strict=True):
        if not name:
            raise GraphError(f"line {line}: the {what} has no name{hint}")
        if name in found:
            raise GraphError(
                f"line {line}: {what} {short(name)!r} is already defined in line {lines[found[name]]}{hint}"
            )
        found[name] = len(found)
    return found


def _separator(path: Path, line: str) -> str:
    """The separator: a tab in a .tsv file, else the most frequent one of the first line, or ""."""
    if path.suffix == ".tsv":
        return "\t"
    most = max(SEPARATORS, key=line.count)
    return most if most in line else ""


def _cells(first: int, line: str, following: Iterator[tuple[int, str]], separator: str) -> list[str]:
    try:
        return next(csv.reader(_until_quotes_close(line, following), delimiter=separator))
    except csv.Error as error:
        raise GraphError(f"line {first} is not a valid table row ({reason(error)})") from error


def _until_quotes_close(line: str, following: Iterator[tuple[int, str]]) -> Iterator[str]:
    """Yield lines to `csv`, which asks for another line only while a quote is open."""
    yield line
    for _, more in following:
        yield more
    raise csv.Error("a quote is opened and never closed")


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


# Columns -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Imported:
    """An imported graph.

    Attributes:
        graph: The graph.
        notes: One sentence for each decision that the import made, such as a column that was left out.
    """

    graph: Graph
    notes: list[str]


def graph_from_columns(
    columns: Columns,
    edges: Integers,
    nodes: int,
    label: str | None,
    kind: str | None,
    locate: Locate,
    budget: ByteBudget,
) -> Imported:
    """Build a graph from its edges and the columns of its node table."""
    if kind not in (None, *LABEL_KINDS):
        raise UsageError(f"labels are {' or '.join(LABEL_KINDS)}, not {short(kind)!r}")
    names = _by_meaning(columns)
    if label is not None and label not in columns:
        raise GraphError(f"label column {label!r} not found; the columns are {_listed(columns)}")
    chosen = label or next((names[name] for name in LABEL_COLUMNS if name in names), None)
    if chosen is None and kind is not None:
        raise GraphError(f"no label column found to read as {kind}: name it with --label")
    split = names.get(SPLIT_COLUMN)
    notes: list[str] = []
    others = {name: values for name, values in columns.items() if name not in (chosen, split)}
    notes += [
        f"{name!r} became a feature, but may be a label: remove the column, or choose it with --label"
        for name in (names[word] for word in LABEL_COLUMNS if word in names)
        if name != chosen
    ]
    features = _features(others, edges, nodes, locate, notes, budget)
    labels = _labels(chosen, columns[chosen], kind, locate, notes) if chosen else {}
    masks = split_masks(columns[split], locate) if split else {}
    return Imported(Graph(features, edges, **labels, **masks), notes)


def _by_meaning(columns: Columns) -> dict[str, str]:
    """The columns of labels and of the split: name in lower case -> name."""
    found: dict[str, str] = {}
    for name in columns:
        meaning = name.lower()
        if meaning not in (*LABEL_COLUMNS, SPLIT_COLUMN):
            continue
        if meaning in found:
            raise GraphError(f"two columns mean {meaning!r}: rename or remove {found[meaning]!r} or {name!r}")
        found[meaning] = name
    return found


def split_masks(values: Sequence[Any], locate: Locate) -> dict[str, Any]:
    """The three masks of a split, from the name of each node's part."""
    words = [_word(value) for value in values]
    parts = [SPLIT_WORDS.get(word.lower(), "") for word in words]
    for node, (word, part) in enumerate(zip(words, parts, strict=True)):
        if word and not part:
            raise GraphError(
                f"{locate(node)}: split is {short(word)!r}, not one of {', '.join(PARTS)} or empty"
            )
    return {f"{part}_mask": np.array([one == part for one in parts]) for part in PARTS}


def _features(
    columns: Columns, edges: Integers, nodes: int, locate: Locate, notes: list[str], budget: ByteBudget
) -> Floats:
    """All feature columns [n, f]; features of the node degrees if there are none."""
    budget.reserve("features", nodes * len(columns), NUMBER_BYTES)
    numbers = {name: _numbers(name, values, locate) for name, values in columns.items()}
    blocks = [_feature_block(name, values, numbers[name], notes, budget) for name, values in columns.items()]
    features = [block for block in blocks if block is not None]
    notes += _empty_cell_notes(numbers)
    if not features:
        notes.append("no feature columns found: the features are 1 and log(1 + number of edges)")
        features = [_degree_features(edges, nodes)]
    return np.concatenate(features, axis=1)


def _feature_block(
    name: str, values: Sequence[Any], numbers: Floats | None, notes: list[str], budget: ByteBudget
) -> Floats | None:
    """One column of numbers, or one-hot columns for few different words; None for free text."""
    if numbers is not None:
        return np.nan_to_num(numbers)[:, None]
    words = [_word(value) for value in values]
    different = sorted(set(words))
    if len(different) > min(MAX_WORDS, max(2, len(words) // 2)):
        notes.append(f"{name!r} was left out because it is text; adar-deploy embed turns text into features")
        return None
    notes.append(f"{name!r} became {len(different)} one-hot columns, one per value")
    position = {word: number for number, word in enumerate(different)}
    budget.reserve(f"column {short(name)!r}", len(words) * len(different), ONE_HOT_BYTES)
    return np.eye(len(different), dtype=np.float32)[[position[word] for word in words]]


def _numbers(name: str, values: Sequence[Any], locate: Locate) -> Floats | None:
    """The values as numbers, NaN for an empty cell; None if any value is not a number."""
    empty = np.array([not _word(value) for value in values], np.bool_)
    try:
        given = [math.nan if nothing else float(value) for nothing, value in zip(empty, values, strict=True)]
        with np.errstate(over="ignore"):
            numbers = np.array(given, np.float32)
    except (TypeError, ValueError, OverflowError):
        return None
    finite = empty | np.isfinite(numbers)
    if not finite.all():
        node = int(finite.argmin())
        raise GraphError(
            f"{locate(node)}: {name!r} is {short(values[node])}, not a finite 32-bit number; "
            "leave unknown values empty"
        )
    return numbers


def _empty_cell_notes(numbers: Mapping[str, Floats | None]) -> list[str]:
    """A note that empty cells became 0, which the file does not contain."""
    counts = {name: int(np.isnan(column).sum()) for name, column in numbers.items() if column is not None}
    empty = [f"{count:,} of {name!r}" for name, count in counts.items() if count]
    if not empty:
        return []
    rest = f", …: {len(empty):,} columns in total" if len(empty) > MAX_LISTED else ""
    return [f"empty cells became 0: {', '.join(empty[:MAX_LISTED])}{rest}"]


def _degree_features(edges: Integers, nodes: int) -> Floats:
    degrees = np.bincount(edges.ravel(), minlength=nodes)
    return np.stack([np.ones(nodes), np.log1p(degrees)], axis=1).astype(np.float32)


def _labels(
    name: str, values: Sequence[Any], kind: str | None, locate: Locate, notes: list[str]
) -> dict[str, Any]:
    """Regression targets (NaN where unknown) or classes (-1 where unknown).

    Without a `kind`, labels are regression targets if one of the numbers has a fraction.
    """
    numbers = _numbers(name, values, locate)
    if kind == NUMBERS and numbers is None:
        raise GraphError(f"{name!r} contains labels that are not numbers: omit --labels {NUMBERS}")
    if numbers is not None and kind != CLASSES and (kind == NUMBERS or (numbers % 1 > 0).any()):
        notes.append(f"labels are from {name!r}: regression targets")
        return {"labels": numbers[:, None]}
    words = [_word(value) for value in values]
    if numbers is not None:  # pandas writes 1.0 for 1 if another label is missing
        words = [word.partition(".")[0] if WHOLE.fullmatch(word) else word for word in words]
    return _class_labels(name, words, numbers is not None, kind, notes)


def _class_labels(
    name: str, words: Sequence[str], integers: bool, kind: str | None, notes: list[str]
) -> dict[str, Any]:
    names = sorted({word for word in words if word}, key=float if integers else None)
    number = {word: position for position, word in enumerate(names)} | {"": -1}
    if integers and names and float(names[0]) == -1:  # the file already marks unknown labels by -1
        number, names = {word: position - 1 for position, word in enumerate(names)} | {"": -1}, names[1:]
    numbered = names == [str(position) for position in range(len(names))]
    hint = "; use --labels numbers for regression targets" if integers and not numbered and not kind else ""
    notes.append(f"labels are from {name!r}: {len(names):,} classes{hint}")
    return {
        "labels": np.array([number[word] for word in words], np.int64),
        "class_names": None if numbered else tuple(names),
    }


def _word(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _listed(names: Columns) -> str:
    return short(", ".join(names) or "none")
