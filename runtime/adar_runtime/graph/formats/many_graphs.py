"""Many graphs in one file. `.npz` has the arrays of all graphs in a row, and where each graph begins.

| key | shape | meaning |
|---|---|---|
| `node_ptr` | [graphs + 1] | the first node of each graph, and the number of all nodes |
| `edge_ptr` | [graphs + 1] | the same for edges |
| `edge_index` | [2, all edges] | the edges, with the node numbers of each graph, from 0 |
| `x` | [all nodes, f] | the features; without them, features are made from degrees and sizes |
| `y`, masks | [graphs], [splits, graphs] | one label per graph |
| `edge_weight` | [all edges] | optional |
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError, warn
from adar_runtime.graph import GRAPH, MASKS, NODE, Floats, Graph, Integers
from adar_runtime.graph import _checks as checks
from adar_runtime.graph.formats._graph_file import warn_labels
from adar_runtime.graph.limits import GRAPH_BYTES, ByteBudget

ONE_WANTED = "the file holds many graphs: train, evaluate and run take it; other commands take one graph"
POINTERS = ("node_ptr", "edge_ptr")
HIGHEST_DEGREE = 16  # degrees from 0 to this one have a column each
EDGE_BYTES = 12  # of an edge while it is checked: the size of its graph, and booleans
OF_ONE_GRAPH = ("target_x", "pairs", "ids", "feature_encoding")  # keys that many graphs do not have
NO_EDGES = np.zeros((2, 0), np.int64)
DEGREE_COLUMNS = HIGHEST_DEGREE + 3  # and the logarithms of the degree and of the number of nodes
DEGREE_BYTES = 4 * DEGREE_COLUMNS + 40  # of a node: its features, and temporary arrays


def is_many(arrays: Mapping[str, Any]) -> bool:
    """Whether the arrays are those of many graphs."""
    return any(key in arrays for key in POINTERS)


def with_level(arrays: dict[str, Any]) -> dict[str, Any]:
    """One of many graphs: one label for several nodes is the label of the graph."""
    if "y" not in arrays or "level" in arrays or "pairs" in arrays:
        return arrays
    rows, labels = getattr(arrays.get("x"), "shape", ())[:1], np.atleast_1d(arrays["y"])
    is_whole = len(labels) == 1 and rows > (1,)
    return arrays | {"y": labels} | ({"level": GRAPH} if is_whole else {})


def same_level(graphs: list[Graph]) -> list[Graph]:
    """If some graphs have one label for the whole graph, read others in the same way.

    These are graphs of one node, and graphs without labels.
    """
    if not any(graph.level == GRAPH for graph in graphs):
        return graphs
    return [
        replace(graph, level=GRAPH)
        if graph.level == NODE and (graph.labels is None or graph.nodes == 1)
        else graph
        for graph in graphs
    ]


def checked_together(labels: Any, names: tuple[str, ...] | None, **masks: Any) -> Floats | Integers | None:
    """Check the labels of all graphs, and warn about them once.

    A graph with a node in place of each label has the same rules.
    """
    together = Graph(np.zeros((len(labels), 1), np.float32), NO_EDGES, labels, **masks, class_names=names)
    warn_labels(together)
    return together.labels


def split_graphs(arrays: Mapping[str, Any], budget: ByteBudget) -> list[Graph]:
    """Divide the arrays of a file into graphs.

    Args:
        arrays: The arrays by key.
        budget: The memory that is left for the graphs, and for features that are made here.

    Returns:
        One graph of level "graph" for each entry of `node_ptr`.

    Raises:
        GraphError: An array is missing, or the arrays do not fit together.
    """
    edges = arrays.get("edge_index")
    if edges is None or edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise GraphError("a file with node_ptr needs edge_index, integers of shape [2, edges]")
    nodes = _pointer(arrays, "node_ptr", None)
    count = len(nodes) - 1
    starts = _pointer(arrays, "edge_ptr", edges.shape[1])
    if len(starts) != len(nodes):
        raise GraphError(f"edge_ptr is for {len(starts) - 1:,} graphs and node_ptr for {count:,}")
    budget.reserve("node_ptr", count, GRAPH_BYTES)
    if "x" not in arrays:
        budget.reserve("the features from degrees", int(nodes[-1]), DEGREE_BYTES)
    budget.reserve("edge_index", edges.shape[1], EDGE_BYTES)
    # Everything is checked here for all graphs together: an error in the last of 100,000 comes at once.
    edges = _edges(edges, nodes, starts)
    features = checks.matrix("x", _features(arrays, nodes, edges, starts))
    labels = None if arrays.get("y") is None else np.atleast_1d(arrays["y"])
    if labels is not None and len(labels) != count:
        raise GraphError(f"y has {len(labels):,} labels for {count:,} graphs: give one label per graph")
    weights = arrays.get("edge_weight")
    weights = None if weights is None else checks.edge_weights(weights, edges.shape[1])
    masks = {name: _mask(name, arrays[name], count) for name in MASKS if arrays.get(name) is not None}
    names = arrays.get("class_names")
    names = None if names is None else checks.names("class_names", names)
    if labels is not None:
        labels = checked_together(labels, names, **masks)
    unused = [key for key in OF_ONE_GRAPH if arrays.get(key) is not None]
    if unused:
        warn(f"keys that a file of many graphs may not have, and that are not used: {', '.join(unused)}")
    return [
        Graph(
            features=features[nodes[i] : nodes[i + 1]],
            edge_index=edges[:, starts[i] : starts[i + 1]],
            labels=None if labels is None else labels[i : i + 1],
            **{name: mask[:, i : i + 1] for name, mask in masks.items()},
            class_names=names,
            level=GRAPH,
            edge_weight=None if weights is None else weights[starts[i] : starts[i + 1]],
        )
        for i in range(count)
    ]


def _pointer(arrays: Mapping[str, Any], name: str, end: int | None) -> Integers:
    found = arrays.get(name)
    if found is None:
        raise GraphError(f"a file of many graphs needs {' and '.join(POINTERS)}; {name} is missing")
    if found.ndim != 1 or len(found) < 2 or found.dtype.kind not in "iu":
        raise GraphError(f"{name} must be a list of at least two integers")
    found = found.astype(np.int64)
    if found[0] != 0 or not checks.rises(found, strictly=end is None):
        raise GraphError(f"{name} must begin with 0 and rise")
    if end is not None and found[-1] != end:
        raise GraphError(f"{name} ends with {found[-1]:,}, and there are {end:,} edges")
    return found


def _edges(edges: NDArray[Any], nodes: Integers, starts: Integers) -> Integers:
    """The edges, if each is between nodes of its own graph."""
    found = checks.integers("edge_index", edges)
    sizes = np.repeat(np.diff(nodes), np.diff(starts))
    wrong = (found < 0) | (found >= sizes)
    if wrong.any():
        row, edge = np.unravel_index(int(wrong.argmax()), wrong.shape)
        graph = int(np.searchsorted(starts, edge, "right"))
        raise GraphError(
            f"edge_index has node numbers outside their graphs: {found[row, edge]} in graph {graph:,}, "
            f"where valid ids are 0–{sizes[edge] - 1}"
        )
    return found


def _features(arrays: Mapping[str, Any], nodes: Integers, edges: Integers, starts: Integers) -> Floats:
    x = arrays.get("x")
    if x is None:
        warn(f"the graphs have no features (x): {DEGREE_COLUMNS} columns are made from degrees and sizes")
        return degree_features(nodes, edges, starts)
    if isinstance(x, np.ndarray) and x.ndim == 2 and len(x) == nodes[-1]:
        return x
    raise GraphError(f"x must have one row for each of the {nodes[-1]:,} nodes of all graphs, and be dense")


def degree_features(nodes: Integers, edges: Integers, starts: Integers) -> Floats:
    """A column for each degree, the last one for all high degrees; log(1 + degree); log(nodes of the graph).

    The prediction of a graph is made from the mean of its nodes, which does not tell how many there are.
    """
    offsets = np.repeat(nodes[:-1], np.diff(starts))
    targets = edges[1] + offsets
    total = int(nodes[-1])
    degrees = np.bincount(targets, minlength=total)
    found = np.zeros((total, DEGREE_COLUMNS), np.float32)
    found[np.arange(total), np.minimum(degrees, HIGHEST_DEGREE)] = 1
    found[:, -2] = np.log1p(degrees)
    sizes = np.diff(nodes)
    found[:, -1] = np.repeat(np.log(np.maximum(sizes, 1)), sizes)
    return found


def encode_graphs(graphs: Sequence[Graph]) -> bytes:
    """Graphs with dense features as a file of many graphs, without labels and masks."""
    arrays: dict[str, Any] = {
        "node_ptr": np.cumsum([0, *(graph.nodes for graph in graphs)]),
        "edge_ptr": np.cumsum([0, *(graph.edges for graph in graphs)]),
        "edge_index": np.concatenate([graph.edge_index for graph in graphs], axis=1),
        "x": np.concatenate([graph.rows(0, graph.nodes) for graph in graphs]),
    }
    if any(graph.edge_weight is not None for graph in graphs):
        weights = [np.ones(g.edges, np.float32) if g.edge_weight is None else g.edge_weight for g in graphs]
        arrays["edge_weight"] = np.concatenate(weights)
    file = BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _mask(name: str, mask: Any, count: int) -> Any:
    mask = mask[None] if mask.ndim == 1 else mask
    if mask.ndim != 2 or mask.shape[1] != count:
        raise GraphError(f"{name} has the shape {list(mask.shape)}: give [splits, {count}]")
    return mask
