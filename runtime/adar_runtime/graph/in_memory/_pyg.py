"""PyTorch Geometric in memory: a `Data` becomes a `Graph`."""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from adar_runtime.errors import GraphError
from adar_runtime.graph import MASKS, Graph
from adar_runtime.graph.formats._graph_file import MEANT
from adar_runtime.graph.formats.pt import tensor_to_array
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
    outputs = np.shape(arrays["pairs"])[-1] if "pairs" in arrays else np.shape(arrays.get("x", []))[0]
    arrays |= {name: as_rows(arrays[name], outputs) for name in MASKS if name in arrays}
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
        return tensor_to_array(key, value)
    if isinstance(value, list) and key == "x":
        return np.asarray(value)
    return value
