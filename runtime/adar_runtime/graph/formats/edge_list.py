"""Import edges: one edge per line of text, or a table with columns of sources and targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adar_runtime.errors import GraphError, short
from adar_runtime.graph import Floats, Integers
from adar_runtime.graph.formats._columns import Column, Locate, ValueColumn, columns_listed
from adar_runtime.graph.formats._edge_weights import WEIGHT_COLUMN, read_weights
from adar_runtime.graph.formats._rows import BLANKS, Row, collect, read_rows
from adar_runtime.graph.formats._table_files import COMMENTS, TEXT, Table, large_text, read_table_file
from adar_runtime.graph.formats._tables import LABEL_COLUMNS, ROW_NUMBERS, SPLIT_COLUMN, TableChoice

HEADERS = (("source", "target"), ("src", "dst"), ("from", "to"))
"""Headings of the two columns. ("u", "v") is not in this list because node ids may be u and v."""

ID_HEADINGS = ("id", "node", "node_id", "nodeid")
"""Headings of the column of node ids in a table of nodes."""


def guess_ids(names: Sequence[str]) -> str:
    """The column of the node ids in a table of nodes, by its heading; else the first one."""
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[word] for word in ID_HEADINGS if word in lower), names[0])


def guess_ends(names: Sequence[str]) -> tuple[str, str] | None:
    """The two columns of a table of edges, by their headings."""
    lower = {name.lower(): name for name in names}
    return next(((lower[one], lower[two]) for one, two in HEADERS if one in lower and two in lower), None)


@dataclass(frozen=True)
class EdgeTable:
    """The node ids at both ends of each edge.

    Attributes:
        source: Ids that edges start from.
        target: Ids that edges go to.
        names: The names of the two columns; None without a header.
        locate: Edge number -> where the edge is in the file.
        notes: What was decided about the columns.
        exact: As in `Table`.
        weight: Weights of the edges; None without a column "weight".
    """

    source: Column
    target: Column
    names: tuple[str, str] | None
    locate: Locate
    notes: list[str]
    exact: bool = True
    weight: Column | None = None

    def weights(self) -> Floats | None:
        """The weights of the edges, [m]; None without a column of weights."""
        if self.weight is None:
            return None
        numbers = self.weight.numbers
        values = self.weight.words() if numbers is None else numbers.values.tolist()
        return read_weights(values, self.locate)

    def sorted_ids(self) -> list[str]:
        """The node ids of all edges, sorted: by value if all ids are integers, else as text."""
        found = {*self.source.codes.words, *self.target.codes.words}
        integers = all(map(_is_integer, found))
        by_value = (lambda word: (len(word.lstrip("0")), word.lstrip("0"), word)) if integers else None
        return sorted(found, key=by_value)

    def numbered(self, ids: Mapping[str, int], table: Path | None, hint: str) -> Integers:
        """The node numbers of both ends, [2, m]. `table` and `hint` are for the error of an unknown id."""
        ends = [
            np.array([ids.get(word, -1) for word in end.codes.words] + [-1])
            for end in (self.source, self.target)
        ]
        edges: Integers = np.stack(
            [ends[0][self.source.codes.codes], ends[1][self.target.codes.codes]], dtype=np.int64
        )
        unknown = np.flatnonzero((edges < 0).any(axis=0))
        if len(unknown):
            first = int(unknown[0])
            column = self.source if edges[0, first] < 0 else self.target
            code = int(column.codes.codes[first])
            if code < 0:
                raise GraphError(f"{self.locate(first)}: an edge needs two node ids, and one is empty")
            header = ""
            if first == 0 and self.names is None:
                header = "; a header is source,target, or --source and --target name its columns"
            word = short(column.codes.words[code])
            raise GraphError(f"{self.locate(first)}: node {word!r} is not in {table}{hint}{header}")
        return edges


def read_edges(path: Path, choice: TableChoice, *, has_table: bool, exact: bool = False) -> EdgeTable:
    """Read edges from a text file with or without a header, or from a table."""
    chosen = choice.source is not None or choice.target is not None
    if path.suffix not in TEXT or chosen:
        return _from_table(read_table_file(path, exact=exact), choice)
    table = None if exact or _header(path) is None else large_text(path)
    return _from_rows(path, has_table=has_table) if table is None else _from_table(table, choice)


def first_two(names: Sequence[str]) -> tuple[str, str] | None:
    """The first two columns; row numbers do not count."""
    plain = [name for name in names if not ROW_NUMBERS.fullmatch(name)]
    return (plain[0], plain[1]) if len(plain) > 1 else None


def _from_table(table: Table, choice: TableChoice) -> EdgeTable:
    names = list(table.columns)
    _refuse_lists(names, table.skipped, choice)
    guess = guess_ends(names) or first_two(names)
    for name in (choice.source, choice.target):
        if name is not None and name not in table.columns:
            raise GraphError(
                f"column {short(name)!r} of edges not found; the columns are {columns_listed(table.columns)}"
            )
    if guess is None and None in (choice.source, choice.target):
        raise GraphError(
            f"an edge needs two columns of node ids; the columns are {columns_listed(table.columns)}"
        )
    source, target = choice.source or (guess or names)[0], choice.target or (guess or names)[1]
    if source == target:
        raise GraphError(
            f"source and target are both the column {short(source)!r}: name both with --source and --target"
        )
    return EdgeTable(
        table.columns[source],
        table.columns[target],
        (source, target),
        table.locate,
        _column_notes([*names, *table.skipped], source, target),
        table.exact,
        next((table.columns[name] for name in _weight_columns(names, source, target)), None),
    )


def _refuse_lists(names: Sequence[str], skipped: Sequence[str], choice: TableChoice) -> None:
    """Refuse lists in a column of ids or weights: another column would be read, or none."""
    wanted = {choice.source, choice.target}
    if None in wanted and guess_ends(names) is None:
        wanted |= {*(guess_ends([*names, *skipped]) or ())}
    for name in skipped:
        if name in wanted or name.lower() == WEIGHT_COLUMN:
            raise GraphError(
                f"the column {short(name)!r} of edges holds lists or objects: give one value per row"
            )


def _column_notes(names: Sequence[str], source: str, target: str) -> list[str]:
    notes = [] if guess_ends(names) == (source, target) else [f"edges go from {source!r} to {target!r}"]
    weight = _weight_columns(names, source, target)
    return notes + _other_notes(f"{source!r} and {target!r}", len(names) - 2, *weight)


def _weight_columns(names: Sequence[str], source: str, target: str) -> list[str]:
    """The column of the weights, by its heading; empty if there is none."""
    found = [name for name in names if name.lower() == WEIGHT_COLUMN and name not in (source, target)]
    return found[:1]


def _other_notes(read: str, others: int, weight: str | None = None) -> list[str]:
    """Notes on the columns beside the two node ids."""
    if weight is not None:
        rest = "; other columns of the edges are not used (edge features)" if others > 1 else ""
        return [f"edge weights are from the column {weight!r}{rest}"]
    hint = f"name a column {WEIGHT_COLUMN!r} in a header to use it as edge weights"
    return [f"only {read} of the edges were read: {hint}"] if others else []


def _header(path: Path) -> tuple[str, str] | None:
    """The names of the two columns in the first line of a text, if that line is certainly a header."""
    first = next(read_rows(path, BLANKS, COMMENTS), None)
    return None if first is None else _certain_header([cell.strip() for cell in first.cells])


def _certain_header(first: list[str]) -> tuple[str, str] | None:
    """The names of the two columns. In the other order, the words may be node ids."""
    names = guess_ends(first)
    return names if names and first.index(names[0]) < first.index(names[1]) else None


def _from_rows(path: Path, *, has_table: bool) -> EdgeTable:
    rows = collect(path, read_rows(path, BLANKS, COMMENTS))
    heading = [cell.strip() for cell in rows[0].cells] if rows else []
    names, notes = _certain_header(heading), list[str]()
    places, everything = (0, 1), rows
    if names is None and heading and ROW_NUMBERS.fullmatch(heading[0]):
        found = f"is {heading[0]!r}" if heading[0] else "has no name"
        raise GraphError(
            f"line {rows[0].line}: the first column {found}, as row numbers of pandas: leave it out "
            "(index=False), or name the columns of the ids with --source and --target"
        )
    if names is not None:
        rows = rows[1:]
    elif not has_table and rows:
        _refuse_node_table([word.lower() for word in heading], rows)
        rows, notes = _without_header(rows)
        notes += _node_table_notes(rows)
        names = guess_ends(heading) if len(rows) < len(everything) else None
    if names is not None:
        places = heading.index(names[0]), heading.index(names[1])
    for line, cells in rows:
        if len(cells) <= max(places):
            raise GraphError(f"line {line}: an edge needs two node ids, found {short(' '.join(cells))!r}")
    header = heading if len(rows) < len(everything) else []
    at = next((i for i, word in enumerate(header) if word.lower() == WEIGHT_COLUMN and i not in places), None)
    read = f"{names[0]!r} and {names[1]!r}" if names else "the first two columns"
    others = max((len(row.cells) for row in rows), default=2) - 2
    notes += _other_notes(read, others, None if at is None else header[at])
    source, target = (ValueColumn([cells[place] for _, cells in rows]) for place in places)
    weight = None
    if at is not None:
        weight = ValueColumn([cells[at] if len(cells) > at else "" for _, cells in rows])
    return EdgeTable(source, target, names, lambda edge: f"line {rows[edge].line}", notes, weight=weight)


def _refuse_node_table(first: list[str], rows: list[Row]) -> None:
    """Refuse a table with the header of a table of nodes, which has no edges."""
    marks = [*LABEL_COLUMNS, SPLIT_COLUMN, "text"]
    named = first[0] in ID_HEADINGS or any(word in marks for word in first[1:])
    if len(first) > 1 and named and not _is_integer(first[0]) and len(rows) > 1:
        raise GraphError(
            f"line {rows[0].line}: {short(','.join(rows[0].cells))!r} is the header of a table of nodes: "
            "give the file of its edges with --edges; a file of edges has the header source,target"
        )


def _without_header(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Find a header with other words than HEADERS: it is certain if all ids below are integers."""
    header, below = rows[0], rows[1:]
    words = [word.strip() for word in header.cells[:2]]
    others = {word.strip() for _, cells in below for word in cells[:2]}
    if len(words) < 2 or not below or any(word in others or _is_integer(word) for word in words):
        return rows, []
    shown = f"line {header.line} ({short(','.join(words))})"
    if all(map(_is_integer, others)):
        return below, [f"{shown} was read as a header, because all other ids are integers"]
    return rows, [f"{shown} was read as an edge; if it is a header, change it to source,target"]


def _node_table_notes(rows: list[Row]) -> list[str]:
    """A note on rows without a header that look like nodes: an id of their own each, and other columns."""
    sources, targets = ({row.cells[end].strip() for row in rows if len(row.cells) > 2} for end in (0, 1))
    if 1 < len(sources) == len(rows) and sources.isdisjoint(targets):
        return ["no id is in both of the first columns: give the file of the edges with --edges"]
    return []


def _is_integer(word: str) -> bool:
    return word.isascii() and word.isdecimal()
