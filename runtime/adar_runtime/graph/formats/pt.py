"""Graphs as `.pt`: a PyG `Data` saved by `torch.save`, read by PyTorch's restricted unpickler only."""

import io
import pickle
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from adar_runtime.errors import AdarError, GraphError, MissingExtraError, reason, short
from adar_runtime.graph import MASKS, Graph, SparseRows
from adar_runtime.graph.formats._archive import check_members, open_archive
from adar_runtime.graph.formats._graph_file import KEYS, graph_from_arrays, optional_arrays
from adar_runtime.graph.formats._pickles import MAX_BYTES, check_pickle
from adar_runtime.graph.limits import CELL_BYTES, SPARSE_ENTRY_BYTES, SPARSE_ROW_BYTES, ByteBudget

TEXT_KEYS = ("class_names", "level", "feature_encoding")
PICKLE = "data.pkl"
UNREADABLE = "not a readable PyTorch file; save a PyG Data with torch.save"


def read(path: Path) -> Graph:
    """Read the tensors of a graph after the archive and its pickle were checked."""
    check_archive(path)
    torch, data_class = _torch_geometric("reading a .pt graph")
    data = _load(torch, path)
    if not isinstance(data, data_class):
        raise GraphError(f"holds a {type(data).__name__}, not a torch_geometric.data.Data")
    try:
        entries = {str(name): value for name, value in data.to_dict().items() if value is not None}
        budget = ByteBudget(path.stat().st_size)
        with _no_beta_warning():
            arrays = {key: _array(torch, key, entries[key], budget) for key in KEYS if key in entries}
    except AdarError:
        raise
    except Exception as error:  # the file decides what the object contains, so any error is possible
        raise GraphError(f"holds a Data that cannot be read ({reason(error)})") from error
    return graph_from_arrays(arrays, entries)


def encode(graph: Graph) -> bytes:
    """The content of a graph's file."""
    torch, data_class = _torch_geometric("writing a .pt graph")
    x = graph.features
    if isinstance(x, SparseRows):
        parts = map(torch.from_numpy, (x.starts, x.columns, x.values))
        with _no_beta_warning():
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


def check_archive(path: Path) -> None:
    """Check sizes, checksums and the pickle of the file. PyTorch checks none of them."""
    try:
        with open_archive(path) as archive:
            members = archive.infolist()
            check_members(path, members)
            check_pickle(_read_pickle(archive), ByteBudget(path.stat().st_size))
            if archive.testzip() is not None:  # PyTorch ignores checksums
                raise ValueError("damaged")
    except (AdarError, OSError):
        raise
    except Exception as error:  # zipfile and zlib raise many types of error
        # PyTorch before 1.6 wrote a bare pickle, which can allocate any amount of memory.
        raise GraphError(f"refused: {UNREADABLE}") from error


def _read_pickle(archive: zipfile.ZipFile) -> bytes:
    """The one member that is not plain numbers. PyTorch looks for it in the folder of the first member."""
    folder = archive.namelist()[0].partition("/")[0]
    (name,) = (each for each in archive.namelist() if PurePosixPath(each).name.casefold() == PICKLE)
    if name != f"{folder}/{PICKLE}":
        raise ValueError("PyTorch would look for the pickle elsewhere")
    member = archive.getinfo(name)
    if member.file_size > MAX_BYTES:
        raise GraphError("refused: its pickle is far larger than that of a graph; use .npz")
    return archive.read(member)


@contextmanager
def _only_graphs(torch: Any) -> Iterator[None]:
    """Let PyTorch load the four classes of a Data, and no other class that PyG declares safe."""
    from torch_geometric.data.data import Data, DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        with torch.serialization.safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]):
            yield
    finally:
        torch.serialization.add_safe_globals(before)


