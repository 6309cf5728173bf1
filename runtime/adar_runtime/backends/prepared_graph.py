"""A graph as the models of a bundle take it. Prepared once per graph, whichever backend runs the models."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adar_runtime.bundle.manifest import EDGES, TABLES, Manifest
from adar_runtime.graph import EDGE, GRAPH, NODE, Floats, Graph, Integers
from adar_runtime.graph.neighbour_tables import Tables
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.smoothing import Smoothing

Arrays = dict[str, np.ndarray[Any, Any]]

ENCODER_ROWS = 16_384  # nodes are encoded in blocks, so that sparse features are never dense all at once
ENCODER_NUMBERS = 2**26  # blocks have fewer rows where there are many columns
ENCODER_STEP = 64  # blocks start at multiples of it, so that every backend accepts their memory addresses
PAIRS = 65_536  # pairs are scored in blocks: each pair takes two rows of nodes and their product


@dataclass(frozen=True, eq=False)
class PreparedGraph:
    """The inputs of a bundle's encoder, cell and head for one graph."""

    graph: Graph
    neighbours: Neighbours  # with a weight for each if the bundle takes weights
    structure: Arrays  # the cell's inputs that describe the edges, by name; the same at every step
    pairs: Integers | None  # [2, k] where the bundle scores pairs of nodes
    target_features: Floats | None  # [c, f] where the graph describes the targets
    targets: int  # c
    outputs: int  # k, the number of predictions
    by_row: bool  # the encoder treats each node alone, so nodes can be encoded in blocks
    smoothing: Smoothing | None  # of the encoder's nodes, before the first step

    def feature_blocks(self, least: int = 1) -> list[tuple[int, int]]:
        """The first and the last row (exclusive) of each block of nodes to encode at once.

        Args:
            least: The fewest rows that the backend's encoder takes. A graph of fewer nodes is one block.
        """
        if not self.by_row:
            return [(0, self.graph.nodes)]
        rows = min(ENCODER_ROWS, ENCODER_NUMBERS // self.graph.width)
        rows = max(
            ENCODER_STEP, rows // ENCODER_STEP * ENCODER_STEP, -(-least // ENCODER_STEP) * ENCODER_STEP
        )
        return blocks(self.graph.nodes, rows, least)

    def first_nodes(self, encoded: Floats) -> Floats:
        """The nodes at t = 0 [n, d], from the nodes of the encoder."""
        return encoded if self.smoothing is None else self.smoothing(encoded)

    def pair_blocks(self) -> list[Integers]:
        """The pairs, in blocks of as many as are scored at once."""
        if self.pairs is None:
            return []
        size = pairs_at_once(self.graph)
        return [self.pairs[:, start : start + size] for start in range(0, self.outputs, size)]


def prepare(graph: Graph, manifest: Manifest, *, by_row: bool, with_structure: bool = True) -> PreparedGraph:
    """Build the inputs of a bundle's models from a graph that fits the bundle.

    In a batch, graphs have no structure of their own: `PreparedBatch` builds that of all graphs together.
    """
    is_edge_level = manifest.level == EDGE and graph.pairs is not None
    pairs = np.ascontiguousarray(graph.pairs, np.int64) if is_edge_level else None
    neighbours = _neighbours(graph, weighted=manifest.edge_weights)
    return PreparedGraph(
        graph=graph,
        neighbours=neighbours,
        structure=LAYOUTS[manifest.aggregation](neighbours) if with_structure else {},
        pairs=pairs,
        target_features=graph.target_features if manifest.targets is None else None,
        targets=manifest.targets or graph.targets,
        outputs={NODE: graph.nodes, EDGE: 0 if pairs is None else pairs.shape[1], GRAPH: 1}[manifest.level],
        by_row=by_row,
        smoothing=Smoothing(neighbours, manifest.smoothing) if manifest.smoothing else None,
    )


def blocks(nodes: int, rows: int, least: int) -> list[tuple[int, int]]:
    """Spans of `rows` nodes. A rest of fewer than `least` nodes joins the last span."""
    starts = list(range(0, nodes, rows))
    if len(starts) > 1 and nodes - starts[-1] < least:
        starts.pop()
    return list(zip(starts, [*starts[1:], nodes], strict=True))


def pairs_at_once(graph: Graph) -> int:
    """How many pairs are scored at once: no fewer than nodes, which the head reads for every block."""
    return max(PAIRS, graph.nodes)


def _neighbours(graph: Graph, *, weighted: bool) -> Neighbours:
    """The neighbours, with a weight for each if the bundle takes weights: 1 if the graph has none."""
    found = Neighbours.in_graph(graph, weighted=weighted)
    if weighted and found.weights is None:
        return replace(found, weights=np.ones(len(found.sources), np.float32))
    return found


def _as_tables(neighbours: Neighbours) -> Arrays:
    return Tables.of(neighbours).arrays() | {"share": neighbours.share}


def _as_edges(neighbours: Neighbours) -> Arrays:
    edges: Arrays = {"edge_source": neighbours.sources, "edge_target": neighbours.targets}
    return edges if neighbours.weights is None else edges | {"edge_weight": neighbours.weights}


LAYOUTS: dict[str, Callable[[Neighbours], Arrays]] = {TABLES: _as_tables, EDGES: _as_edges}
"""The cell's inputs that describe the edges, by the manifest's name of the aggregation."""
