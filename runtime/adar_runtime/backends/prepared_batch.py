"""Many small graphs as one input of a batched cell. Graphs are padded to the nodes of the largest one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adar_runtime.backends.prepared_graph import Arrays, PreparedGraph, encoder_rows, prepare
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.signature import BATCH, IN_CONTEXT_BATCH, KNOWN
from adar_runtime.graph import EDGE, Floats, Graph, Integers
from adar_runtime.graph.neighbour_tables import Tables
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.smoothing import Smoothing

LARGEST = 512  # nodes of a graph that is run in a batch; larger graphs fill the processor alone
ROWS = 2_048  # of a batch, padding included: more rows do not fit into the processor's caches
EDGES = 2**18  # of a batch
PAIRS = 2**23  # of a batch: products of every two targets, or proxies, of each graph, padding included
AT_ONCE = 65_536  # nodes of the graphs that are sorted by size and divided into batches


@dataclass(frozen=True, eq=False)
class PreparedBatch:
    """The inputs of a bundle's models for several graphs."""

    graphs: Sequence[Graph]  # as the encoder takes them
    manifest: Manifest
    by_row: bool  # the encoder treats each node alone
    structure: Arrays  # the batched cell's inputs that describe nodes and edges, by name
    is_node: NDArray[np.bool_]  # [b, n], False for padding
    smoothing: Smoothing | None  # of the nodes of all graphs, before the first step
    placed: Sequence[PreparedGraph] | None = None  # each graph, if a pretrained model has placed them

    @classmethod
    def of_placed(cls, placed: Sequence[PreparedGraph], manifest: Manifest) -> "PreparedBatch":
        """The same for graphs that a pretrained model has placed. Their classes are padded too."""
        graphs = [each.graph for each in placed]
        is_node = _is_member([graph.nodes for graph in graphs])
        is_target = _is_member([graph.targets for graph in graphs])
        known = np.zeros((*is_node.shape, is_target.shape[1]), np.float32)
        for index, each in enumerate(placed):
            known[index, : each.graph.nodes, : each.graph.targets] = each.known
        masks = is_node[:, :, None].astype(np.float32), is_target[:, None, :].astype(np.float32)
        edges = _edges(Neighbours.in_graphs(graphs, is_node.shape[1], weighted=False), len(graphs))
        structure = edges | {KNOWN: known} | dict(zip(IN_CONTEXT_BATCH, masks, strict=True))
        return cls(graphs, manifest, True, structure, is_node, None, placed)

    @classmethod
    def of(cls, graphs: Sequence[Graph], manifest: Manifest, *, by_row: bool) -> "PreparedBatch":
        """Build the neighbour tables of all graphs together, and mark the padding."""
        sizes = np.array([graph.nodes for graph in graphs])
        is_node = _is_member(sizes)
        count, rows = is_node.shape
        neighbours = Neighbours.in_graphs(graphs, rows, weighted=manifest.edge_weights)
        if manifest.edge_weights and neighbours.weights is None:
            neighbours = replace(neighbours, weights=np.ones(len(neighbours.sources), np.float32))
        absent = np.where(is_node, 0, -np.inf).astype(np.float32)[:, None, :]
        present = (is_node / sizes[:, None]).astype(np.float32)[:, :, None]
        structure = _edges(neighbours, count) | dict(zip(BATCH, (absent, present), strict=True))
        smoothing = Smoothing(neighbours, manifest.smoothing) if manifest.smoothing else None
        return cls(graphs, manifest, by_row, structure, is_node, smoothing)

    @property
    def is_joined(self) -> bool:
        """Whether the encoder takes the nodes of all graphs at once."""
        return self.by_row and self.manifest.targets is not None

    def feature_blocks(self) -> Iterator[Floats]:
        """The features of the nodes of all graphs, in blocks: sparse features may have very many columns."""
        most, block, size = encoder_rows(self.manifest.features), list[Floats](), 0
        for graph in self.graphs:
            for start in range(0, graph.nodes, most):
                rows = graph.rows(start, min(start + most, graph.nodes))
                if size + len(rows) > most:
                    yield np.concatenate(block)
                    block, size = [], 0
                block.append(rows)
                size += len(rows)
        yield np.concatenate(block)

    def alone(self, index: int) -> PreparedGraph:
        """The inputs of the encoder and the head for one graph, without smoothing."""
        if self.placed is not None:
            return self.placed[index]
        return prepare(self.graphs[index], self.manifest, by_row=self.by_row).without_smoothing()

    def pair_blocks(self, index: int) -> list[Integers]:
        """The pairs of a graph to score, in blocks; none if the bundle does not score pairs."""
        return self.alone(index).pair_blocks() if self.manifest.level == EDGE else []

    def targets(self, index: int) -> int:
        """The number of targets of a graph."""
        return self.manifest.targets or self.graphs[index].targets

    def padded_targets(self, targets: Sequence[Floats]) -> Floats:
        """The targets of all graphs at t = 0 with padding [b, c, d]."""
        most = max(map(len, targets))
        return np.stack([np.pad(each, ((0, most - len(each)), (0, 0))) for each in targets])

    def padded(self, nodes: Floats) -> Floats:
        """The nodes of all graphs at t = 0 with padding [b, n, d], from the nodes of the encoder."""
        padded = np.zeros((*self.is_node.shape, nodes.shape[1]), np.float32)
        padded[self.is_node] = nodes
        if self.smoothing is None:
            return padded
        smoothed = self.smoothing(padded.reshape(-1, nodes.shape[1]))
        return np.ascontiguousarray(smoothed.reshape(padded.shape), np.float32)


def _is_member(sizes: Sequence[int] | Integers) -> NDArray[np.bool_]:
    """Which of the largest number of members each graph has, [b, largest]."""
    sizes = np.asarray(sizes)
    return np.arange(int(sizes.max())) < sizes[:, None]


def _edges(neighbours: Neighbours, count: int) -> Arrays:
    """The inputs that describe the edges of this many graphs."""
    tables = Tables.of(neighbours).arrays()
    del tables["sample"]
    return tables | {"share": neighbours.share.reshape(count, -1, 1)}


def batches(graphs: Sequence[Graph], members: int = 1) -> list[list[int]]:
    """Divide graphs of at most this many targets, or proxies, into batches of similar sizes.

    A batch has at most ROWS rows, padding included, at most EDGES edges and at most PAIRS pairs of targets or
    proxies, or one graph.

    Returns:
        The indices of the graphs of each batch.
    """
    most = max(1, PAIRS // members**2)
    sizes = np.array([graph.nodes for graph in graphs])
    found: list[list[int]] = []
    edges = 0
    for index in np.argsort(sizes, kind="stable").tolist():
        size = int(sizes[index])  # of every graph in this batch, because sizes ascend
        edges += graphs[index].edges
        count = len(found[-1]) + 1 if found else 1
        if not found or count > most or count * size > ROWS or edges > EDGES:
            found.append([])
            edges = graphs[index].edges
        found[-1].append(index)
    return found
