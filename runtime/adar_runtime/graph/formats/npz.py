"""Graphs as `.npz`: a zip archive of numpy arrays, read without pickle. Every header is checked first."""

import io
import math
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from adar_runtime.errors import AdarError, GraphError, reason
from adar_runtime.graph import Graph, SparseRows
from adar_runtime.graph.formats._archive import Archive, check_members, open_archive
from adar_runtime.graph.formats._graph_file import (
    KEYS,
    graph_from_arrays,
    optional_arrays,
    require_key,
    reserve_pair_ids,
    warn_unused,
)
from adar_runtime.graph.formats.many_graphs import ONE_WANTED, POINTERS, is_many, split_graphs
from adar_runtime.graph.formats.npy import HEADER_READERS
from adar_runtime.graph.limits import SPARSE_ENTRY_BYTES, SPARSE_ROW_BYTES, ByteBudget

SPARSE_KEYS = ("x_indptr", "x_indices", "x_data", "x_shape")
MAX_HEADER_BYTES = 10_000  # the header of a plain array has about 100


def read(path: Path, max_bytes: int | None = None) -> Graph:
    """Read a graph. `max_bytes` limits the memory of its arrays further than `limits` does.

    Raises:
        GraphError: The file is damaged or not a graph, or it holds many graphs.
    """
    arrays, found, _ = _read_arrays(path, max_bytes)
    if is_many(arrays):
        raise GraphError(ONE_WANTED)
    return graph_from_arrays(arrays, found, SPARSE_KEYS)


def read_many(path: Path) -> list[Graph]:
    """Read all graphs of a file, which may hold one."""
    arrays, found, budget = _read_arrays(path)
    if is_many(arrays):
        graphs = split_graphs(arrays, budget)
        warn_unused(found, (*SPARSE_KEYS, *POINTERS))
        return graphs
    return [graph_from_arrays(arrays, found, SPARSE_KEYS)]


def count(path: Path) -> int | None:
    """The number of graphs in a file of many graphs; None for any other file."""
    with suppress(Exception), open_archive(path) as archive:  # the reader reports what is wrong with the file
        with archive.open(f"{POINTERS[0]}.npy") as stream:
            file = io.BytesIO(stream.read(MAX_HEADER_BYTES))
        shape, _, _ = HEADER_READERS[npy.read_magic(file)](file)
        return max(1, int(shape[0]) - 1)
    return None


def _read_arrays(path: Path, most: int | None = None) -> tuple[dict[str, Any], list[str], ByteBudget]:
    """Read the arrays after all headers were checked. Return them, all keys of the file, and what is left."""
    try:
        with open_archive(path) as archive:
            members = {
                name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")
            }
            known = {
                key: archive.getinfo(members[key])
                for key in (*KEYS, *SPARSE_KEYS, *POINTERS)
                if key in members
            }
            budget = ByteBudget(path.stat().st_size, most)
            check_members(path, known.values(), most)
            for key, member in known.items():
                _check_header(archive, key, member, budget)
            arrays = {key: _read_array(archive, member) for key, member in known.items()}
            reserve_pair_ids(arrays, budget)
    except AdarError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise many types of error
        raise GraphError(f"not a readable .npz of plain arrays ({reason(error)})") from error
    if "x_data" in arrays:
        if "x" in arrays:
            raise GraphError("it has both x and x_data: save the features once, dense or sparse")
        arrays["x"] = _sparse_rows(arrays)
    return arrays, list(members), budget


def encode(graph: Graph, *, compressed: bool = True) -> bytes:
    """The content of a graph's file."""
    x = graph.features
    if isinstance(x, SparseRows):
        arrays: dict[str, Any] = dict(
            zip(SPARSE_KEYS, (x.starts, x.columns, x.values, np.array(x.shape)), strict=True)
        )
    else:
        arrays = {"x": x}
    buffer = io.BytesIO()
    save = np.savez_compressed if compressed else np.savez
    save(buffer, **arrays | optional_arrays(graph) | {"edge_index": graph.edge_index})
    return buffer.getvalue()


def _check_header(archive: Archive, key: str, member: zipfile.ZipInfo, budget: ByteBudget) -> None:
    with archive.open(member) as stream:
        file = io.BytesIO(stream.read(MAX_HEADER_BYTES))  # a header may claim any length
    version = npy.read_magic(file)
    if version not in HEADER_READERS:
        raise ValueError(f"{key} has an .npy header of version {version}")
    shape, in_columns, dtype = HEADER_READERS[version](file)
    found = member.file_size - file.tell()
    if dtype.hasobject:
        raise ValueError(f"{key} holds Python objects")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != found:
        raise ValueError(f"{key} claims the shape {shape}, but has {found} bytes")
    budget.reserve_array(key, count, dtype, copied=in_columns)
    budget.reserve(key, count, {"x_indptr": SPARSE_ROW_BYTES, "x_indices": SPARSE_ENTRY_BYTES}.get(key, 0))


def _read_array(archive: Archive, member: zipfile.ZipInfo) -> Any:
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


def _sparse_rows(arrays: dict[str, Any]) -> SparseRows:
    for key in SPARSE_KEYS:
        require_key(key, arrays, arrays)
    starts, columns, values, shape = (arrays[key] for key in SPARSE_KEYS)
    if shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise GraphError("x_shape must hold two integers")
    return SparseRows(starts, columns, values, (int(shape[0]), int(shape[1])))
