"""Baselines for graphs whose neighbours differ: FAGCN, GPRGNN and H2GCN."""

from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from adar_runtime.errors import UsageError
from adar_runtime.graph.neighbours import Neighbours
from adar_train.baselines.base import OnePass
from adar_train.baselines.edge_weights import FAConvolution
from adar_train.baselines.propagation import normalised
from adar_train.cell import ModelConfig
from adar_train.sparse import SparseMatrix
from adar_train.tensors import GraphTensors

FAGCN_EPS = 0.3  # share of the input in each layer: FAGCN's default
GPRGNN_ALPHA = 0.1  # the first weights of the rounds are those of APPNP with this restart: GPRGNN's default
MOST_PATHS = 200_000_000  # of two edges; more need tens of gigabytes
BLOCK = 256  # nodes whose paths are listed at a time


class FAGCN(OnePass):
    """Sums over neighbours with learned weights from -1 to 1 (Bo et al., 2021), with PyG's FAConv."""

    def __init__(self, config: ModelConfig, layers: int = 4) -> None:
        super().__init__(config, layers)
        self.convolutions = nn.ModuleList(
            FAConvolution(config.hidden, FAGCN_EPS, config.dropout) for _ in range(layers)
        )
        self.predict = nn.Linear(config.hidden, config.hidden)

    def propagate(self, nodes: Tensor, graph: GraphTensors) -> Tensor:
        first = nodes = self.dropout(nodes.relu())
        for convolution in self.convolutions:
            nodes = convolution(nodes, first, graph)
        return self.predict(nodes)


class GPRGNN(OnePass):
    """One hidden layer per node, then a learned sum over rounds of propagation (Chien et al., 2021)."""

    def __init__(self, config: ModelConfig, layers: int = 10) -> None:
        super().__init__(config, layers)
        self.predict = nn.Linear(config.hidden, config.hidden)
        weights = GPRGNN_ALPHA * (1 - GPRGNN_ALPHA) ** torch.arange(layers + 1)
        weights[-1] /= GPRGNN_ALPHA  # the last round has all that is left
        self.weights = nn.Parameter(weights)  # γ [layers + 1]

    def propagate(self, nodes: Tensor, graph: GraphTensors) -> Tensor:
        nodes = self.dropout(self.predict(self.dropout(nodes.relu())))
        total = self.weights[0] * nodes
        for weight in self.weights[1:]:
            nodes = normalised(graph, nodes)
            total = total + weight * nodes
        return total


class H2GCN(OnePass):
    """Neighbours and two-hop neighbours apart from the node itself, all rounds joined (Zhu et al., 2020).

    The exact two-hop neighbours are computed once per graph. A dense graph has too many: it is refused.
    """

    def __init__(self, config: ModelConfig, layers: int = 2) -> None:
        super().__init__(config, layers)
        columns = config.hidden * (2 ** (layers + 1) - 1)  # d + 2 d + 4 d + …
        self.predict = nn.Linear(columns, config.hidden)
        self._hops: WeakKeyDictionary[GraphTensors, list[Hop]] = WeakKeyDictionary()
        self.rounds = layers

    def propagate(self, nodes: Tensor, graph: GraphTensors) -> Tensor:
        if graph not in self._hops:
            self._hops[graph] = [Hop(keys, len(graph.share), graph.share.device) for keys in two_hops(graph)]
        rounds = [nodes.relu()]
        for _ in range(self.rounds):
            rounds.append(torch.cat([hop(rounds[-1]) for hop in self._hops[graph]], dim=1))
        return self.predict(self.dropout(torch.cat(rounds, dim=1)))


class Hop:
    """D^-1/2 A D^-1/2 of the pairs `keys` = target · n + source. Nodes without neighbours receive zero."""

    def __init__(self, keys: np.ndarray, nodes: int, device: torch.device) -> None:
        neighbours = Neighbours.of(np.stack([keys % nodes, keys // nodes]), nodes)
        self._matrix = SparseMatrix(neighbours, device)
        counts = torch.from_numpy(neighbours.counts).to(device).float()
        self._root = counts.clamp(min=1)[:, None] ** -0.5  # [n, 1]

    def __call__(self, x: Tensor) -> Tensor:
        return self._root * (self._matrix @ (self._root * x))


def two_hops(graph: GraphTensors) -> tuple[np.ndarray, np.ndarray]:
    """The pairs at distance one and at distance two, each as sorted numbers target · n + source."""
    n = len(graph.share)
    near = Neighbours.of(graph.edge_index.cpu().numpy(), n)
    per_edge = near.counts[near.sources]  # paths that end with this edge
    if (paths := int(per_edge.sum())) > MOST_PATHS:
        raise UsageError(
            f"H2GCN needs the two-hop neighbours, and this graph has {paths:,} paths of two edges (at most "
            f"{MOST_PATHS:,}): choose another baseline"
        )
    own = np.arange(n, dtype=np.int64) * (n + 1)
    one = np.setdiff1d(near.targets.astype(np.int64) * n + near.sources, own)
    found = []
    for start in range(0, n, BLOCK):
        first, last = near.starts[start], near.starts[min(start + BLOCK, n)]
        counts = per_edge[first:last]
        ends = np.cumsum(counts)
        inside = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
        begin = np.repeat(near.starts[near.sources[first:last]], counts) + inside
        to = np.repeat(near.targets[first:last].astype(np.int64), counts)
        found.append(np.unique(to * n + near.sources[begin]))
    return one, np.setdiff1d(np.concatenate(found), np.concatenate([one, own]))
