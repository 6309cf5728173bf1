"""Graphs as `.npz`: a zip of plain arrays, each with a header that says what it claims to be."""

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from adar_runtime.errors import AdarError, GraphError, reason
from adar_runtime.graph import Graph, SparseRows
from adar_runtime.graph.formats.archive import check_members, open_archive
from adar_runtime.graph.formats.keys import KEYS, optional, require_key, to_graph
from adar_runtime.graph.limits import Allowance

SPARSE = ("x_indptr", "x_indices", "x_data", "x_shape")
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
"""Readers by version; the third is for names of columns, which the arrays of a graph do not have."""


LONGEST_HEADER = 10_000  # bytes; those of plain arrays have about 100


def read(path: Path) -> Graph:
    """Read the arrays of a graph, after looking at what each of them claims to be."""
    try:
        with open_archive(path) as archive:
            members = {
                name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")
            }
            known = {key: archive.getinfo(members[key]) for key in (*KEYS, *SPARSE) if key in members}
            allowance = Allowance()
            check_members(path, known.values())
            for key, member in known.items():
                _check_header(archive, key, member, allowance)
            arrays = {key: _read(archive, member) for key, member in known.items()}
    except AdarError:
        raise
    except Exception as error:  # zipfile, zlib and numpy each give up in several ways of their own
        raise GraphError(f"not a readable .npz of plain arrays ({reason(error)})") from error
    if "x" not in arrays and "x_data" in arrays:
        arrays["x"] = _sparse(arrays)
    return to_graph(arrays, members)


def content(graph: Graph) -> bytes:
    """The file of a graph."""
    x = graph.features
    if isinstance(x, SparseRows):
        arrays: dict[str, Any] = dict(
            zip(SPARSE, (x.starts, x.columns, x.values, np.array(x.shape)), strict=True)
        )
    else:
        arrays = {"x": x}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays | optional(graph) | {"edge_index": graph.edge_index})
    return buffer.getvalue()


def _check_header(archive: zipfile.ZipFile, key: str, member: zipfile.ZipInfo, allowance: Allowance) -> None:
    with archive.open(member) as stream:
        file = io.BytesIO(stream.read(LONGEST_HEADER))  # which may claim to be of any length
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"{key} has an .npy header of version {version}")
    shape, _, dtype = HEADERS[version](file)
    rest = member.file_size - file.tell()
    if dtype.hasobject:
        raise ValueError(f"{key} holds Python objects")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != rest:
        raise ValueError(f"{key} claims the shape {shape}, and {rest} bytes are there")
    allowance.take(key, count, dtype.itemsize)


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


def _sparse(arrays: dict[str, Any]) -> SparseRows:
    for key in SPARSE:
        require_key(key, arrays, arrays)
    starts, columns, values, shape = (arrays[key] for key in SPARSE)
    if shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise GraphError("x_shape has to hold two integers")
    return SparseRows(starts, columns, values, (int(shape[0]), int(shape[1])))
