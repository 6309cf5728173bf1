"""A graph as tensors on a device, with its edges as a sparse matrix: the input of every PyTorch model."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from adar_runtime.graph import EDGE, GRAPH, Graph, SparseRows
from adar_runtime.graph.neighbours import Neighbours
from adar_train.sparse import SparseMatrix

if TYPE_CHECKING:
    from adar_train.cell import Cell, State

Device = torch.device | str
DENSE_FROM = 0.1  # share of non-zero entries from which a dense product is faster


@dataclass(frozen=True, eq=False)
class GraphTensors:
    """A graph as tensors. Build it once per graph with `GraphTensors.of`; it never changes.

    Attributes:
        features: Node features [n, f], dense or sparse.
        neighbours: Adjacency matrix A [n, n]; A_ij is the weight of the edge from j to i, or 1.
        share: 1 / (sum of the weights of a node's incoming edges + 1), [n, 1].
        edge_index: Source and target of each edge, without repeated edges [2, m], for PyG's layers.
        labels: Classes [k] or regression targets [k, c]; None without labels.
        target_features: Descriptions of the classes [c, f]; None if the graph has none.
        pairs: Node pairs to classify [2, k], for level "edge".
        level: What is predicted: "node", "edge" or "graph".
        edge_weight: Weights of the edges in `edge_index` [m]; None if all weights are 1.
        class_weights: Weights of the classes in the training loss [c]; None if all weights are 1.

    Example:
        >>> import numpy as np
        >>> from adar_runtime import Graph
        >>> graph = Graph(features=np.ones((3, 2)), edge_index=np.array([[0, 1], [1, 2]]))
        >>> GraphTensors.of(graph).features.shape
        torch.Size([3, 2])
    """

    features: Tensor | SparseMatrix
    neighbours: SparseMatrix
    share: Tensor
    edge_index: Tensor
    labels: Tensor | None
    target_features: Tensor | None
    pairs: Tensor | None
    level: str
    edge_weight: Tensor | None = None
    class_weights: Tensor | None = None

    @classmethod
    def of(cls, graph: Graph, device: Device = "cpu") -> "GraphTensors":
        """Convert a graph to tensors on a device.

        Args:
            graph: The graph.
            device: PyTorch device of the tensors.

        Returns:
            The tensors. Features with less than 10 % non-zero entries stay sparse.
        """
        y, targets, pairs = graph.labels, graph.target_features, graph.pairs
        neighbours = Neighbours.in_graph(graph)
        return cls(
            features=_features(graph, device),
            neighbours=SparseMatrix(neighbours, device),
            share=torch.from_numpy(neighbours.share).to(device),
            edge_index=torch.from_numpy(np.stack([neighbours.sources, neighbours.targets])).to(device),
            labels=None if y is None else torch.from_numpy(y).to(device),
            target_features=None if targets is None else torch.from_numpy(targets).to(device),
            pairs=None if pairs is None else torch.from_numpy(pairs).to(device),
            level=graph.level,
            edge_weight=None
            if neighbours.weights is None
            else torch.from_numpy(neighbours.weights).to(device),
        )

    def unweighted(self) -> "GraphTensors":
        """The same graph with weights of 1, for models that do not use the weights of edges."""
        return self if self.edge_weight is None else self._with_ones

    @cached_property
    def _with_ones(self) -> "GraphTensors":
        counts = torch.bincount(self.edge_index[1], minlength=len(self.share))
        share = (1.0 / (counts.double() + 1.0)).to(self.share.dtype)[:, None]
        return replace(self, neighbours=self.neighbours.with_ones(), share=share, edge_weight=None)

    def readout(self, nodes: Tensor, chosen: Tensor | slice = slice(None)) -> Tensor:
        """Z of the problem setup for the chosen outputs, from node states [n, d].

        Args:
            nodes: States of all nodes [n, d].
            chosen: Indices of the outputs; all by default.

        Returns:
            One row per output: its node, the product of its two nodes, or the mean of all nodes.
        """
        if self.level == EDGE:
            assert self.pairs is not None
            one, other = self.pairs[:, chosen]
            return nodes[one] * nodes[other]
        return nodes.mean(dim=0, keepdim=True)[chosen] if self.level == GRAPH else nodes[chosen]

    def own(self, chosen: Tensor) -> Tensor:
        """The rows of these outputs of the graph in this process: all, unless processes share the graph."""
        return chosen

    def labels_of(self, chosen: Tensor) -> Tensor:
        """The labels of the chosen outputs, those of other processes included."""
        assert self.labels is not None
        return self.labels[chosen]

    def weight(self, chosen: Tensor) -> float:  # noqa: ARG002
        """The weight of the mean over the chosen outputs in the loss of the graph."""
        return 1.0

    def gathered(self, scores: Tensor) -> Tensor:
        """The scores of all outputs of the graph, from those of this process."""
        return scores

    def averaged(self, alignment: Tensor) -> Tensor:
        """The alignment of the graph, from that of this process."""
        return alignment

    def targets_of(self, targets: Tensor, chosen: Tensor | slice = slice(None)) -> Tensor:  # noqa: ARG002
        """The targets [c, d] that the chosen outputs are compared with: the same for all of them."""
        return targets

    def shaped(self, state: "State") -> "State":
        """The first state in the shape of the recurrence: here, as it is."""
        return state

    def shares(self) -> Tensor | None:
        """The weight of each node in the mean over its graph; None if all are equal."""
        return None

    def step(self, cell: "Cell", state: "State", code: Tensor, dt: float) -> "State":
        """One step of the recurrence.

        Args:
            cell: The cell.
            state: The state before the step.
            code: Encoding of the time [d].
            dt: Length of the step.

        Returns:
            The state after the step.
        """
        found: State = cell(state, self.neighbours, self.share, code, dt)
        return found

    def smoothed(self, nodes: Tensor, rounds: int) -> Tensor:
        """Average nodes with their neighbours as GCN does, see `adar_runtime.graph.smoothing`.

        Args:
            nodes: Rows of all nodes [n, d].
            rounds: Number of rounds; 0 returns the nodes as they are.

        Returns:
            The smoothed rows.
        """
        root = self.share.sqrt()  # D^-1/2, [n, 1]
        for _ in range(rounds):
            scaled = root * nodes
            nodes = root * (self.neighbours @ scaled + scaled)
        return nodes

    def touched(self, chosen: Tensor) -> Tensor:
        """The nodes that the chosen outputs depend on directly."""
        if self.level == EDGE:
            assert self.pairs is not None
            return torch.unique(self.pairs[:, chosen])
        return torch.arange(len(self.share), device=chosen.device) if self.level == GRAPH else chosen


def _features(graph: Graph, device: Device) -> Tensor | SparseMatrix:
    """Sparse features stay sparse where that is faster."""
    x = graph.features
    if isinstance(x, SparseRows) and len(x.values) < DENSE_FROM * x.shape[0] * x.shape[1]:
        return SparseMatrix(x, device)
    return torch.from_numpy(graph.rows(0, graph.nodes)).to(device)
