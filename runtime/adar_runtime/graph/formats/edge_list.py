"""Import edges as text, one edge per line, with or without a table of nodes."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from adar_runtime.errors import GraphError, short
from adar_runtime.graph import Integers
from adar_runtime.graph.formats._graph_file import reading
from adar_runtime.graph.formats._tables import (
    BLANKS,
    Imported,
    Row,
    graph_from_columns,
    number_names,
    read_rows,
    read_table,
)

COMMENTS = ("#", "%")
HEADERS = {("source", "target"), ("src", "dst"), ("from", "to")}
"""First two cells of a header line. ("u", "v") is not in this list because node ids may be u and v."""


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
        rows = _edge_rows(path)
        nodes = nodes or _NodeTable(_sorted_ids(rows), {}, [], "")
        edges = _edges(rows, nodes, table)
    notes = [] if table else ["nodes are numbered in the order of their ids"]
    if rows and len(rows[0].cells) > 2:
        notes.append("only the first two columns were read: edge weights are not supported")
    lines = nodes.lines
    with reading(table or path):
        imported = graph_from_columns(
            nodes.columns, edges, len(nodes.ids), label, kind, locate=lambda node: f"line {lines[node]}"
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


def _edge_rows(path: Path) -> list[Row]:
    rows = list(read_rows(path, BLANKS, COMMENTS))
    has_header = rows and tuple(word.strip().lower() for word in rows[0].cells[:2]) in HEADERS
    rows = rows[1:] if has_header else rows
    for line, cells in rows:
        if len(cells) < 2:
            raise GraphError(f"line {line}: an edge needs two node ids, found {short(' '.join(cells))!r}")
    return rows


def _sorted_ids(rows: list[Row]) -> dict[str, int]:
    """The node ids of all edges, sorted: by value if all ids are integers, else as text."""
    found = {word.strip() for _, cells in rows for word in cells[:2]}
    integers = all(word.isascii() and word.isdecimal() for word in found)
    by_value = (lambda word: (len(word.lstrip("0")), word.lstrip("0"), word)) if integers else None
    return {word: position for position, word in enumerate(sorted(found, key=by_value))}


def _edges(rows: list[Row], nodes: _NodeTable, table: Path | None) -> Integers:
    edges = np.empty((2, len(rows)), np.int64)
    for position, (line, cells) in enumerate(rows):
        for end in (0, 1):
            node = nodes.ids.get(cells[end].strip())
            if node is None:
                raise GraphError(f"line {line}: node {short(cells[end])!r} is not in {table}{nodes.hint}")
            edges[end, position] = node
    return edges
