"""Graphs as people have them: tables of texts and of edges, as CSV or as JSON Lines.

| table | columns |
|---|---|
| nodes | `text` (or the columns that are asked for); `id`, `label` and `split` where there are any |
| edges | `source` and `target`, which are ids of nodes |
| classes | `name`; `text`, a description, where there is one |
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, reason, short
from adar_runtime.formats.columns import PARTS
from adar_runtime.graph import Floats, Graph, Integers, Mask
from adar_runtime.limits import check_size

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
    """One entry of a table, and where it stands."""

    where: str
    cells: Mapping[str, Any]

    def __contains__(self, column: str) -> bool:
        return column in self.cells

    def take(self, column: str) -> str:
        """A cell as text; a missing value is none."""
        if column not in self.cells:
            found = short(", ".join(map(str, self.cells)) or "nothing")
            raise GraphError(f"{self.where}: there is no column {column!r}, only {found}")
        value = self.cells[column]
        if isinstance(value, dict | list):
            raise GraphError(f"{self.where}: {column!r} holds a {type(value).__name__}, not a text")
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
    rows, (names, described) = _table(nodes), _classes(classes)
    ids, masks = _ids(rows), _masks(rows)
    texts = tuple(" ".join(filter(None, (row.take(column) for column in columns))) for row in rows)
    labels, names = _labels(rows, names)
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


def _classes(path: Path | None) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Names and descriptions; a class without a description is described by its name."""
    if path is None:
        return None, None
    rows = _table(path)
    names = tuple(row.take("name") for row in rows)
    _check_different(rows, names, "class")
    texts = [row.take("text") if "text" in row else "" for row in rows]
    described = tuple(f"{name}: {text}" if text else name for name, text in zip(names, texts, strict=True))
    return names, described


def _ids(rows: Sequence[_Row]) -> dict[str, int]:
    """The place of each node."""
    if "id" not in rows[0]:
        return {str(index): index for index in range(len(rows))}
    names = [row.take("id") for row in rows]
    _check_different(rows, names, "node")
    return {name: index for index, name in enumerate(names)}


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
                f"{row.where}: there is no class {short(word)!r} among {short(', '.join(names))}"
            )
    return np.array([place[word] for word in words], np.int64), names or None


def _masks(rows: Sequence[_Row]) -> dict[str, Mask] | None:
    if not any("split" in row for row in rows):
        return None
    words = [row.take("split") if "split" in row else "" for row in rows]
    for row, word in zip(rows, words, strict=True):
        if word and word.lower() not in PARTS:
            raise GraphError(f"{row.where}: split is {short(word)!r}, not one of train, val, test or empty")
    parts = [PARTS.get(word.lower(), "") for word in words]
    return {f"{part}_mask": np.array([one == part for one in parts]) for part in ("train", "val", "test")}


def _edges(rows: Sequence[_Row], ids: Mapping[str, int]) -> Integers:
    ends: list[list[int]] = [[], []]
    for row in rows:
        for side, column in zip(ends, ("source", "target"), strict=True):
            name = row.take(column)
            if name not in ids:
                raise GraphError(f"{row.where}: {column} is {short(name)!r}, and there is no such node")
            side.append(ids[name])
    return np.array(ends, np.int64)


def _check_different(rows: Sequence[_Row], names: Sequence[str], what: str) -> None:
    seen: dict[str, str] = {}
    for row, name in zip(rows, names, strict=True):
        if not name:
            raise GraphError(f"{row.where}: the {what} has no name")
        if name in seen:
            raise GraphError(f"{row.where}: the {what} {short(name)!r} is there already, in {seen[name]}")
        seen[name] = row.where


def _table(path: Path) -> list[_Row]:
    if path.suffix not in READERS:
        raise GraphError(f"{path}: a table is .csv or .jsonl, not {path.suffix or 'nothing'!r}")
    try:
        check_size(path)
        rows = list(READERS[path.suffix](path))
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error, RecursionError) as error:
        raise GraphError(f"{path}: not a table in UTF-8 ({reason(error)})") from error
    if not rows:
        raise GraphError(f"{path}: the table is empty")
    return rows


def _csv(path: Path) -> Iterator[_Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:  # Excel writes a byte order mark
        reader = csv.DictReader(file)
        for cells in reader:
            if None in cells:
                raise GraphError(
                    f"{path}, line {reader.line_num}: more cells than the first line has columns"
                )
            yield _Row(f"{path}, line {reader.line_num}", cells)


def _jsonl(path: Path) -> Iterator[_Row]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                cells = json.loads(line)
            except ValueError as error:
                raise GraphError(f"{path}, line {number}: not JSON ({reason(error)})") from error
            if not isinstance(cells, dict):
                raise GraphError(f"{path}, line {number}: not a JSON object")
            yield _Row(f"{path}, line {number}", cells)


READERS: dict[str, Callable[[Path], Iterator[_Row]]] = {".csv": _csv, ".jsonl": _jsonl}
