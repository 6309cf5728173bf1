"""Graphs whose nodes have texts: tables of nodes, edges and classes, as CSV or JSON Lines.

| table | required columns | optional columns |
|---|---|---|
| nodes | `text`, or the columns that the caller names | `id`, `label`, `split` |
| edges | `source` and `target`: ids of nodes | `weight`: positive numbers |
| classes | `name` | `text`: a description of the class |
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, short, warn
from adar_runtime.graph import Floats, Graph, Ids, Integers, Mask
from adar_runtime.graph.directions import both_ways
from adar_runtime.graph.formats._columns import MISSING_WORDS, missing_words, parse_numbers
from adar_runtime.graph.formats._edge_weights import WEIGHT_COLUMN, read_weights
from adar_runtime.graph.formats._graph_file import reading
from adar_runtime.graph.formats._rows import number_names, read_objects, read_table
from adar_runtime.graph.formats._tables import ids_of, split_masks
from adar_runtime.graph.labels import listed
from adar_runtime.graph.limits import ByteBudget

UNKNOWN = -1  # label of a node without one


@dataclass(frozen=True, eq=False)
class TextGraph:
    """A graph with texts instead of features. A text embedding turns the texts into features.

    Attributes:
        texts: [n], one text per node.
        edge_index: [2, m], as in `Graph`.
        labels: [n] classes, -1 where unknown.
        masks: The masks of a split by name, such as "train_mask".
        class_names: [c].
        class_texts: [c] descriptions of the classes; None without a table of classes.
        ids: [n] ids of the nodes; None without a column of ids.
        edge_weight: [m] weights of the edges, from a column "weight"; None without this column.
    """

    texts: tuple[str, ...]
    edge_index: Integers
    labels: Integers | None = None
    masks: Mapping[str, Mask] | None = None
    class_names: tuple[str, ...] | None = None
    class_texts: tuple[str, ...] | None = None
    ids: Ids | None = None
    edge_weight: Floats | None = None

    def graph(self, features: Floats, target_features: Floats | None) -> Graph:
        """The graph with the embedded texts [n, f] and, if any, the embedded class descriptions [c, f]."""
        masks: Mapping[str, Any] = self.masks or {}
        return Graph(
            features=features,
            edge_index=self.edge_index,
            labels=self.labels,
            target_features=target_features,
            class_names=self.class_names,
            ids=self.ids,
            edge_weight=self.edge_weight,
            **masks,
        )


@dataclass(frozen=True)
class _Row:
    """The cells of a row by column, and the number of its first line."""

    line: int
    cells: Mapping[str, Any]

    def __contains__(self, column: str) -> bool:
        return column in self.cells

    def take(self, column: str) -> str:
        """A cell as text; "" for a missing value."""
        if column not in self.cells:
            found = short(", ".join(map(str, self.cells)) or "none")
            raise GraphError(f"line {self.line}: column {column!r} not found; the columns are {found}")
        value = self.cells[column]
        if isinstance(value, dict | list):
            raise GraphError(f"line {self.line}: {column!r} is a {type(value).__name__}, not a text")
        return "" if value is None else str(value).strip()


def read_texts(
    nodes: Path,
    edges: Path,
    classes: Path | None = None,
    columns: Sequence[str] = ("text",),
    *,
    directed: bool = False,
) -> TextGraph:
    """Read a graph from tables. Files end in `.csv` or `.jsonl`.

    Args:
        nodes: Table of nodes. Without a column `id`, nodes are numbered from 0.
        edges: Table of edges.
        classes: Table of classes. Default: the classes are the different labels, without descriptions.
        columns: Columns of `nodes` that make up a node's text, joined in this order.
        directed: Keep the direction of edges. Default: each edge is added in both directions.

    Returns:
        The graph with its texts.

    Raises:
        GraphError: A table cannot be read. The message names the file and line.

    Examples:
        >>> found = read_texts(Path("papers.csv"), Path("cites.csv"))  # doctest: +SKIP
        >>> found.graph(embed(found.texts), None)  # doctest: +SKIP
    """
    names, described = _classes(classes) if classes else (None, None)
    with reading(nodes):
        rows = _table(nodes)
        ids, masks = _ids(rows), _masks(rows)
        texts = tuple(" ".join(filter(None, (row.take(column) for column in columns))) for row in rows)
        labels, names = _labels(rows, names)
        kept = ids_of(list(ids), ByteBudget(nodes.stat().st_size)) if _has(rows, "id") else None
        _warn_unused("nodes", rows, (*columns, "id", "label", "split"))
    with reading(edges):
        links = _table(edges)
        pairs, weights = _edges(links, ids), _weights(links)
        _warn_unused("edges", links, ("source", "target", WEIGHT_COLUMN))
    if not directed:
        pairs, weights = both_ways(pairs, len(rows), weights)
    return TextGraph(
        texts=texts,
        edge_index=pairs,
        labels=labels,
        masks=masks,
        class_names=names,
        class_texts=described,
        ids=kept,
        edge_weight=weights,
    )


def _classes(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and descriptions; a class without a description is described by its name."""
    with reading(path):
        rows = _table(path)
        names = tuple(_number_column(rows, "name", "class"))
        texts = [row.take("text") if "text" in row else "" for row in rows]
        _warn_unused("classes", rows, ("name", "text"))
    described = tuple(f"{name}: {text}" if text else name for name, text in zip(names, texts, strict=True))
    return names, described


