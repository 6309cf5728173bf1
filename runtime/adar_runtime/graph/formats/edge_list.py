"""Import edges as text, one edge per line, with or without a table of nodes."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from adar_runtime.errors import GraphError, short
from adar_runtime.graph import Integers
from adar_runtime.graph.formats._graph_file import reading
from adar_runtime.graph.formats._tables import (
    BLANKS,
    LABEL_COLUMNS,
    SPLIT_COLUMN,
    Imported,
    Row,
    collect,
    graph_from_columns,
    number_names,
    read_rows,
    read_table,
)
from adar_runtime.graph.limits import ByteBudget

COMMENTS = ("#", "%")
HEADERS = {("source", "target"), ("src", "dst"), ("from", "to")}
"""First two cells of a header line. ("u", "v") is not in this list because node ids may be u and v."""


NODE_ID_HEADERS = ("id", "node", "node_id", "nodeid")
"""First cell of the header of a table of nodes."""


class _NodeTable(NamedTuple):
    ids: dict[str, int]  # node id -> node number
    columns: dict[str, list[str]]
    lines: list[int]  # the line of each node
    hint: str  # which column the ids are from, for error messages


def read(
    path: Path, table: Path | None = None, label: str | None = None, kind: str | None = None
) -> Imported:
    """Read edges, and nodes from `table`: the id in the first column, other columns as in `_tables`."""
    nodes = _read_nodes(table) if table else None
    with reading(path):
        rows, header_notes = _edge_rows(path, has_table=table is not None)
        nodes = nodes or _NodeTable(_sorted_ids(rows), {}, [], "")
        edges = _edges(rows, nodes, table)
    notes = [] if table else ["nodes are numbered in the order of their ids"]
    notes += header_notes
    if any(len(row.cells) > 2 for row in rows):
        notes.append("only the first two columns were read: edge weights are not supported")
    lines = nodes.lines
    with reading(table or path):
        imported = graph_from_columns(
            nodes.columns,
            edges,
            len(nodes.ids),
            label,
            kind,
            locate=lambda node: f"line {lines[node]}",
            budget=ByteBudget((table or path).stat().st_size),
        )
    return Imported(imported.graph, notes + imported.notes)


def _read_nodes(table: Path) -> _NodeTable:
    with reading(table):
        (first, *names), rows = read_table(table, BLANKS, COMMENTS)
        lines = [row.line for row in rows]
        hint = f"; node ids are read from the table's first column, {short(first)!r}"
        ids = number_names([row.cells[0].strip() for row in rows], lines, "node", hint)
    columns = {name: [row.cells[i] for row in rows] for i, name in enumerate(names, 1)}
    return _NodeTable(ids, columns, lines, hint)


def _edge_rows(path: Path, *, has_table: bool) -> tuple[list[Row], list[str]]:
    """The rows of edges, without the header, and notes on the header."""
    rows = collect(path, read_rows(path, BLANKS, COMMENTS))
    first = [word.strip().lower() for word in rows[0].cells] if rows else []
    notes: list[str] = []
    if tuple(first[:2]) in HEADERS:
        rows = rows[1:]
    elif not has_table and rows:
        _refuse_node_table(first, rows)
        rows, notes = _without_header(rows)
        notes += _node_table_notes(rows)
    for line, cells in rows:
        if len(cells) < 2:
            raise GraphError(f"line {line}: an edge needs two node ids, found {short(' '.join(cells))!r}")
    return rows, notes


def _refuse_node_table(first: list[str], rows: list[Row]) -> None:
    """Refuse a table with the header of a table of nodes, which has no edges."""
    marks = [*LABEL_COLUMNS, SPLIT_COLUMN, "text"]
    named = first[0] in NODE_ID_HEADERS or any(word in marks for word in first[1:])
    if len(first) > 1 and named and not _is_integer(first[0]) and len(rows) > 1:
        raise GraphError(
            f"line {rows[0].line}: {short(','.join(rows[0].cells))!r} is the header of a table of nodes: "
            "give a file of edges, and this file with --table; a file of edges has the header source,target"
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
        return ["no id is in both of the first columns: give a table of nodes with --table, not as edges"]
    return []


def _is_integer(word: str) -> bool:
    return word.isascii() and word.isdecimal()


def _sorted_ids(rows: list[Row]) -> dict[str, int]:
    """The node ids of all edges, sorted: by value if all ids are integers, else as text."""
    found = {word.strip() for _, cells in rows for word in cells[:2]}
    integers = all(map(_is_integer, found))
    by_value = (lambda word: (len(word.lstrip("0")), word.lstrip("0"), word)) if integers else None
    return {word: position for position, word in enumerate(sorted(found, key=by_value))}


def _edges(rows: list[Row], nodes: _NodeTable, table: Path | None) -> Integers:
    edges = np.empty((2, len(rows)), np.int64)
    for position, (line, cells) in enumerate(rows):
        for end in (0, 1):
            node = nodes.ids.get(cells[end].strip())
            if node is None:
                header = "; a header is source,target" if position == 0 else ""
                raise GraphError(
                    f"line {line}: node {short(cells[end])!r} is not in {table}{nodes.hint}{header}"
                )
            edges[end, position] = node
    return edges
