"""Graphs as `.pt`: a PyG `Data` saved by `torch.save`, or several. PyTorch is needed only to write them."""

import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import AdarError, AdarWarning, GraphError, MissingExtraError, short
from adar_runtime.graph import MASKS, Graph, SparseRows
from adar_runtime.graph.formats._archive import Archive, check_members, open_archive, read_member
from adar_runtime.graph.formats._graph_file import (
    KEYS,
    graph_from_arrays,
    graph_without_warnings,
    optional_arrays,
    reserve_pair_ids,
    warn_unused,
)
from adar_runtime.graph.formats._pickles import MAX_BYTES, read_pickle
from adar_runtime.graph.formats._tensor_arrays import TensorArrays
from adar_runtime.graph.formats._tensors import DATA, STORE, Name, Object, SparseTensor, Tensor, storage_from
from adar_runtime.graph.formats.many_graphs import (
    ONE_WANTED,
    POINTERS,
    checked_together,
    same_level,
    split_graphs,
    with_level,
)
from adar_runtime.graph.limits import CELL_BYTES, GRAPH_BYTES, ByteBudget

TEXT_KEYS = ("class_names", "level", "feature_encoding")
PICKLE, PROGRAM = "data.pkl", "constants.pkl"
UNREADABLE = "not a readable PyTorch file; save a PyG Data with torch.save"
TEXT_BYTES = 6  # of a character while it is read: in the pickle, and in a text that grows
MAX_GRAPHS = 5_000  # in a list: each one is an object of its own
NODE_COUNTS = "_num_nodes"  # where PyG keeps the nodes of each graph of a data set


def read(path: Path) -> Graph:
    """Read a graph.

    Raises:
        GraphError: The file is damaged or not a graph, or it holds many graphs.
    """
    with _opened(path) as file:
        if isinstance(file.value, list | tuple):
            raise GraphError(ONE_WANTED)
        entries = file.entries(file.value)
        arrays = file.arrays(entries)
    return _counted(graph_from_arrays(arrays, entries), entries)


def read_many(path: Path) -> list[Graph]:
    """Read all graphs of a file: a `Data`, a list of them, or what PyG's `InMemoryDataset.save` writes."""
    with _opened(path) as file:
        several = isinstance(file.value, list | tuple)
        if several and _is_data_set(file.value):
            return _data_set(file, *file.value[:2])
        if several:
            return _listed(file, list(file.value))
    return [read(path)]


def count(path: Path) -> int | None:
    """The number of graphs in a file of many graphs; None for any other file."""
    with suppress(Exception), _opened(path) as file:  # the reader reports what is wrong with the file
        if isinstance(file.value, list | tuple):
            return len(read_many(path))
    return None