def _has(rows: Sequence[_Row], column: str) -> bool:
    """Whether a row has this column: rows of JSON may differ."""
    return any(column in row for row in rows)


def _warn_unused(table: str, rows: Sequence[_Row], used: Sequence[str]) -> None:
    """Warn about columns that are not used: their names may be mistakes."""
    unused = sorted({column for row in rows for column in row.cells}.difference(used))
    if unused:
        named = listed([short(column, 40) for column in unused])
        warn(f"columns of the table of {table} that are not used: {named}")


def _ids(rows: Sequence[_Row]) -> dict[str, int]:
    """Node id -> node number."""
    if not _has(rows, "id"):
        return {str(index): index for index in range(len(rows))}
    return _number_column(rows, "id", "node")


def _number_column(rows: Sequence[_Row], column: str, what: str) -> dict[str, int]:
    return number_names([row.take(column) for row in rows], lambda row: f"line {rows[row].line}", what)


def _labels(
    rows: Sequence[_Row], names: tuple[str, ...] | None
) -> tuple[Integers | None, tuple[str, ...] | None]:
    if not _has(rows, "label"):
        return None, names
    words = [row.take("label") if "label" in row else "" for row in rows]
    if names is None:  # a table of classes says which words are names
        names = tuple(sorted(set(words) - {""}))
        _warn_missing(names)
    number = {name: index for index, name in enumerate(names)} | {"": UNKNOWN}
    for row, word in zip(rows, words, strict=True):
        if word not in number:
            raise GraphError(
                f"line {row.line}: unknown class {short(word)!r}; the classes are {short(', '.join(names))}"
            )
    return np.array([number[word] for word in words], np.int64), names or None


def _warn_missing(names: Sequence[str]) -> None:
    """Warn about classes whose names other programs write for an unknown label."""
    what = "is the name of a class: leave unknown labels empty"
    found = missing_words("label", names, what)
    numbers = parse_numbers([name for name in names if name.lower() not in MISSING_WORDS])
    if str(UNKNOWN) in names and numbers is not None and not (numbers < UNKNOWN).any():
        found.append(f"'{UNKNOWN}' in 'label' {what}")
    for note in found:
        warn(note)


def _masks(rows: Sequence[_Row]) -> dict[str, Mask] | None:
    if not _has(rows, "split"):
        return None
    words = [row.take("split") if "split" in row else "" for row in rows]
    return split_masks(words, lambda node: f"line {rows[node].line}")


def _edges(rows: Sequence[_Row], ids: Mapping[str, int]) -> Integers:
    ends: list[list[int]] = [[], []]
    for row in rows:
        for side, column in zip(ends, ("source", "target"), strict=True):
            name = row.take(column)
            if name not in ids:
                raise GraphError(f"line {row.line}: {column} is {short(name)!r}, which is not a node id")
            side.append(ids[name])
    return np.array(ends, np.int64)


def _weights(rows: Sequence[_Row]) -> Floats | None:
    if not _has(rows, WEIGHT_COLUMN):
        return None
    words = [row.take(WEIGHT_COLUMN) for row in rows]
    return read_weights(words, lambda edge: f"line {rows[edge].line}")


def _table(path: Path) -> list[_Row]:
    if path.suffix not in READERS:
        raise GraphError(f"a table ends in {' or '.join(READERS)}; got {path.suffix or 'no suffix'}")
    return READERS[path.suffix](path)


def _csv(path: Path) -> list[_Row]:
    header, rows = read_table(path, ",")
    return [_Row(line, dict(zip(header, cells, strict=True))) for line, cells in rows]


def _jsonl(path: Path) -> list[_Row]:
    return [_Row(line, cells) for line, cells in read_objects(path)]


READERS: dict[str, Callable[[Path], list[_Row]]] = {".csv": _csv, ".jsonl": _jsonl}
