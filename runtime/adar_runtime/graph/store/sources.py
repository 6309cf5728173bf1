"""The nodes and edges of a store: from a graph in memory, or from tables that are read in blocks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError, MissingExtraError, UsageError, reason, short, warn
from adar_runtime.graph import Floats, Graph, Ids, Integers, SparseRows
from adar_runtime.graph import _checks as checks
from adar_runtime.graph.formats._parquet_check import check_parquet
from adar_runtime.graph.formats._rows import check_header
from adar_runtime.graph.formats._table_files import PARQUET
from adar_runtime.graph.formats._tables import LABEL_COLUMNS, SPLIT_COLUMN
from adar_runtime.graph.formats.edge_list import HEADERS, ID_HEADINGS
from adar_runtime.graph.formats.npy import map_array
from adar_runtime.graph.limits import ByteBudget

SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLES = (*SEPARATORS, PARQUET)
ROWS = 2**20  # rows that are read at once, at most
BLOCK_BYTES = 2**26  # numbers of a block of a Parquet file: with many columns, a block has fewer rows
NO_WEIGHTS = "the edge weights are left out: a graph store has none"
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
    ids, width = list[NDArray[Any]](), 0

    def choose(names: Sequence[str]) -> list[str]:
        chosen = id_column or next((one for one in names if one.lower() in ID_HEADINGS), names[0])
        return [chosen, *_feature_columns(path, names, chosen, features)]

    with spool.open("wb") as file:
        for chosen, *columns in _blocks(path, choose):
            ids.append(chosen.values)
            rows = [checks.floats(f"column {short(one.name)!r}", one.values) for one in columns]
            file.write(np.stack(rows, axis=1).tobytes())
            width = len(columns)
    if not ids:
        raise GraphError(f"{path}: the table is empty: it needs at least one row")
    # numpy pads every id to the longest one.
    longest = max(one.dtype.itemsize for one in ids)
    ByteBudget(path.stat().st_size).reserve(f"{path}: ids", sum(map(len, ids)), 2 * longest)
    found_ids: Ids = np.concatenate(ids)
    shape = (len(found_ids), width)
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
    if graph.edge_weight is not None:
        warn(NO_WEIGHTS)
    for start in range(0, graph.edges, ROWS):
        yield graph.edge_index[:, start : start + ROWS]


def read_edges(
    path: Path, ids: Ids | None, source: str | None, target: str | None, *, both_ways: bool
) -> Iterator[Integers]:
    """The edges of a table in blocks, with both directions if requested. `ids` are those of the nodes."""
    order = None if ids is None else np.argsort(ids, kind="stable")

    def choose(names: Sequence[str]) -> list[str]:
        if len(names) < 2:
            raise GraphError(f"{path}: an edge needs two columns of node ids")
        lower = {name.lower(): name for name in names}
        if "weight" in lower:
            warn(NO_WEIGHTS)
        guess = next(((lower[a], lower[b]) for a, b in HEADERS if a in lower and b in lower), names[:2])
        return [given or name for given, name in zip((source, target), guess, strict=True)]

    for ends in _blocks(path, choose):
        pairs = np.stack([_numbered(path, end.values, ids, order) for end in ends])
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


class _Column(NamedTuple):
    """A column of a block: numbers or text."""

    name: str
    values: NDArray[Any]


def _blocks(path: Path, choose: Callable[[Sequence[str]], list[str]]) -> Iterator[list[_Column]]:
    """The rows of a table in blocks. `choose` names the columns to read; no other column is decoded."""
    if path.suffix not in TABLES:
        known = ", ".join(TABLES)
        raise UsageError(
            f"{path}: a table that is read in blocks ends in {known}; got {path.suffix or 'no suffix'}"
        )
    if not path.is_file():  # a pipe or a device may never end
        raise GraphError(f"{path}: there is no such file")
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
                names = _chosen(path, file.schema_arrow.names, choose)
                texts = _check_plain(path, [file.schema_arrow.field(name) for name in names])
            # Texts stay codes: a file can repeat one long text any number of times.
            with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
                rows = max(1, min(ROWS, BLOCK_BYTES // (8 * len(names))))
                for block in file.iter_batches(rows, columns=names):
                    yield [_column(path, name, block.column(name)) for name in names]
            return
        reader = pyarrow.csv.open_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(block_size=TEXT_BYTES),
            parse_options=pyarrow.csv.ParseOptions(delimiter=SEPARATORS[path.suffix]),
        )
        with reader:
            names = _chosen(path, reader.schema.names, choose)
            _check_plain(path, [reader.schema.field(name) for name in names])
            for block in reader:
                yield [_column(path, name, block.column(name)) for name in names]
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise GraphError(f"{path}: not a readable table ({reason(error)})") from error


def _chosen(path: Path, names: Sequence[str], choose: Callable[[Sequence[str]], list[str]]) -> list[str]:
    """The columns to read, which the table has once each."""
    try:
        check_header(names, 1)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error
    if not names:
        raise GraphError(f"{path}: the table has no columns")
    chosen = choose(names)
    missing = next((name for name in chosen if name not in names), None)
    if missing is not None:
        raise UsageError(f"{path}: column {short(missing)!r} not found")
    return chosen


def _check_plain(path: Path, fields: Sequence[Any]) -> list[str]:
    """Refuse columns of anything but numbers and texts. Returns the names of those with texts."""
    import pyarrow

    kinds, found = pyarrow.types, list[str]()
    for field in fields:
        kind = field.type.value_type if kinds.is_dictionary(field.type) else field.type
        numbers = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)
        texts = kinds.is_string(kind) or kinds.is_large_string(kind)
        found += [field.name] if texts else []
        if not (numbers or texts or kinds.is_null(kind)):
            hint = ": save the table as UTF-8" if kinds.is_binary(kind) else ""
            raise GraphError(
                f"{path}: column {short(field.name)!r} holds {short(kind)}, not numbers or text{hint}"
            )
    return found


def _column(path: Path, name: str, column: Any) -> _Column:
    """A column of a block as an array. numpy pads every text to the longest one: that is counted first."""
    import pyarrow

    is_coded = pyarrow.types.is_dictionary(column.type)
    codes = column if is_coded or pyarrow.types.is_primitive(column.type) else column.dictionary_encode()
    words = codes.dictionary.to_pylist() if codes is not column or is_coded else []
    if column.null_count or None in words:
        raise GraphError(f"{path}: column {short(name)!r} has an empty cell")
    if not words:
        return _Column(name, column.to_numpy(zero_copy_only=False))
    longest = max(len(str(word)) for word in words)
    count = len(column) + len(words)
    ByteBudget(path.stat().st_size).reserve(f"{path}: column {short(name)!r}", count, 4 * longest)
    return _Column(name, np.array(words)[codes.indices.to_numpy(zero_copy_only=False)])
