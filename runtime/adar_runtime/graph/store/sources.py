"""The nodes and edges of a store: from a graph in memory, or from tables that are read in blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError, UsageError, short, warn
from adar_runtime.graph import EncodedColumn, FeatureEncoding, Floats, Graph, Ids, Integers, SparseRows
from adar_runtime.graph import _checks as checks
from adar_runtime.graph.feature_encoding import NUMBER
from adar_runtime.graph.formats._table_files import PARQUET
from adar_runtime.graph.formats._tables import INTEGER, TableChoice, column_roles
from adar_runtime.graph.formats.edge_list import first_two, guess_ends, guess_ids
from adar_runtime.graph.formats.npy import map_array
from adar_runtime.graph.limits import ByteBudget, check_stored
from adar_runtime.graph.store.table_blocks import ROWS, Chosen, read_blocks

NO_WEIGHTS = "the edge weights are left out: a graph store has none"
INTEGER_AS_TEXT = 4 * 21  # bytes of a 64-bit id, if other ids are texts


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
    """The rows of a mapped array, with or without ids.

    Attributes:
        features: [n, f].
        ids: [n], or None.
        encoding: The columns of the table that became the features; None for a file of an array.
    """

    features: Floats
    ids: Ids | None = None
    encoding: FeatureEncoding | None = None

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
        try:
            check_stored([path])
        except GraphError as error:
            raise GraphError(f"{path}: {error}") from error
        if found.ndim != 2 or found.dtype.kind not in "fiu":
            raise GraphError(f"{path}: features are numbers [nodes, columns]; got {list(found.shape)}")
        return ArrayRows(found)
    ids, chosen = list[NDArray[Any]](), Chosen([], [])

    def choose(names: list[str]) -> Chosen:
        nonlocal chosen
        own = id_column or guess_ids(names)
        chosen = Chosen([own], _feature_columns(path, names, own, features))
        return chosen

    with spool.open("wb") as file:
        for (own,), columns in read_blocks(path, choose):
            ids.append(own)
            rows = [
                checks.floats(f"column {short(name)!r}", values)
                for name, values in zip(chosen.numbers, columns, strict=True)
            ]
            file.write(np.stack(rows, axis=1).tobytes())
    if not ids:
        raise GraphError(f"{path}: the table is empty: it needs at least one row")
    # numpy pads every id to the longest one.
    longest = max(one.dtype.itemsize if one.dtype.kind == "U" else INTEGER_AS_TEXT for one in ids)
    ByteBudget(path.stat().st_size).reserve(f"{path}: ids", sum(map(len, ids)), 2 * longest)
    found_ids: Ids = np.concatenate(ids)
    shape = (len(found_ids), len(chosen.numbers))
    mapped: Floats = np.memmap(spool, np.float32, "r", shape=shape)
    is_counted = found_ids.dtype.kind in "iu" and bool((found_ids == np.arange(len(found_ids))).all())
    encoding = FeatureEncoding(
        tuple(EncodedColumn(name, NUMBER) for name in chosen.numbers), id=chosen.ids[0]
    )
    return ArrayRows(mapped, None if is_counted else checks.ids(found_ids, len(found_ids)), encoding)


def _feature_columns(path: Path, names: Sequence[str], own: str, features: Sequence[str] | None) -> list[str]:
    """The columns that become features, by the rules of `read_tables`. `own` has the ids."""
    known = set(names)
    missing = next((name for name in (own, *(features or ())) if name not in known), None)
    if missing is not None:
        raise UsageError(f"{path}: column {short(missing)!r} not found")
    if features is not None:
        return list(dict.fromkeys(features))
    others, notes = [name for name in names if name != own], list[str]()
    left_out = column_roles(others, TableChoice(), None, notes).names
    for note in notes:
        warn(note)
    found = [name for name in others if name not in left_out]
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

    def choose(names: list[str]) -> Chosen:
        return Chosen(_end_columns(path, names, source, target), [])

    for ends, _ in read_blocks(path, choose):
        pairs = np.stack([_numbered(path, end, ids, order) for end in ends])
        yield np.concatenate([pairs, pairs[::-1]], axis=1) if both_ways else pairs


def _end_columns(path: Path, names: Sequence[str], source: str | None, target: str | None) -> list[str]:
    """The columns of the two ends of an edge. Says what is not certain, and what is not read."""
    guess = guess_ends(names)
    if guess is None and (source is None or target is None):
        guess = first_two(names)
        if guess is None:
            raise GraphError(f"{path}: an edge needs two columns of node ids")
        if path.suffix != PARQUET:  # the first line may be an edge
            raise GraphError(
                f"{path}: the first line, {short(','.join(names))!r}, is not a known header: a header is "
                "source,target, or --source and --target name its columns"
            )
        warn(f"edges go from {guess[0]!r} to {guess[1]!r}")
    chosen = [given or name for given, name in zip((source, target), guess or ("", ""), strict=True)]
    if chosen[0] == chosen[1]:
        raise UsageError(f"{path}: source and target are both {short(chosen[0])!r}: name both columns")
    if "weight" in (name.lower() for name in names):
        warn(NO_WEIGHTS)
    elif len(names) > len({*chosen}):
        warn(
            f"only {chosen[0]!r} and {chosen[1]!r} of the edges are read: a graph store has no edge features"
        )
    return chosen


def _numbered(path: Path, end: NDArray[Any], ids: Ids | None, order: Integers | None) -> Integers:
    """The numbers of nodes, from their ids."""
    is_text = ids is not None and ids.dtype.kind == "U"
    if not is_text and end.dtype.kind == "U":  # the ids are integers, and one of these is not
        raise _unknown(path, next((word for word in end.tolist() if not INTEGER.fullmatch(word)), end[0]))
    if ids is None or order is None:
        return checks.integers("edges", end)
    wanted = end.astype(np.str_) if is_text else checks.integers("edges", end)
    found = np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)
    numbers: Integers = order[found]
    unknown = np.flatnonzero(ids[numbers] != wanted)
    if len(unknown):
        raise _unknown(path, wanted[unknown[0]].item())
    return numbers


def _unknown(path: Path, node: Any) -> GraphError:
    return GraphError(f"{path}: node {short(repr(node))} is not in the table of nodes")
