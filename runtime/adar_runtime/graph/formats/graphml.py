"""Import NetworkX graphs: from memory, and from `.graphml` and `.gml` files. Neither format can run code."""

from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import AdarError, GraphError, MissingExtraError, reason, short
from adar_runtime.graph.formats._tables import Imported, graph_from_columns


def read(path: Path, label: str | None = None, kind: str | None = None) -> Imported:
    """Read a .graphml or .gml file."""
    try:
        import networkx
    except ImportError as error:
        raise MissingExtraError(f"reading {path.suffix}", "convert") from error
    try:
        if path.suffix == ".graphml":
            return from_networkx(networkx.read_graphml(path), label, kind)
        graph = networkx.read_gml(path, label="id")
        for _, attributes in graph.nodes(data=True):
            attributes.pop("label", None)  # in GML, "label" is the node's name
        return from_networkx(graph, label, kind)
    except (AdarError, OSError):
        raise
    except Exception as error:  # the parsers of XML, GML and their types raise many types of error
        raise GraphError(f"not a readable {path.suffix} file ({reason(error)})") from error


def from_networkx(graph: Any, label: str | None = None, kind: str | None = None) -> Imported:
    """Convert a `networkx.Graph`.

    Args:
        graph: The graph. Nodes keep their order. Node attributes become features, labels and split. An
            undirected edge becomes two edges, one in each direction.
        label: Node attribute of the labels. Default: "y", "label", "class" or "target", if one exists.
        kind: "classes" or "numbers" (regression targets). Default: "numbers" if a label has a fraction.

    Returns:
        The graph, and notes on what was converted and how.

    Raises:
        GraphError: The label attribute is missing, or a value cannot be used.
    """
    number = {node: position for position, node in enumerate(graph)}
    pairs = [(number[source], number[target]) for source, target in graph.edges()]
    edges = np.array(pairs, np.int64).reshape(-1, 2).T
    if not graph.is_directed():
        edges = np.concatenate([edges, edges[::-1]], axis=1)
    attributes = [found for _, found in graph.nodes(data=True)]
    names = list(dict.fromkeys(name for found in attributes for name in found))
    columns = {str(name): [found.get(name) for found in attributes] for name in names}
    nodes = list(number)
    return graph_from_columns(
        columns, edges, len(nodes), label, kind, locate=lambda node: f"node {short(repr(nodes[node]))}"
    )
