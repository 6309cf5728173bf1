"""Graphs of NetworkX: in memory, and as the files that it reads without running anything."""

from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import AdarError, GraphError, MissingExtraError, reason, short
from adar_runtime.graph.formats.columns import Imported, to_graph


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
        for _, known in graph.nodes(data=True):
            known.pop("label", None)  # what GML calls so is a node's name
        return from_networkx(graph, label, kind)
    except (AdarError, OSError):
        raise
    except Exception as error:  # parsers of XML, of GML and of the types in them each have their own
        raise GraphError(f"not a readable {path.suffix} file ({reason(error)})") from error


def from_networkx(graph: Any, label: str | None = None, kind: str | None = None) -> Imported:
    """The graph of a networkx.Graph: nodes in its order, their attributes as features, label and split.

    `kind` says whether labels are "classes" or "numbers"; without it, their values do.
    """
    place = {node: number for number, node in enumerate(graph)}
    ends = [(place[source], place[target]) for source, target in graph.edges()]
    edges = np.array(ends, np.int64).reshape(-1, 2).T
    if not graph.is_directed():
        edges = np.concatenate([edges, edges[::-1]], axis=1)
    names = list(dict.fromkeys(name for _, known in graph.nodes(data=True) for name in known))
    columns = {str(name): [known.get(name) for _, known in graph.nodes(data=True)] for name in names}
    known_as = list(place)
    return to_graph(
        columns, edges, len(place), label, kind, where=lambda node: f"node {short(repr(known_as[node]))}"
    )
