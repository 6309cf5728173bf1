"""A graph as the model takes it: tensors on a device, edges laid out for summing."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from adar_runtime.graph import EDGE, GRAPH, Graph, SparseRows
from adar_runtime.graph.neighbours import Neighbours
from adar_train.sparse import SparseMatrix

Device = torch.device | str
DENSE_FROM = 0.1  # share of entries that are not zero


@dataclass(frozen=True, eq=False)
class GraphTensors:
    """Built once per graph; nothing in it changes while a model trains or runs."""

    features: Tensor | SparseMatrix  # [n, f]
    neighbours: SparseMatrix  # A [n, n], A_ij = 1 where j sends to i
    share: Tensor  # [n, 1], 1 / (|N(v)| + 1)
    edge_index: Tensor  # [2, m], source and target of each edge of A once, as PyG's layers take them
    labels: Tensor | None  # [k] or [k, c]
    target_features: Tensor | None  # [c, f]
    pairs: Tensor | None  # [2, k]
    level: str

    @classmethod
    def of(cls, graph: Graph, device: Device = "cpu") -> "GraphTensors":
        """Lay a graph out on a device."""
        y, targets, pairs = graph.labels, graph.target_features, graph.pairs
        neighbours = Neighbours.of(graph.edge_index, graph.nodes)
        return cls(
            features=_features(graph, device),
            neighbours=SparseMatrix(neighbours, device),
            share=torch.from_numpy(neighbours.share).to(device),
            edge_index=torch.from_numpy(np.stack([neighbours.sources, neighbours.targets])).to(device),
            labels=None if y is None else torch.from_numpy(y).to(device),
            target_features=None if targets is None else torch.from_numpy(targets).to(device),
            pairs=None if pairs is None else torch.from_numpy(pairs).to(device),
            level=graph.level,
        )

    def readout(self, nodes: Tensor, chosen: Tensor | slice = slice(None)) -> Tensor:
        """Z of the problem setup for the chosen outputs: nodes, products of pairs, or the mean node."""
        if self.level == EDGE:
            assert self.pairs is not None
            one, other = self.pairs[:, chosen]
            return nodes[one] * nodes[other]
        return nodes.mean(dim=0, keepdim=True)[chosen] if self.level == GRAPH else nodes[chosen]

    def touched(self, chosen: Tensor) -> Tensor:
        """Nodes that the chosen outputs are read from."""
        if self.level == EDGE:
            assert self.pairs is not None
            return torch.unique(self.pairs[:, chosen])
        return torch.arange(len(self.share), device=chosen.device) if self.level == GRAPH else chosen


def _features(graph: Graph, device: Device) -> Tensor | SparseMatrix:
    """Sparse where that is less work: a dense product is faster from a tenth of all entries on."""
    x = graph.features
    if isinstance(x, SparseRows) and len(x.values) < DENSE_FROM * x.shape[0] * x.shape[1]:
        return SparseMatrix(x, device)
    return torch.from_numpy(graph.rows(0, graph.nodes)).to(device)
