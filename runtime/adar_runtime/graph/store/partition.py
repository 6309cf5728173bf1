"""Which nodes go to which part, so that few edges connect different parts."""

import numpy as np

from adar_runtime.errors import MissingExtraError, UsageError
from adar_runtime.graph import Graph, Integers
from adar_runtime.graph.neighbours import Neighbours

MAX_PARTS = 10_000


def check_parts(parts: int, nodes: int) -> None:
    """Raise a UsageError if so many nodes cannot be in so many parts."""
    if not 1 <= parts <= min(nodes, MAX_PARTS):
        raise UsageError(
            f"{parts:,} parts of a graph with {nodes:,} nodes: choose 1 to {min(nodes, MAX_PARTS):,} parts"
        )


def metis_parts(graph: Graph, parts: int) -> Integers:
    """The part of each node by METIS, [n]: parts of similar size with few edges between them.

    Raises:
        MissingExtraError: pymetis is not installed.
        UsageError: There are fewer nodes than parts.
    """
    check_parts(parts, graph.nodes)
    try:
        import pymetis
    except ImportError as error:
        raise MissingExtraError("--partition metis", "scale") from error
    source, target = graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]]  # METIS takes no loops
    both = Neighbours.of(np.stack([np.append(source, target), np.append(target, source)]), graph.nodes)
    _, found = pymetis.part_graph(parts, pymetis.CSRAdjacency(both.starts, both.sources))
    return np.array(found, np.int64)
