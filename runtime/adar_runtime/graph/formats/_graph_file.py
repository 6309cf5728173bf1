"""What all readers of graph files share: the keys of a file, and the file's name in every error message."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, short
from adar_runtime.graph import MASKS, NODE, Graph

KEYS = ("x", "edge_index", "y", *MASKS, "target_x", "class_names", "pairs", "level")
"""The keys that are read, in every format. All other keys of a file are ignored."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Put the file's name before the message of every error. Use one block per file."""
    try:
        if path.is_dir():
            raise GraphError("this is a folder: name a file in it")
        if not path.is_file():
            raise GraphError("there is no such file")
        yield
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {error.strerror or error}") from error
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error


def graph_from_arrays(arrays: Mapping[str, Any], found: Iterable[str]) -> Graph:
    """Build a graph from its arrays by key. `found` are all keys of the file, for the error message."""
    for key in ("x", "edge_index"):
        require_key(key, arrays, found)
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


def require_key(key: str, arrays: Mapping[str, Any], found: Iterable[str]) -> None:
    """Raise a GraphError that lists the keys of the file if `key` is missing."""
    if key not in arrays:
        raise GraphError(
            f"key {key!r} not found; the file has {short(', '.join(sorted(found)) or 'no keys')}"
        )


def optional_arrays(graph: Graph) -> dict[str, Any]:
    """All arrays of a graph except features and edges, by key."""
    names = None if graph.class_names is None else np.array(graph.class_names)
    level = None if graph.level == NODE else np.array(graph.level)
    values = {"y": graph.labels, "target_x": graph.target_features, "pairs": graph.pairs}
    values |= {"class_names": names, "level": level}
    values |= {name: getattr(graph, name) for name in MASKS}
    return {key: value for key, value in values.items() if value is not None}
