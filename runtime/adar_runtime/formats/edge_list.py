"""Edges as text, one a line, with a table of nodes beside them or without."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, reason, short
from adar_runtime.formats.columns import Imported, to_graph
from adar_runtime.graph import Integers
from adar_runtime.limits import check_size

SEPARATORS = "\t,;"
COMMENT = ("#", "%")
HEADINGS = {("source", "target"), ("src", "dst"), ("from", "to")}
"""How a first line begins that is no edge. Ids may be u and v, so these are none."""

Rows = list[tuple[int, list[str]]]
"""Fields, with the number of their line."""


def read(path: Path, table: Path | None = None, label: str | None = None) -> Imported:
    """Read edges and, from `table`, the nodes: an id in the first column, what is known of it after."""
    rows = list(_rows(path))
    heading = rows and tuple(word.strip().lower() for word in rows[0][1][:2]) in HEADINGS
    rows = rows[1:] if heading else rows
    for line, fields in rows:
        if len(fields) < 2:
            raise GraphError(f"line {line} has no two ends: {short(' '.join(fields))!r}")
    notes = [] if table else ["nodes are numbered in the order of their ids"]
    if rows and len(rows[0][1]) > 2:
        notes.append("only the first two columns are read: an edge has no weight")
    ids, columns = _node_table(table) if table else (_ids(rows), {})
    imported = to_graph(columns, _edges(rows, ids), len(ids), label)
    return Imported(imported.graph, notes + imported.notes)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """One separator for the whole file: a text may hold any of the others."""
    check_size(path)
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        separator: str | None = None
        for first, (number, line) in enumerate(line for line in lines if not line[1].startswith(COMMENT)):
            if not first:
                separator = _separator(path, line)
            try:
                yield number, next(csv.reader([line], delimiter=separator)) if separator else line.split()
            except csv.Error as error:
                raise GraphError(f"{path}: line {number} is no line of a table ({reason(error)})") from error


def _separator(path: Path, line: str) -> str | None:
    """What the name of the file says, or what the first line has most of; None is blanks."""
    if path.suffix == ".tsv":
        return "\t"
    most = max(SEPARATORS, key=line.count)
    return most if most in line else None


def _node_table(path: Path) -> tuple[dict[str, int], dict[str, Any]]:
    """The place of each id, and the columns by their names in the heading."""
    rows = list(_rows(path))
    if len(rows) < 2:
        raise GraphError(f"{path}: a table of nodes has a heading and a line for each")
    heading, rows = [word.strip() for word in rows[0][1]], rows[1:]
    ids: dict[str, int] = {}
    for line, fields in rows:
        if len(fields) != len(heading):
            raise GraphError(f"{path}: line {line} has {len(fields)} fields, and the heading {len(heading)}")
        if fields[0].strip() in ids:
            raise GraphError(f"{path}: line {line} has the id {short(fields[0])!r} a second time")
        ids[fields[0].strip()] = len(ids)
    return ids, {name: [fields[i] for _, fields in rows] for i, name in enumerate(heading) if i}


def _ids(rows: Rows) -> dict[str, int]:
    """The ids that edges speak of, in order: numbers by their size, others as words."""
    found = {word.strip() for _, fields in rows for word in fields[:2]}
    numbers = all(word.isascii() and word.isdecimal() for word in found)
    by_size = (lambda word: (len(word.lstrip("0")), word.lstrip("0"), word)) if numbers else None
    return {word: place for place, word in enumerate(sorted(found, key=by_size))}


def _edges(rows: Rows, ids: dict[str, int]) -> Integers:
    ends = np.empty((2, len(rows)), np.int64)
    for place, (line, fields) in enumerate(rows):
        for end in (0, 1):
            node = ids.get(fields[end].strip())
            if node is None:
                raise GraphError(f"line {line}: the table has no node {short(fields[end])!r}")
            ends[end, place] = node
    return ends