def _load(torch: Any, path: Path) -> Any:
    try:
        # Without this check, PyTorch reads beyond the memory of a sparse tensor with wrong indices.
        checked = torch.sparse.check_sparse_tensor_invariants(enable=True)
        with warnings.catch_warnings(), _only_graphs(torch), checked:
            warnings.simplefilter("ignore")  # warnings about pickle protocols; real problems are errors
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        cause = "it is not a PyTorch file, or holds objects that could run code when loaded"
        raise GraphError(f"refused: {cause}; save a PyG Data of tensors, or use .npz") from error
    except Exception as error:  # an unpickler raises many types of error on damaged files
        raise GraphError(UNREADABLE) from error


def _array(torch: Any, key: str, value: Any, budget: ByteBudget) -> Any:
    if not isinstance(value, torch.Tensor):
        return _from_list(key, value, budget)
    if value.is_meta:
        raise GraphError(f"{key} is a tensor without data (device 'meta')")
    if value.layout != torch.strided:
        return _sparse_rows(torch, key, value, budget)
    if _is_narrow(torch, value) or value.is_neg() or value.is_conj():  # then it is copied first
        budget.reserve(key, value.numel(), max(4, value.element_size()))
    array = _to_numpy(torch, value)
    budget.reserve_array(key, value.numel(), array.dtype, copied=not array.flags.c_contiguous)
    return array.T if key in MASKS and array.ndim == 2 else array  # PyG stores several splits as columns


def _from_list(key: str, value: Any, budget: ByteBudget) -> Any:
    """Accept a flat list only: nested lists can repeat one list any number of times."""
    budget.reserve(key, len(value) if isinstance(value, list) else 1, CELL_BYTES)
    if key in TEXT_KEYS:
        return value
    if key == "ids" and isinstance(value, list) and all(isinstance(each, str) for each in value):
        budget.reserve(key, len(value), 4 * max(map(len, value), default=0))  # numpy pads to the longest
        return np.array(value, np.str_)
    if key not in MASKS or not isinstance(value, list) or not all(isinstance(each, bool) for each in value):
        wanted = "booleans" if key in MASKS else "numbers"
        raise GraphError(f"{key} holds {short(type(value).__name__)!r}, not {wanted} in a tensor")
    return np.array(value, np.bool_)


def _sparse_rows(torch: Any, key: str, value: Any, budget: ByteBudget) -> SparseRows:
    if key != "x":
        raise GraphError(f"{key} is a sparse tensor: only x may be sparse")
    if value.ndim != 2:
        raise GraphError(f"x has shape {list(value.shape)}, not [rows, columns]")
    budget.reserve(key, value.shape[0], 8 + SPARSE_ROW_BYTES)
    # Twice: PyTorch sorts the entries to convert them, and SparseRows checks their order.
    budget.reserve(key, value._nnz(), 16 + 2 * SPARSE_ENTRY_BYTES)
    csr = value.detach().to_sparse_csr()
    starts, columns, values = (
        _to_numpy(torch, part) for part in (csr.crow_indices(), csr.col_indices(), csr.values())
    )
    return SparseRows(starts, columns, values, (csr.shape[0], csr.shape[1]))


def tensor_to_array(key: str, tensor: Any) -> Any:
    """A tensor in memory as a numpy array or, if it is sparse, as sparse rows."""
    import torch

    tensor = tensor.detach().cpu()
    if tensor.layout == torch.strided:
        return _to_numpy(torch, tensor)
    with _no_beta_warning():
        return _sparse_rows(torch, key, tensor, ByteBudget(None))


def _to_numpy(torch: Any, tensor: Any) -> Any:
    """A numpy array; float types that numpy does not have become float32."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return tensor.float().numpy() if _is_narrow(torch, tensor) else tensor.numpy()


def _is_narrow(torch: Any, tensor: Any) -> bool:
    """Whether the tensor has a float type that numpy does not have."""
    return tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64)


@contextmanager
def _no_beta_warning() -> Iterator[None]:
    """Ignore PyTorch's warning that CSR tensors are in beta state."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state", UserWarning)
        yield


def _torch_geometric(what: str) -> tuple[Any, Any]:
    """Import PyTorch and PyG's Data. The import of PyG registers its safe classes with PyTorch."""
    try:
        import torch
        from torch_geometric.data import Data
    except ImportError as error:
        raise MissingExtraError(what, "train") from error
    return torch, Data