class _File:
    """The value in an open file, and how its parts become arrays."""

    def __init__(self, value: Any, tensors: TensorArrays, budget: ByteBudget) -> None:
        self.value, self.budget, self._tensors = value, budget, tensors

    def entries(self, data: Any) -> dict[str, Any]:
        """The values of a `Data` by key."""
        if not isinstance(data, Object) or data.kind != DATA:
            raise GraphError(f"holds a {_type_name(data)}, not a torch_geometric.data.Data")
        store = (data.state or {}).get("_store")
        mapping = (store.state or {}).get("_mapping") if isinstance(store, Object) else None
        if not isinstance(store, Object) or store.kind != STORE or not isinstance(mapping, dict):
            raise GraphError("holds a Data that cannot be read: save it again with PyG 2.0 or later")
        return self.known(mapping)

    def known(self, mapping: Mapping[Any, Any]) -> dict[str, Any]:
        """The values that are not None, by key."""
        self.budget.reserve("its keys", len(mapping), CELL_BYTES)  # several graphs may share them
        return {str(name): value for name, value in mapping.items() if value is not None}

    def arrays(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays of the keys that a graph has."""
        found = {key: self.array(key, entries[key]) for key in KEYS if key in entries}
        reserve_pair_ids(found, self.budget)
        return found

    def array(self, key: str, value: Any) -> Any:
        """The array, text or list of texts of one key."""
        if isinstance(value, Tensor | SparseTensor):
            return self._tensors.array(key, value)
        return _from_list(key, value, self.budget)


@contextmanager
def _opened(path: Path) -> Iterator[_File]:
    """Read the pickle of a file. The file stays open for its arrays."""
    try:
        with open_archive(path) as archive:
            check_members(path, archive.infolist())
            if archive.testzip() is not None:  # also of members that no key needs
                raise ValueError("a checksum does not fit")
            budget = ByteBudget(path.stat().st_size)
            folder = _folder(archive)
            start = f"{folder}/data/"
            lengths = {
                member.filename.removeprefix(start): member.file_size
                for member in archive.infolist()
                if member.filename.startswith(start)
            }
            content = _pickle(archive, folder, budget)
            value = read_pickle(content, partial(storage_from, lengths=lengths))
            yield _File(value, TensorArrays(archive, folder, budget), budget)
    except (AdarError, AdarWarning, OSError):
        raise
    except Exception as error:  # zipfile, zlib and numpy raise many types of error
        # PyTorch before 1.6 wrote a bare pickle, which is not read.
        raise GraphError(f"refused: {UNREADABLE}") from error


def _folder(archive: Archive) -> str:
    """The one folder of an archive that `torch.save` wrote."""
    names = archive.namelist()
    folder = names[0].partition("/")[0]
    if not all(name.startswith(f"{folder}/") for name in names):
        raise ValueError("its members are in several folders")
    if f"{folder}/{PROGRAM}" in names:
        raise ValueError("it is a program that torch.jit.save wrote")
    return folder


def _pickle(archive: Archive, folder: str, budget: ByteBudget) -> bytes:
    name = f"{folder}/{PICKLE}"
    size = archive.getinfo(name).file_size
    if size > MAX_BYTES:
        raise GraphError("refused: its pickle is far larger than that of a graph; use .npz")
    budget.reserve("its pickle", size, TEXT_BYTES)
    return read_member(archive, name).tobytes()


def _counted(graph: Graph, entries: Mapping[str, Any]) -> Graph:
    """Refuse a graph whose Data claims another number of nodes than x has: nodes would be missing."""
    claimed = entries.get("num_nodes")
    if isinstance(claimed, int) and claimed != graph.nodes:
        raise GraphError(f"num_nodes is not {graph.nodes:,}, the number of rows of x: correct one of them")
    return graph


def _listed(file: _File, items: list[Any]) -> list[Graph]:
    """The graphs of a list of `Data`."""
    if not items or len(items) > MAX_GRAPHS:
        raise GraphError(
            f"holds a list of {len(items):,} graphs, and 1 to {MAX_GRAPHS:,} can be read: save larger sets "
            "with PyG's InMemoryDataset.save, or as .npz with node_ptr and edge_ptr"
        )
    file.budget.reserve("the list of graphs", len(items), GRAPH_BYTES)
    graphs: list[Graph] = []
    found: set[str] = set()
    for position, item in enumerate(items, start=1):
        try:
            entries = file.entries(item)
            graph = graph_without_warnings(with_level(file.arrays(entries)), entries)
            graphs.append(_counted(graph, entries))
        except GraphError as error:
            raise GraphError(f"graph {position:,} of {len(items):,}: {error}") from error
        found |= entries.keys()
    warn_unused(found)
    _check_labels(graphs)
    return same_level(graphs)


def _check_labels(graphs: list[Graph]) -> None:
    """Warn once about the labels of all graphs, if they are of one kind."""
    labels = [graph.labels for graph in graphs if graph.labels is not None]
    if len({(each.dtype, each.shape[1:]) for each in labels}) == 1:
        checked_together(np.concatenate(labels), graphs[0].class_names)


def _is_data_set(value: Any) -> bool:
    """Whether the value is (arrays of all graphs, where each graph begins, …)."""
    return len(value) in (2, 3) and isinstance(value[1], dict)


def _data_set(file: _File, data: Any, slices: dict[Any, Any]) -> list[Graph]:
    """The graphs of a PyG `InMemoryDataset`: arrays one after the other, and where each graph begins."""
    entries = file.known(data) if isinstance(data, dict) else file.entries(data)
    arrays = file.arrays(entries)
    for pointer, key in zip(POINTERS, ("x", "edge_index"), strict=True):
        if isinstance(slices.get(key), Tensor):
            arrays[pointer] = file.array(pointer, slices[key])
    counts = entries.get(NODE_COUNTS)
    if "x" not in arrays and isinstance(counts, list) and all(type(each) is int for each in counts):
        file.budget.reserve(NODE_COUNTS, len(counts), CELL_BYTES)
        arrays[POINTERS[0]] = np.concatenate([[0], np.cumsum(np.array(counts, np.int64))])
    _check_slices(file, arrays, slices)
    graphs = split_graphs(arrays, file.budget)
    warn_unused(entries.keys() - {NODE_COUNTS})
    return graphs


def _check_slices(file: _File, arrays: Mapping[str, Any], slices: Mapping[Any, Any]) -> None:
    """Refuse labels that do not belong to the graphs in order: one graph could have two, another none."""
    if POINTERS[1] not in arrays:
        return
    edges = arrays[POINTERS[1]]
    for key in ("y", "edge_weight", *MASKS):
        if key in arrays and isinstance(slices.get(key), Tensor):
            expected = edges if key == "edge_weight" else np.arange(len(np.atleast_1d(edges)))
            if not np.array_equal(file.array(key, slices[key]), expected):
                what = "edge" if key == "edge_weight" else "graph"
                raise GraphError(
                    f"{key} does not have one value for each {what}: give one label per graph, and one "
                    "weight per edge"
                )


def _from_list(key: str, value: Any, budget: ByteBudget) -> Any:
    """Texts and flat lists only: nested lists can repeat one list any number of times."""
    budget.reserve(key, len(value) if isinstance(value, list | tuple | str) else 1, CELL_BYTES)
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        if key in TEXT_KEYS:
            return value
        if key == "ids" and isinstance(value, list):
            budget.reserve(key, len(value), 4 * max(map(len, value), default=0))  # numpy pads to the longest
            return np.array(value, np.str_)
    if key in TEXT_KEYS and isinstance(value, str):
        return value
    if key in MASKS and isinstance(value, list) and all(isinstance(each, bool) for each in value):
        return np.array(value, np.bool_)
    wanted = {"class_names": "a list of strings", "level": "a text", "feature_encoding": "a text"}.get(
        key, f"{'booleans' if key in MASKS else 'numbers'} in a tensor"
    )
    raise GraphError(f"{key} holds {short(_type_name(value))!r}, not {wanted}")


def _type_name(value: Any) -> str:
    """The name that the type of a value has in PyTorch and PyG."""
    if isinstance(value, Object | Name):
        return "type" if isinstance(value, Name) else value.kind.rpartition(" ")[2]
    return "Tensor" if isinstance(value, Tensor | SparseTensor) else type(value).__name__


def encode(graph: Graph) -> bytes:
    """The content of a graph's file."""
    torch, data_class = _torch_geometric()
    x = graph.features
    if isinstance(x, SparseRows):
        arrays = (x.starts, x.columns, x.values)
        parts = (torch.from_numpy(_for_pytorch(array)) for array in arrays)
        with no_beta_warning():
            tensors = {"x": torch.sparse_csr_tensor(*parts, x.shape, check_invariants=True)}
    else:
        tensors = {"x": torch.from_numpy(x)}
    tensors["edge_index"] = torch.from_numpy(graph.edge_index)
    for name, value in optional_arrays(graph).items():
        if name in TEXT_KEYS or value.dtype.kind == "U":
            tensors[name] = value.tolist()
        else:
            tensors[name] = torch.from_numpy(np.ascontiguousarray(value.T) if name in MASKS else value)
    buffer = io.BytesIO()
    torch.save(data_class(**tensors), buffer)
    return buffer.getvalue()


def _for_pytorch(array: NDArray[Any]) -> NDArray[Any]:
    """The array, or a copy if PyTorch does not take it: read-only, or one entry with another stride."""
    return array if array.strides == (array.itemsize,) and array.flags.writeable else array.copy()


@contextmanager
def no_beta_warning() -> Iterator[None]:
    """Ignore PyTorch's warning that CSR tensors are in beta state."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state", UserWarning)
        yield


def _torch_geometric() -> tuple[Any, Any]:
    try:
        import torch
        from torch_geometric.data import Data
    except ImportError as error:
        raise MissingExtraError("writing a .pt graph", "train") from error
    return torch, Data
