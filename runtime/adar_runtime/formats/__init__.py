"""The only room where bytes from outside become arrays, and where arrays become files.

`.npz` is read without pickle. `.pt` is read by PyTorch's restricted unpickler with the classes that
PyG declares safe; a file that asks for more is refused, never loaded another way.
"""

import csv
import io
import json
import pickle
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, MissingExtraError, UsageError
from adar_runtime.files import write_file
from adar_runtime.graph import NODE, Floats, Graph, Integers, SparseRows

MASKS = ("train_mask", "val_mask", "test_mask")


def read_graph(path: str | Path) -> Graph:
    """Read a graph from a `.npz` or `.pt` file."""
    path = Path(path)
    readers = {".npz": _read_npz, ".pt": _read_pt}
    if path.suffix not in readers:
        raise GraphError(f"{path}: a graph file ends in .npz or .pt, not {path.suffix or 'nothing'!r}")
    if not path.is_file():
        raise GraphError(f"{path}: there is no such file")
    try:
        return readers[path.suffix](path)
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {error.strerror or error}") from error
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error


def write_graph(path: str | Path, graph: Graph) -> None:
    """Write a graph as `.npz` or `.pt`, so that `read_graph` gives it back."""
    path = Path(path)
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **_npz_arrays(graph))
    elif path.suffix == ".pt":
        buffer = _pt_bytes(graph)
    else:
        raise UsageError(f"{path}: a graph is written as .npz or .pt, not {path.suffix or 'nothing'!r}")
    write_file(path, buffer.getvalue())


def _read_npz(path: Path) -> Graph:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (
        ValueError,
        EOFError,
        KeyError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
        AttributeError,
    ) as error:
        raise GraphError(f"not a readable .npz of plain arrays ({error or type(error).__name__})") from error
    if "x" not in arrays and "x_data" in arrays:
        indptr, indices, data, shape = (
            _key(arrays, f"x_{name}") for name in ("indptr", "indices", "data", "shape")
        )
        if shape.shape != (2,) or shape.dtype.kind not in "iu":
            raise GraphError("x_shape has to hold two integers")
        arrays["x"] = SparseRows(indptr, indices, data, (int(shape[0]), int(shape[1])))
    return _graph(arrays)


def _npz_arrays(graph: Graph) -> dict[str, Any]:
    x = graph.features
    if isinstance(x, SparseRows):
        arrays = {
            "x_indptr": x.starts,
            "x_indices": x.columns,
            "x_data": x.values,
            "x_shape": np.array(x.shape),
        }
    else:
        arrays = {"x": x}
    return arrays | _optional(graph) | {"edge_index": graph.edge_index}


def _read_pt(path: Path) -> Graph:
    torch, data_class = _torch_geometric("reading a .pt graph")
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # PyG declares Data safe but not the three plain containers that every Data is made of.
    parts = [DataEdgeAttr, DataTensorAttr, GlobalStorage]
    try:
        # Without the check, a sparse tensor with wrong indices would be read beyond its memory.
        checked = torch.sparse.check_sparse_tensor_invariants(enable=True)
        with warnings.catch_warnings(), torch.serialization.safe_globals(parts), checked:
            warnings.simplefilter("ignore")  # about pickle protocols; what matters is raised
            data = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = "it is no PyTorch file, or holds objects that could run code when loaded"
        raise GraphError(f"refused: {reason}; save a PyG Data of tensors, or use .npz") from error
    except (RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError, IndexError) as error:
        raise GraphError("not a readable PyTorch file; save a PyG Data with torch.save") from error
    if not isinstance(data, data_class):
        raise GraphError(f"holds a {type(data).__name__}, not a torch_geometric.data.Data")
    try:
        entries = data.to_dict()
    except Exception as error:  # the object was put together by the file, so anything may be missing
        raise GraphError("holds a Data that is not whole") from error
    arrays = {name: _array(torch, name, value) for name, value in entries.items() if value is not None}
    for name in MASKS:  # PyG keeps several splits as columns
        if name in arrays and arrays[name].ndim == 2:
            arrays[name] = arrays[name].T
    return _graph(arrays)


