"""The keys of a graph file, the same in every format."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, short
from adar_runtime.graph import MASKS, NODE, Graph

KEYS = ("x", "edge_index", "y", *MASKS, "target_x", "class_names", "pairs", "level")
"""What is read; anything else that a file holds is left where it is."""


def to_graph(arrays: Mapping[str, Any], found: Iterable[str]) -> Graph:
    """Build a graph from what was read of the keys that were found."""
    for name in ("x", "edge_index"):
        require_key(name, arrays, found)
    return Graph(
        features=arrays["x"],
        edge_index=arrays["edge_index"],
        labels=arrays.get("y"),
        **{name: arrays.get(name) for name in MASKS},
        target_features=arrays.get("target_x"),
        class_names=arrays.get("class_names"),
        pairs=arrays.get("pairs"),
        level=str(arrays.get("level", NODE)),
    )


def require_key(name: str, arrays: Mapping[str, Any], found: Iterable[str]) -> None:
    """Say what there is where the key is not."""
    if name not in arrays:
        raise GraphError(f"has no {name!r}; found {short(', '.join(sorted(found)) or 'nothing')}")


def optional(graph: Graph) -> dict[str, Any]:
    """All but features and edges, by key."""
    names = None if graph.class_names is None else np.array(graph.class_names)
    level = None if graph.level == NODE else np.array(graph.level)
    values = {"y": graph.labels, "target_x": graph.target_features, "pairs": graph.pairs}
    values |= {"class_names": names, "level": level}
    values |= {name: getattr(graph, name) for name in MASKS}
    return {name: value for name, value in values.items() if value is not None}
