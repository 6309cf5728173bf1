"""A graph as the model takes it: tensors on a device, edges laid out for summing."""

from dataclasses import dataclass

import numpy as np
import torch
from adar_runtime.graph import Graph, SparseRows
from adar_runtime.neighbours import Neighbours
from torch import Tensor

from adar_train.sparse import SparseMatrix


@dataclass(frozen=True, eq=False)
class GraphTensors:
    """Built once per graph; nothing in it changes while a model trains or runs."""

    features: Tensor | SparseMatrix  # [n, f]
    neighbours: SparseMatrix  # A [n, n], A_ij = 1 where j sends to i
    share: Tensor  # [n, 1], 1 / (|N(v)| + 1)
    edge_index: Tensor  # [2, m], source and target of each edge of A once, as PyG's layers take them
    labels: Tensor | None  # [n]
    target_features: Tensor | None  # [c, f]

    @classmethod
    def of(cls, graph: Graph, device: torch.device | str = "cpu") -> "GraphTensors":
        """Lay a graph out on a device."""
        x, y, targets = graph.features, graph.labels, graph.target_features
        neighbours = Neighbours.of(graph.edge_index, graph.nodes)
        return cls(
            features=SparseMatrix(x, device) if isinstance(x, SparseRows) else torch.from_numpy(x).to(device),
            neighbours=SparseMatrix(neighbours, device),
            share=torch.from_numpy(neighbours.share).to(device),
            edge_index=torch.from_numpy(np.stack([neighbours.sources, neighbours.targets])).to(device),
            labels=None if y is None else torch.from_numpy(y).to(device),
            target_features=None if targets is None else torch.from_numpy(targets).to(device),
        )
