"""How a graph is handed to the graphs of a bundle, whatever runs them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from adar_runtime.bundle.manifest import EDGES, TABLES
from adar_runtime.graph import EDGE, GRAPH, NODE, Graph, Integers
from adar_runtime.graph.neighbour_tables import Tables
from adar_runtime.graph.neighbours import Neighbours

Arrays = dict[str, np.ndarray[Any, Any]]

ENCODER_ROWS = 16_384  # nodes are encoded in blocks, so that sparse features are never dense all at once
ENCODER_NUMBERS = 2**26  # and blocks have fewer rows where there are many columns
ENCODER_STEP = 64  # blocks start at multiples of it, hence at addresses that every backend takes
PAIRS = 65_536  # links are judged in blocks, since each of them takes two rows of nodes and their product


def encoder_rows(graph: Graph, *, by_row: bool) -> int:
    """How many nodes are encoded at once: all, where a node's code depends on the others."""
    if not by_row:
        return graph.nodes
    rows = min(ENCODER_ROWS, ENCODER_NUMBERS // graph.width)
    return max(ENCODER_STEP, rows // ENCODER_STEP * ENCODER_STEP)


def outputs_of(graph: Graph, level: str) -> int:
    """k, as many as a model of this level predicts, whatever the graph's own labels are of."""
    return {NODE: graph.nodes, EDGE: 0 if graph.pairs is None else graph.pairs.shape[1], GRAPH: 1}[level]


def pairs_at_once(graph: Graph) -> int:
    """How many links are judged at once: no fewer than nodes, which the head looks at every time."""
    return max(PAIRS, graph.nodes)


def pair_blocks(graph: Graph) -> list[Integers]:
    """The pairs, as many as are judged at once to a block."""
    if graph.pairs is None:
        return []
    size = pairs_at_once(graph)
    return [graph.pairs[:, start : start + size] for start in range(0, graph.outputs, size)]


def _as_tables(neighbours: Neighbours) -> Arrays:
    return Tables.of(neighbours).arrays() | {"share": neighbours.share}


def _as_edges(neighbours: Neighbours) -> Arrays:
    return {"edge_source": neighbours.sources, "edge_target": neighbours.targets}


LAYOUTS: dict[str, Callable[[Neighbours], Arrays]] = {TABLES: _as_tables, EDGES: _as_edges}
"""What a cell has to know about the edges, by the name of its aggregation; the same at every step."""
