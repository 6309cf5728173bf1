"""A graph as the models of a bundle take it. Prepared once per graph, whichever backend runs the models."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from adar_runtime.bundle.manifest import EDGES, TABLES, Manifest
from adar_runtime.bundle.signature import KNOWN
from adar_runtime.graph import EDGE, GRAPH, NODE, Floats, Graph, Integers
from adar_runtime.graph.neighbour_tables import Tables, Widths
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.smoothing import Smoothing
from adar_runtime.in_context.label_check import LabelCheck
from adar_runtime.in_context.start import Start, start

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
    aggregation: str  # the manifest's name of how the cell sums over neighbours
    pairs: Integers | None  # [2, k] where the bundle scores pairs of nodes
    target_features: Floats | None  # [c, f] where the graph describes the targets
    targets: int  # c
    outputs: int  # k, the number of predictions
    by_row: bool  # the encoder treats each node alone, so nodes can be encoded in blocks
    smoothing: Smoothing | None  # of the encoder's nodes, before the first step
    known: Floats | None = None  # [n, c], the known classes of the nodes; None if the cell does not take them
    check: LabelCheck | None = None  # how strongly a pretrained model moves; None for full moves

    @cached_property
    def structure(self) -> Arrays:
        """The cell's inputs that describe the edges, by name; the same at every step."""
        return self._inputs(None)

    def for_outputs(self, graph: Graph, manifest: Manifest) -> "PreparedGraph":
        """The same nodes and edges with the targets and pairs of another graph. The edges are kept."""
        found = replace(self, graph=graph, **_outputs_of(graph, manifest))
        vars(found)["structure"] = self.structure
        return found

    def structure_with(self, widths: Widths) -> Arrays:
        """The same inputs, with neighbour tables of these widths."""
        return self._inputs(widths)

    def _inputs(self, widths: Widths | None) -> Arrays:
        edges = LAYOUTS[self.aggregation](self.neighbours, widths)
        return edges if self.known is None else edges | {KNOWN: self.known}

    def with_start(self, first: Start) -> "PreparedGraph":
        """The same edges with another closed-form start."""
        graph = first.as_graph(self.graph)
        found = replace(self, graph=graph, target_features=graph.target_features, known=first.known)
        vars(found)["structure"] = self.structure | {KNOWN: first.known}
        return found

    def feature_blocks(self) -> list[tuple[int, int]]:
        """The first and the last row (exclusive) of each block of nodes to encode at once."""
        nodes = self.graph.nodes
        rows = encoder_rows(self.graph.width) if self.by_row else nodes
        return [(start, min(start + rows, nodes)) for start in range(0, nodes, rows)]

    def first_nodes(self, encoded: Floats) -> Floats:
        """The nodes at t = 0 [n, d], from the nodes of the encoder."""
        return encoded if self.smoothing is None else self.smoothing(encoded)

    def without_smoothing(self) -> "PreparedGraph":
        """The same, for a caller that smooths the nodes itself."""
        return replace(self, smoothing=None)

    def pair_blocks(self) -> list[Integers]:
        """The pairs, in blocks of as many as are scored at once."""
        if self.pairs is None:
            return []
        size = pairs_at_once(self.graph)
        return [self.pairs[:, start : start + size] for start in range(0, self.outputs, size)]


def prepare(graph: Graph, manifest: Manifest, *, by_row: bool, first: Start | None = None) -> PreparedGraph:
    """Build the inputs of a bundle's models from a graph that fits the bundle.

    The neighbour tables are built when they are first read: a batch of graphs has tables of its own. `first`
    is the closed-form start of a pretrained model, if it is already computed.
    """
    neighbours = _neighbours(graph, weighted=manifest.edge_weights)
    known = None
    if manifest.in_context:
        first = first or start(graph, manifest.features)
        graph, known = first.as_graph(graph), first.known
    return PreparedGraph(
        graph=graph,
        neighbours=neighbours,
        aggregation=manifest.aggregation,
        by_row=by_row,
        smoothing=Smoothing(neighbours, manifest.smoothing) if manifest.smoothing else None,
        known=known,
        **_outputs_of(graph, manifest),
    )


def _outputs_of(graph: Graph, manifest: Manifest) -> dict[str, Any]:
    """The fields that say what is predicted."""
    is_edge_level = manifest.level == EDGE and graph.pairs is not None
    pairs = np.ascontiguousarray(graph.pairs, np.int64) if is_edge_level else None
    return {
        "pairs": pairs,
        "target_features": graph.target_features if manifest.targets is None else None,
        "targets": manifest.targets or graph.targets,
        "outputs": {NODE: graph.nodes, EDGE: 0 if pairs is None else pairs.shape[1], GRAPH: 1}[
            manifest.level
        ],
    }


def encoder_rows(features: int) -> int:
    """How many nodes are encoded at once, if the encoder treats each node alone."""
    rows = min(ENCODER_ROWS, ENCODER_NUMBERS // features)
    return max(ENCODER_STEP, rows // ENCODER_STEP * ENCODER_STEP)


def pairs_at_once(graph: Graph) -> int:
    """How many pairs are scored at once: no fewer than nodes, which the head reads for every block."""
    return max(PAIRS, graph.nodes)


def _neighbours(graph: Graph, *, weighted: bool) -> Neighbours:
    """The neighbours, with a weight for each if the bundle takes weights: 1 if the graph has none."""
    found = Neighbours.in_graph(graph, weighted=weighted)
    if weighted and found.weights is None:
        return replace(found, weights=np.ones(len(found.sources), np.float32))
    return found


def _as_tables(neighbours: Neighbours, widths: Widths | None) -> Arrays:
    return Tables.of(neighbours, widths).arrays() | {"share": neighbours.share}


def _as_edges(neighbours: Neighbours, _widths: Widths | None) -> Arrays:
    edges: Arrays = {"edge_source": neighbours.sources, "edge_target": neighbours.targets}
    return edges if neighbours.weights is None else edges | {"edge_weight": neighbours.weights}


LAYOUTS: dict[str, Callable[[Neighbours, Widths | None], Arrays]] = {TABLES: _as_tables, EDGES: _as_edges}
"""The cell's inputs that describe the edges, by the manifest's name of the aggregation.

The widths of the neighbour tables are fixed, or None to choose them for the graph.
"""