def _array(torch: Any, name: str, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if name == "x" and value.layout != torch.strided:
        csr = value.to_sparse_csr()
        return SparseRows(
            csr.crow_indices().numpy(), csr.col_indices().numpy(), csr.values().numpy(), tuple(csr.shape)
        )
    return value.float().numpy() if value.dtype == torch.bfloat16 else value.detach().numpy()


def _pt_bytes(graph: Graph) -> io.BytesIO:
    torch, data_class = _torch_geometric("writing a .pt graph")
    x = graph.features
    if isinstance(x, SparseRows):
        parts = map(torch.from_numpy, (x.starts, x.columns, x.values))
        tensors = {"x": torch.sparse_csr_tensor(*parts, x.shape, check_invariants=True)}
    else:
        tensors = {"x": torch.from_numpy(x)}
    tensors["edge_index"] = torch.from_numpy(graph.edge_index)
    for name, value in _optional(graph).items():
        if name in ("class_names", "level"):
            tensors[name] = value.tolist()
        else:
            tensors[name] = torch.from_numpy(np.ascontiguousarray(value.T) if name in MASKS else value)
    buffer = io.BytesIO()
    torch.save(data_class(**tensors), buffer)
    return buffer


def _torch_geometric(what: str) -> tuple[Any, Any]:
    """PyTorch and PyG's Data. Importing PyG also tells PyTorch which of its classes are safe."""
    try:
        import torch
        from torch_geometric.data import Data
    except ImportError as error:
        raise MissingExtraError(what, "train") from error
    return torch, Data


def _graph(arrays: Mapping[str, Any]) -> Graph:
    return Graph(
        features=_key(arrays, "x"),
        edge_index=_key(arrays, "edge_index"),
        labels=arrays.get("y"),
        **{name: arrays.get(name) for name in MASKS},
        target_features=arrays.get("target_x"),
        class_names=arrays.get("class_names"),
        pairs=arrays.get("pairs"),
        level=str(arrays.get("level", NODE)),
    )


def _key(arrays: Mapping[str, Any], name: str) -> Any:
    if arrays.get(name) is None:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise GraphError(f"has no {name!r}; found {found}")
    return arrays[name]


def _optional(graph: Graph) -> dict[str, Any]:
    names = None if graph.class_names is None else np.array(graph.class_names)
    level = None if graph.level == NODE else np.array(graph.level)
    values = {"y": graph.labels, "target_x": graph.target_features, "pairs": graph.pairs}
    values |= {"class_names": names, "level": level}
    values |= {name: getattr(graph, name) for name in MASKS}
    return {name: value for name, value in values.items() if value is not None}


def prediction_writer(path: Path) -> Callable[[Integers | Floats, Floats | None], bytes]:
    """How predictions [k] or [k, c] and, for classes, probabilities [k, c] become a file of this suffix."""
    writers = {".npz": _predictions_npz, ".csv": _predictions_csv, ".json": _predictions_json}
    if path.suffix not in writers:
        raise UsageError(
            f"{path}: predictions are written as .npz, .csv or .json, not {path.suffix or 'nothing'!r}"
        )
    return writers[path.suffix]


def _predictions_npz(prediction: Integers | Floats, probability: Floats | None) -> bytes:
    arrays = {"prediction": prediction} | ({} if probability is None else {"probability": probability})
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _predictions_csv(prediction: Integers | Floats, probability: Floats | None) -> bytes:
    columns = {"prediction": prediction} if prediction.ndim == 1 else _numbered("prediction", prediction)
    if probability is not None:
        columns |= _numbered("probability", probability)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["output", *columns])
    rows = zip(*(column.astype(str).tolist() for column in columns.values()), strict=True)
    writer.writerows([index, *row] for index, row in enumerate(rows))
    return buffer.getvalue().encode()


def _numbered(name: str, matrix: Integers | Floats) -> dict[str, Any]:
    return {f"{name}_{j}": column for j, column in enumerate(matrix.T)}


def _predictions_json(prediction: Integers | Floats, probability: Floats | None) -> bytes:
    lists = {"prediction": prediction.tolist()}
    return json.dumps(lists | ({} if probability is None else {"probability": probability.tolist()})).encode()
