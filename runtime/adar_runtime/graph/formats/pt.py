"""Graphs as `.pt`: a PyG `Data` that PyTorch wrote."""

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
from adar_runtime.graph.formats import pickles
from adar_runtime.graph.formats.archive import check_members, open_archive
from adar_runtime.graph.formats.keys import KEYS, optional, to_graph
from adar_runtime.graph.limits import Allowance, max_bytes

UNREADABLE = "not a readable PyTorch file; save a PyG Data with torch.save"


def read(path: Path) -> Graph:
    """Read the tensors of a graph, through PyTorch's restricted unpickler."""
    _check_archive(path)
    torch, data_class = _torch_geometric("reading a .pt graph")
    data = _load(torch, path)
    if not isinstance(data, data_class):
        raise GraphError(f"holds a {type(data).__name__}, not a torch_geometric.data.Data")
    try:
        entries = {str(name): value for name, value in data.to_dict().items() if value is not None}
        allowance = Allowance()
        with _no_beta_warning():
            arrays = {key: _array(torch, key, entries[key], allowance) for key in KEYS if key in entries}
    except AdarError:
        raise
    except Exception as error:  # the object was put together by the file, so anything may be amiss
        raise GraphError(f"holds a Data that cannot be read ({reason(error)})") from error
    return to_graph(arrays, entries)


def content(graph: Graph) -> bytes:
    """The file of a graph."""
    torch, data_class = _torch_geometric("writing a .pt graph")
    x = graph.features
    if isinstance(x, SparseRows):
        parts = map(torch.from_numpy, (x.starts, x.columns, x.values))
        with _no_beta_warning():
            tensors = {"x": torch.sparse_csr_tensor(*parts, x.shape, check_invariants=True)}
    else:
        tensors = {"x": torch.from_numpy(x)}
    tensors["edge_index"] = torch.from_numpy(graph.edge_index)
    for name, value in optional(graph).items():
        if name in ("class_names", "level"):
            tensors[name] = value.tolist()
        else:
            tensors[name] = torch.from_numpy(np.ascontiguousarray(value.T) if name in MASKS else value)
    buffer = io.BytesIO()
    torch.save(data_class(**tensors), buffer)
    return buffer.getvalue()


def _check_archive(path: Path) -> None:
    """PyTorch believes what an archive says about its sizes, so they are looked at first."""
    try:
        with open_archive(path) as archive:
            members = archive.infolist()
            check_members(path, members)
            if sum(member.file_size for member in members) > max_bytes():
                raise GraphError(
                    f"holds more than {max_bytes():,} bytes: if you trust it, set ADAR_MAX_BYTES higher"
                )
            pickles.check(_pickle(archive))
            if archive.testzip() is not None:  # PyTorch looks at no checksum
                raise ValueError("damaged")
    except (AdarError, OSError):
        raise
    except Exception as error:  # zipfile and zlib give up in several ways of their own
        # Before 1.6, PyTorch wrote a bare pickle, which says how much memory it wants and gets it.
        raise GraphError(f"refused: {UNREADABLE}") from error


def _pickle(archive: zipfile.ZipFile) -> bytes:
    """The one part that is not plain numbers."""
    (member,) = (each for each in archive.infolist() if PurePosixPath(each.filename).name == "data.pkl")
    if member.file_size > pickles.MAX_BYTES:
        raise GraphError("refused: what describes its tensors is far longer than that of a graph; use .npz")
    return archive.read(member)


def _load(torch: Any, path: Path) -> Any:
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # PyG declares Data safe but not the three plain containers that every Data is made of.
    parts = [DataEdgeAttr, DataTensorAttr, GlobalStorage]
    try:
        # Without the check, a sparse tensor with wrong indices would be read beyond its memory.
        checked = torch.sparse.check_sparse_tensor_invariants(enable=True)
        with warnings.catch_warnings(), torch.serialization.safe_globals(parts), checked:
            warnings.simplefilter("ignore")  # about pickle protocols; what matters is raised
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        cause = "it is no PyTorch file, or holds objects that could run code when loaded"
        raise GraphError(f"refused: {cause}; save a PyG Data of tensors, or use .npz") from error
    except Exception as error:  # an unpickler led astray raises whatever it stumbles over
        raise GraphError(UNREADABLE) from error


def _array(torch: Any, key: str, value: Any, allowance: Allowance) -> Any:
    if not isinstance(value, torch.Tensor):
        return _untensored(key, value)
    if value.is_meta:
        raise GraphError(f"{key} is a tensor without content (on the device 'meta')")
    if value.layout != torch.strided:
        return _sparse(torch, key, value, allowance)
    allowance.take(key, value.numel(), value.element_size())  # a view can be larger than what it is of
    array = _plain(torch, value)
    return array.T if key in MASKS and array.ndim == 2 else array  # PyG keeps several splits as columns


def _untensored(key: str, value: Any) -> Any:
    """A list, as flat as it looks: one of lists may name the same list any number of times."""
    if key in ("class_names", "level"):
        return value
    if key not in MASKS or not isinstance(value, list) or not all(isinstance(each, bool) for each in value):
        wanted = "booleans" if key in MASKS else "numbers"
        raise GraphError(f"{key} holds {short(type(value).__name__)!r}, not {wanted} in a tensor")
    return np.array(value, np.bool_)


def _sparse(torch: Any, key: str, value: Any, allowance: Allowance) -> SparseRows:
    if key != "x":
        raise GraphError(f"{key} is a sparse tensor: only x may be one")
    if value.ndim != 2:
        raise GraphError(f"x has shape {list(value.shape)}, not [rows, columns]")
    allowance.take(key, value.shape[0], 8)
    allowance.take(key, value._nnz(), 16)
    csr = value.detach().to_sparse_csr()
    starts, columns, values = (
        _plain(torch, part) for part in (csr.crow_indices(), csr.col_indices(), csr.values())
    )
    return SparseRows(starts, columns, values, (csr.shape[0], csr.shape[1]))


def _plain(torch: Any, tensor: Any) -> Any:
    """A numpy array, of floats where numpy does not have the type."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    narrow = tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64)
    return tensor.float().numpy() if narrow else tensor.numpy()


@contextmanager
def _no_beta_warning() -> Iterator[None]:
    """CSR tensors are all that is used here of what PyTorch calls a beta, once a process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state", UserWarning)
        yield


def _torch_geometric(what: str) -> tuple[Any, Any]:
    """PyTorch and PyG's Data. Importing PyG also tells PyTorch which of its classes are safe."""
    try:
        import torch
        from torch_geometric.data import Data
    except ImportError as error:
        raise MissingExtraError(what, "train") from error
    return torch, Data
