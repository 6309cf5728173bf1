"""Edges as text, one a line, with a table of nodes beside them or without."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from adar_runtime.errors import GraphError, short
from adar_runtime.graph import Integers
from adar_runtime.graph.formats.columns import Imported, to_graph
from adar_runtime.graph.formats.reading import reading
from adar_runtime.graph.formats.rows import BLANKS, Row, number, read_rows, read_table

COMMENT = ("#", "%")
HEADINGS = {("source", "target"), ("src", "dst"), ("from", "to")}
"""How a first line begins that is no edge. Ids may be u and v, so these are none."""


class _Nodes(NamedTuple):
    """Who they are, what is known of them, on which line, and how to find the ids."""

    ids: dict[str, int]
    columns: dict[str, list[str]]
    lines: list[int]
    hint: str


def read(
    path: Path, table: Path | None = None, label: str | None = None, kind: str | None = None
) -> Imported:
    """Read edges and, from `table`, the nodes: an id in the first column, what is known of it after."""
    given = _nodes(table) if table else None
    with reading(path):
        rows = _edge_rows(path)
        nodes = given or _Nodes(_ids(rows), {}, [], "")
        edges = _edges(rows, nodes, table)
    notes = [] if table else ["nodes are numbered in the order of their ids"]
    if rows and len(rows[0].cells) > 2:
        notes.append("only the first two columns are read: an edge has no weight")
    with reading(table or path):
        imported = to_graph(
            nodes.columns, edges, len(nodes.ids), label, kind, where=lambda node: f"line {nodes.lines[node]}"
        )
    return Imported(imported.graph, notes + imported.notes)


def _nodes(table: Path) -> _Nodes:
    with reading(table):
        (first, *names), rows = read_table(table, BLANKS, COMMENT)
        lines = [row.line for row in rows]
        column = f"the table's first column, {short(first)!r}"
        hint = f": {column}, is taken for the ids; put those that edges use there"
        ids = number([row.cells[0].strip() for row in rows], lines, "node", hint)
    columns = {name: [row.cells[i] for row in rows] for i, name in enumerate(names, 1)}
    return _Nodes(ids, columns, lines, hint)


def _edge_rows(path: Path) -> list[Row]:
    rows = list(read_rows(path, BLANKS, COMMENT))
    heading = rows and tuple(word.strip().lower() for word in rows[0].cells[:2]) in HEADINGS
    rows = rows[1:] if heading else rows
    for line, cells in rows:
        if len(cells) < 2:
            raise GraphError(f"line {line} has no two ends: {short(' '.join(cells))!r}")
    return rows


def _ids(rows: list[Row]) -> dict[str, int]:
    """The ids that edges speak of, in order: numbers by their size, others as words."""
    found = {word.strip() for _, cells in rows for word in cells[:2]}
    numbers = all(word.isascii() and word.isdecimal() for word in found)
    by_size = (lambda word: (len(word.lstrip("0")), word.lstrip("0"), word)) if numbers else None
    return {word: place for place, word in enumerate(sorted(found, key=by_size))}


def _edges(rows: list[Row], nodes: _Nodes, table: Path | None) -> Integers:
    ends = np.empty((2, len(rows)), np.int64)
    for place, (line, cells) in enumerate(rows):
        for end in (0, 1):
            node = nodes.ids.get(cells[end].strip())
            if node is None:
                raise GraphError(f"line {line}: {table} has no node {short(cells[end])!r}{nodes.hint}")
            ends[end, place] = node
    return ends
