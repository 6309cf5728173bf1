"""PyTorch Geometric in memory: a `Data` becomes a `Graph`."""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from adar_runtime.errors import GraphError
from adar_runtime.graph import MASKS, Graph, SparseRows
from adar_runtime.graph.formats._graph_file import MEANT
from adar_runtime.graph.formats.pt import no_beta_warning
from adar_runtime.graph.in_memory._arrays import as_rows, build, by_key


def from_data(data: Any, fields: dict[str, Any], on_note: Callable[[str], None]) -> Graph:
    """Convert a `torch_geometric.data.Data`: tensors on any device, numpy arrays and lists."""
    found = {str(name): value for name, value in data.to_dict().items() if value is not None}
    arrays = {key: _array(key, value) for key, value in found.items()} | by_key(fields)
    if "x" not in arrays and "x" not in map(MEANT.get, arrays):
        raise GraphError(
            "the Data has no x: set data.x to node features [nodes, features], for example with "
            "torch_geometric.transforms.LocalDegreeProfile()"
        )
    if "edge_index" not in arrays and "adj_t" in arrays:
        raise GraphError("the Data has adj_t and no edge_index: leave out the transform ToSparseTensor")
    rows = np.shape(arrays.get("x", []))[0]
    if "x" in arrays and found.get("num_nodes", rows) != rows:
        raise GraphError(
            f"the Data has num_nodes {found['num_nodes']} and {rows:,} rows in x: correct one of them"
        )
    outputs = np.shape(arrays["pairs"])[-1] if "pairs" in arrays else rows
    arrays |= {
        name: as_rows(arrays[name], outputs, of_pyg=fields.get(name) is None)
        for name in MASKS
        if name in arrays
    }
    return build(arrays, "Data", on_note)


def refuse_hetero_data(*_: Any) -> NoReturn:
    """A model has one type of node and one type of edge."""
    raise GraphError(
        "HeteroData has several types of nodes or edges, and a model has one: give data.to_homogeneous(); "
        "all node types need the same number of features"
    )


def refuse_temporal_data(*_: Any) -> NoReturn:
    """A model has no time of events."""
    raise GraphError(
        "TemporalData holds events, not a graph: build a Data with x and edge_index from the events of a "
        "period"
    )


def _array(key: str, value: Any) -> Any:
    """A value as a numpy array or sparse rows; what is not a tensor stays as it is."""
    import torch

    if isinstance(value, torch.Tensor):
        return _tensor(torch, key, value)
    if isinstance(value, list) and key == "x":
        return np.asarray(value)
    return value


def _tensor(torch: Any, key: str, tensor: Any) -> Any:
    """A tensor as a numpy array or, if it is sparse, as sparse rows."""
    tensor = tensor.detach().cpu()
    if tensor.layout == torch.strided:
        return _to_numpy(torch, tensor)
    if key != "x":
        raise GraphError(f"{key} is a sparse tensor: only x may be sparse")
    if tensor.ndim != 2:
        raise GraphError(f"x has shape {list(tensor.shape)}, not [rows, columns]")
    with no_beta_warning():
        csr = tensor.to_sparse_csr()
    starts, columns, values = (
        _to_numpy(torch, part) for part in (csr.crow_indices(), csr.col_indices(), csr.values())
    )
    return SparseRows(starts, columns, values, (csr.shape[0], csr.shape[1]))


def _to_numpy(torch: Any, tensor: Any) -> Any:
    """A numpy array; float types that numpy does not have become float32."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    narrow = tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64)
    return tensor.float().numpy() if narrow else tensor.numpy()
