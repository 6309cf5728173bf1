"""scipy.sparse: an adjacency matrix with features becomes a `Graph`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, UsageError
from adar_runtime.graph import MASKS, Graph, SparseRows
from adar_runtime.graph._checks import array
from adar_runtime.graph.in_memory._arrays import as_rows, build, by_key

FORM = "(adjacency, features) or (adjacency, features, labels)"


def fields_of_tuple(given: tuple[Any, ...]) -> dict[str, Any]:
    """Features and labels from a tuple (adjacency, features[, labels])."""
    if not 2 <= len(given) <= 3:
        raise UsageError(f"a tuple with an adjacency has {len(given)} items: give {FORM}")
    return dict(zip(("features", "labels"), given[1:], strict=False))


def from_adjacency(adjacency: Any, fields: dict[str, Any], on_note: Callable[[str], None]) -> Graph:
    """Convert a matrix [n, n]: row i and column j are the edge from node i to node j. Zeros are no edges."""
    if fields.get("features") is None:
        raise GraphError(f"the adjacency has no features: give {FORM}")
    replaced = next((name for name in ("edge_index", "edge_weight") if fields.get(name) is not None), None)
    if replaced is not None:
        raise UsageError(f"the adjacency has the edges and weights: leave out {replaced}, or give a Graph")
    shape = adjacency.shape
    if len(shape) != 2 or shape[0] != shape[1]:
        raise GraphError(f"the adjacency has shape {list(shape)}, not [nodes, nodes]")
    entries = adjacency.tocoo(copy=True)
    entries.sum_duplicates()  # as every other format of the same matrix
    edges = entries.data != 0
    weights = entries.data[edges]
    arrays = by_key(fields) | {"edge_index": np.stack([entries.row[edges], entries.col[edges]])}
    if (weights != 1).any():
        arrays["edge_weight"] = weights
    arrays["x"] = _features(fields["features"])
    if np.shape(arrays["x"])[:1] != shape[:1]:
        raise GraphError(
            f"the adjacency has {shape[0]:,} nodes and the features have shape "
            f"{list(np.shape(arrays['x']))}: give one row of features per node"
        )
    outputs = np.shape(arrays["pairs"])[-1] if "pairs" in arrays else shape[0]
    arrays |= {name: as_rows(arrays[name], outputs) for name in MASKS if name in arrays}
    return build(arrays, "data", on_note)


def _features(features: Any) -> Any:
    """A scipy.sparse matrix as sparse rows; anything else as an array."""
    if not hasattr(features, "tocsr"):
        return array("features", features)
    rows = features.tocsr()
    return SparseRows(rows.indptr, rows.indices, rows.data, (int(rows.shape[0]), int(rows.shape[1])))
