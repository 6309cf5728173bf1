"""Edges without a direction: add missing reverse edges, or join the two directions of a link."""

import numpy as np

from adar_runtime.graph import Floats, Graph, Integers
from adar_runtime.graph.neighbours import Neighbours


def both_ways(
    edge_index: Integers, nodes: int, weights: Floats | None = None
) -> tuple[Integers, Floats | None]:
    """Add the reverse of every edge that has none, with the same weight.

    If an edge and its reverse are both given, each keeps its own weight. A repeated edge becomes one edge,
    and its weights add up.
    """
    own = Neighbours.of(edge_index, nodes, weights)
    edges = np.stack([own.sources, own.targets])
    source, target = edges
    missing = ~np.isin(target * nodes + source, source * nodes + target)
    edges = np.concatenate([edges, edges[::-1, missing]], axis=1)
    order = np.lexsort(edges[::-1])
    if own.weights is None:
        return edges[:, order], None
    return edges[:, order], np.concatenate([own.weights, own.weights[missing]])[order]


def links_of(graph: Graph) -> tuple[Integers, Floats | None]:
    """The links between different nodes as low * n + high, ascending, and their weights.

    The weight of a link with edges in both directions is the mean of the two weights.
    """
    own = Neighbours.in_graph(graph)
    low, high = np.sort(np.stack([own.sources, own.targets]), axis=0)
    between = low != high
    links, link = np.unique((low * graph.nodes + high)[between], return_inverse=True)
    if own.weights is None:
        return links, None
    totals = np.bincount(link, own.weights[between], len(links))
    return links, (totals / np.bincount(link, minlength=len(links))).astype(np.float32)
