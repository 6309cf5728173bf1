"""Many small graphs as one input of a batched cell. Graphs are padded to the nodes of the largest one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adar_runtime.backends.prepared_graph import Arrays, PreparedGraph
from adar_runtime.bundle.signature import BATCH
from adar_runtime.graph import Graph
from adar_runtime.graph.neighbour_tables import Tables
from adar_runtime.graph.neighbours import Neighbours

LARGEST = 512  # nodes of a graph that is run in a batch; larger graphs fill the processor alone
ROWS = 8_192  # of a batch, padding included: more rows do not fit into the processor's caches
EDGES = 2**18  # of a batch
AT_ONCE = 65_536  # nodes of the graphs that are sorted by size and divided into batches


@dataclass(frozen=True, eq=False)
class PreparedBatch:
    """The inputs of a bundle's models for several graphs."""

    graphs: Sequence[PreparedGraph]
    structure: Arrays  # the batched cell's inputs that describe nodes and edges, by name
    rows: int  # n, the number of nodes of the largest graph

    @classmethod
    def of(cls, graphs: Sequence[PreparedGraph]) -> "PreparedBatch":
        """Build the neighbour tables of all graphs together, and mark the padding."""
        sizes = np.array([each.graph.nodes for each in graphs])
        count, rows = len(sizes), int(sizes.max())
        neighbours = Neighbours.side_by_side([each.neighbours for each in graphs], rows)
        is_node = np.arange(rows) < sizes[:, None]  # [b, n]
        absent = np.where(is_node, 0, -np.inf).astype(np.float32)[:, None, :]
        present = (is_node / sizes[:, None]).astype(np.float32)[:, :, None]
        tables = Tables.of(neighbours).arrays()
        del tables["sample"]
        share = neighbours.share.reshape(count, rows, 1)
        structure = tables | {"share": share} | dict(zip(BATCH, (absent, present), strict=True))
        return cls(graphs, structure, rows)


def batches(graphs: Sequence[Graph]) -> list[list[int]]:
    """Divide graphs into batches of similar sizes. Return the indices of the graphs of each batch."""
    order = sorted(range(len(graphs)), key=lambda index: graphs[index].nodes)
    found: list[list[int]] = []
    edges = 0
    for index in order:
        rows = graphs[index].nodes  # of every graph in this batch, because sizes ascend
        edges += graphs[index].edges
        if not found or (len(found[-1]) + 1) * rows > ROWS or edges > EDGES:
            found.append([])
            edges = graphs[index].edges
        found[-1].append(index)
    return found
