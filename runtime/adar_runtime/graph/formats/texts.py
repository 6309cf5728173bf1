"""Graphs as people have them: tables of texts and of edges, as CSV or as JSON Lines.

| table | columns |
|---|---|
| nodes | `text` (or the columns that are asked for); `id`, `label` and `split` where there are any |
| edges | `source` and `target`, which are ids of nodes |
| classes | `name`; `text`, a description, where there is one |
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, reason, short
from adar_runtime.graph import Floats, Graph, Integers, Mask
from adar_runtime.graph.formats.columns import split_masks
from adar_runtime.graph.formats.reading import reading
from adar_runtime.graph.formats.rows import number, read_lines, read_table

UNKNOWN = -1


@dataclass(frozen=True, eq=False)
class TextGraph:
    """All of a graph but its numbers, which an embedding makes of the texts."""

    texts: tuple[str, ...]  # [n]
    edge_index: Integers  # [2, m]
    labels: Integers | None = None
    masks: Mapping[str, Mask] | None = None
    class_names: tuple[str, ...] | None = None
    class_texts: tuple[str, ...] | None = None  # None where classes were not described

    def graph(self, features: Floats, target_features: Floats | None) -> Graph:
        """The graph, with what the texts were embedded as."""
        masks: Mapping[str, Any] = self.masks or {}
        return Graph(
            features=features,
            edge_index=self.edge_index,
            labels=self.labels,
            target_features=target_features,
            class_names=self.class_names,
            **masks,
        )


@dataclass(frozen=True)
class _Row:
    """One entry of a table, and the line that it begins on."""

    line: int
    cells: Mapping[str, Any]

    def __contains__(self, column: str) -> bool:
        return column in self.cells

    def take(self, column: str) -> str:
        """A cell as text; a missing value is none."""
        if column not in self.cells:
            found = short(", ".join(map(str, self.cells)) or "nothing")
            raise GraphError(f"line {self.line}: there is no column {column!r}, only {found}")
        value = self.cells[column]
        if isinstance(value, dict | list):
            raise GraphError(f"line {self.line}: {column!r} holds a {type(value).__name__}, not a text")
        return "" if value is None else str(value).strip()


def read_texts(
    nodes: Path,
    edges: Path,
    classes: Path | None = None,
    columns: Sequence[str] = ("text",),
    *,
    directed: bool = False,
) -> TextGraph:
    """Read the tables of a graph; a mistake is named with its file and line.

    A node's text is that of its `columns`, one after the other. Without a column `id`, nodes are
    numbered from 0. An edge counts in both directions unless `directed`.
    """
    names, described = _classes(classes) if classes else (None, None)
    with reading(nodes):
        rows = _table(nodes)
        ids, masks = _ids(rows), _masks(rows)
        texts = tuple(" ".join(filter(None, (row.take(column) for column in columns))) for row in rows)
        labels, names = _labels(rows, names)
    with reading(edges):
        pairs = _edges(_table(edges), ids)
    if not directed:
        pairs = np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
    return TextGraph(
        texts=texts,
        edge_index=pairs,
        labels=labels,
        masks=masks,
        class_names=names,
        class_texts=described,
    )


def _classes(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and descriptions; a class without a description is described by its name."""
    with reading(path):
        rows = _table(path)
        names = tuple(_number(rows, "name", "class"))
        texts = [row.take("text") if "text" in row else "" for row in rows]
    described = tuple(f"{name}: {text}" if text else name for name, text in zip(names, texts, strict=True))
    return names, described


def _ids(rows: Sequence[_Row]) -> dict[str, int]:
    """The place of each node."""
    if "id" not in rows[0]:
        return {str(index): index for index in range(len(rows))}
    return _number(rows, "id", "node")


def _number(rows: Sequence[_Row], column: str, what: str) -> dict[str, int]:
    return number([row.take(column) for row in rows], [row.line for row in rows], what)


def _labels(
    rows: Sequence[_Row], names: tuple[str, ...] | None
) -> tuple[Integers | None, tuple[str, ...] | None]:
    if not any("label" in row for row in rows):
        return None, names
    words = [row.take("label") if "label" in row else "" for row in rows]
    names = names or tuple(sorted(set(words) - {""}))
    place = {name: index for index, name in enumerate(names)} | {"": UNKNOWN}
    for row, word in zip(rows, words, strict=True):
        if word not in place:
            raise GraphError(
                f"line {row.line}: there is no class {short(word)!r} among {short(', '.join(names))}"
            )
    return np.array([place[word] for word in words], np.int64), names or None


def _masks(rows: Sequence[_Row]) -> dict[str, Mask] | None:
    if not any("split" in row for row in rows):
        return None
    words = [row.take("split") if "split" in row else "" for row in rows]
    return split_masks(words, lambda node: f"line {rows[node].line}")


def _edges(rows: Sequence[_Row], ids: Mapping[str, int]) -> Integers:
    ends: list[list[int]] = [[], []]
    for row in rows:
        for side, column in zip(ends, ("source", "target"), strict=True):
            name = row.take(column)
            if name not in ids:
                raise GraphError(f"line {row.line}: {column} is {short(name)!r}, and there is no such node")
            side.append(ids[name])
    return np.array(ends, np.int64)


def _table(path: Path) -> list[_Row]:
    if path.suffix not in READERS:
        raise GraphError(f"a table is .csv or .jsonl, not {path.suffix or 'nothing'!r}")
    return READERS[path.suffix](path)


def _csv(path: Path) -> list[_Row]:
    heading, rows = read_table(path, ",")
    return [_Row(line, dict(zip(heading, cells, strict=True))) for line, cells in rows]


def _jsonl(path: Path) -> list[_Row]:
    rows = [_Row(line, _object(line, text)) for line, text in read_lines(path) if text.strip()]
    if not rows:
        raise GraphError("the table is empty: it has to have an object a line")
    return rows


def _object(line: int, text: str) -> Mapping[str, Any]:
    try:
        cells = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"line {line}: not JSON ({reason(error)})") from error
    if not isinstance(cells, dict):
        raise GraphError(f"line {line}: not a JSON object")
    return cells


READERS: dict[str, Callable[[Path], list[_Row]]] = {".csv": _csv, ".jsonl": _jsonl}
