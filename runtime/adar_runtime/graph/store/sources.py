"""The nodes and edges of a store: from a graph in memory, or from tables that are read in blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError, MissingExtraError, UsageError, reason, short
from adar_runtime.graph import Floats, Graph, Ids, Integers, SparseRows
from adar_runtime.graph import _checks as checks
from adar_runtime.graph.formats._parquet_check import check_parquet
from adar_runtime.graph.formats._table_files import PARQUET
from adar_runtime.graph.formats._tables import LABEL_COLUMNS, SPLIT_COLUMN
from adar_runtime.graph.formats.edge_list import HEADERS, ID_HEADINGS
from adar_runtime.graph.formats.npy import map_array
from adar_runtime.graph.limits import ByteBudget

SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLES = (*SEPARATORS, PARQUET)
ROWS = 2**20  # of a Parquet file that are read at once
TEXT_BYTES = 2**24  # of a text table that are read at once


@dataclass(frozen=True)
class GraphRows:
    """The nodes of a graph in memory."""

    graph: Graph

    @property
    def nodes(self) -> int:
        return self.graph.nodes

    @property
    def width(self) -> int:
        return self.graph.width

    @property
    def ids(self) -> Ids | None:
        return self.graph.ids

    def take(self, numbers: Integers) -> Floats | SparseRows:
        features = self.graph.features
        return features.take(numbers) if isinstance(features, SparseRows) else features[numbers]


@dataclass(frozen=True)
class ArrayRows:
    """The rows of a mapped array, with or without ids."""

    features: Floats
    ids: Ids | None = None

    @property
    def nodes(self) -> int:
        return len(self.features)

    @property
    def width(self) -> int:
        return self.features.shape[1]

    def take(self, numbers: Integers) -> Floats:
        return checks.matrix("x", self.features[numbers])


def read_nodes(path: Path, spool: Path, id_column: str | None, features: Sequence[str] | None) -> ArrayRows:
    """The nodes of a `.npy` file [n, f], or of a table of numbers, which is written to `spool` in blocks."""
    if path.suffix == ".npy":
        found = map_array(path)
        if found.ndim != 2 or found.dtype.kind not in "fiu":
            raise GraphError(f"{path}: features are numbers [nodes, columns]; got {list(found.shape)}")
        return ArrayRows(found)
    ids, columns = list[NDArray[Any]](), list[str]()
    with spool.open("wb") as file:
        for block in _blocks(path, None):
            names = block.schema.names
            chosen = id_column or next((one for one in names if one.lower() in ID_HEADINGS), names[0])
            columns = columns or _feature_columns(path, names, chosen, features)
            ids.append(_numpy(path, block, chosen))
            rows = [checks.floats(f"column {short(name)!r}", _numpy(path, block, name)) for name in columns]
            file.write(np.stack(rows, axis=1).tobytes())
    if not ids:
        raise GraphError(f"{path}: the table is empty: it needs at least one row")
    found_ids: Ids = np.concatenate(ids)
    shape = (len(found_ids), len(columns))
    mapped: Floats = np.memmap(spool, np.float32, "r", shape=shape)
    is_counted = found_ids.dtype.kind in "iu" and bool((found_ids == np.arange(len(found_ids))).all())
    return ArrayRows(mapped, None if is_counted else checks.ids(found_ids, len(found_ids)))


def _feature_columns(
    path: Path, names: Sequence[str], chosen: str, features: Sequence[str] | None
) -> list[str]:
    others = {chosen.lower(), SPLIT_COLUMN, *LABEL_COLUMNS}
    found = [name for name in names if name.lower() not in others] if features is None else list(features)
    missing = [name for name in (chosen, *found) if name not in names]
    if missing:
        raise UsageError(f"{path}: column {short(missing[0])!r} not found")
    if not found:
        raise UsageError(f"{path}: no column holds features: name them with --features")
    return found


def edge_blocks(graph: Graph) -> Iterator[Integers]:
    """The edges of a graph in memory, in blocks."""
    for start in range(0, graph.edges, ROWS):
        yield graph.edge_index[:, start : start + ROWS]


def read_edges(
    path: Path, ids: Ids | None, source: str | None, target: str | None, *, both_ways: bool
) -> Iterator[Integers]:
    """The edges of a table in blocks, with both directions if requested. `ids` are those of the nodes."""
    order = None if ids is None else np.argsort(ids, kind="stable")
    for block in _blocks(path, (source, target)):
        names = block.schema.names
        lower = {name.lower(): name for name in names}
        guess = next(((lower[a], lower[b]) for a, b in HEADERS if a in lower and b in lower), names[:2])
        ends = [
            _numpy(path, block, given or name) for given, name in zip((source, target), guess, strict=True)
        ]
        pairs = np.stack([_numbered(path, end, ids, order) for end in ends])
        yield np.concatenate([pairs, pairs[::-1]], axis=1) if both_ways else pairs


def _numbered(path: Path, end: NDArray[Any], ids: Ids | None, order: Integers | None) -> Integers:
    """The numbers of nodes, from their ids."""
    if ids is None or order is None:
        return checks.integers("edges", end)
    wanted = end.astype(np.str_) if ids.dtype.kind == "U" else checks.integers("edges", end)
    found = np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)
    numbers: Integers = order[found]
    unknown = np.flatnonzero(ids[numbers] != wanted)
    if len(unknown):
        raise GraphError(
            f"{path}: node {short(repr(wanted[unknown[0]].item()))} is not in the table of nodes"
        )
    return numbers


class _BlockBudget(ByteBudget):
    """The memory of a file that is read in blocks: every page counts alone, rows do not."""

    def reserve(self, name: str, count: int, item_bytes: int) -> None:
        self._used = 0
        if name == "pages":
            super().reserve(name, count, item_bytes)


def _blocks(path: Path, columns: tuple[str | None, str | None] | None) -> Iterator[Any]:
    """The rows of a table in blocks, as pyarrow's record batches."""
    if path.suffix not in TABLES:
        known = ", ".join(TABLES)
        raise UsageError(
            f"{path}: a table that is read in blocks ends in {known}; got {path.suffix or 'no suffix'}"
        )
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("reading a table in blocks", "parquet") from error
    try:
        if path.suffix == PARQUET:
            check_parquet(path, _BlockBudget(path.stat().st_size))
            with pyarrow.parquet.ParquetFile(path) as file:
                yield from _named(path, columns, file.iter_batches(ROWS))
            return
        reader = pyarrow.csv.open_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(block_size=TEXT_BYTES),
            parse_options=pyarrow.csv.ParseOptions(delimiter=SEPARATORS[path.suffix]),
        )
        with reader:
            yield from _named(path, columns, reader)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise GraphError(f"{path}: not a readable table ({reason(error)})") from error


def _named(path: Path, columns: tuple[str | None, str | None] | None, blocks: Any) -> Iterator[Any]:
    for block in blocks:
        for name in columns or ():
            if name is not None and name not in block.schema.names:
                raise UsageError(f"{path}: column {short(name)!r} not found")
        if columns is not None and len(block.schema.names) < 2:
            raise GraphError(f"{path}: an edge needs two columns of node ids")
        yield block


def _numpy(path: Path, block: Any, name: str) -> NDArray[Any]:
    """A column as an array: numbers, or text."""
    column = block.column(name)
    if column.null_count:
        raise GraphError(f"{path}: column {short(name)!r} has an empty cell")
    found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found.astype(np.str_) if found.dtype == object else found
