"""Baselines built from layers of PyTorch Geometric: GCN, GAT, GraphSAGE, GCNII and APPNP."""

from abc import abstractmethod
from math import gcd

from torch import Tensor, nn
from torch_geometric import nn as pyg

from adar_train.baselines.base import OnePass
from adar_train.cell import ModelConfig

GAT_HEADS = 8  # as in the GAT paper; fewer if 8 does not divide the number of hidden columns
GCNII_ALPHA, GCNII_THETA = 0.1, 0.5  # share of the input in each layer, decay of the weights: GCNII's values
APPNP_ALPHA = 0.1  # probability of a restart at the node itself: APPNP's value


class ResidualBaseline(OnePass):
    """x ← x + ReLU(conv(norm(x))) per layer, for any PyG convolution that keeps the width.

    Norms and residuals are those of the heterophilous-graphs benchmark (Platonov et al., 2023), whose
    figures the paper quotes. Without them these baselines would be too weak for a fair comparison.
    """

    def __init__(self, config: ModelConfig, layers: int = 4) -> None:
        super().__init__(config, layers)
        d = config.hidden
        self.convolutions = nn.ModuleList(self.convolution() for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers))
        self.last_norm = nn.LayerNorm(d)

    @abstractmethod
    def convolution(self) -> nn.Module:
        """A new PyG convolution from d columns to d columns."""

    def propagate(self, nodes: Tensor, edge_index: Tensor) -> Tensor:
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            nodes = nodes + self.dropout(convolution(norm(nodes), edge_index).relu())
        return self.last_norm(nodes)


class GCN(ResidualBaseline):
    """Mean over a node and its neighbours, weighted by degrees (Kipf and Welling, 2017)."""

    def convolution(self) -> nn.Module:
        return pyg.GCNConv(self.config.hidden, self.config.hidden)


class GAT(ResidualBaseline):
    """Mean over a node and its neighbours with learned weights (Velickovic et al., 2018)."""

    def convolution(self) -> nn.Module:
        d, heads = self.config.hidden, gcd(self.config.hidden, GAT_HEADS)
        return pyg.GATConv(d, d // heads, heads=heads, dropout=self.config.dropout)


class SAGE(ResidualBaseline):
    """GraphSAGE: a node's own representation plus the mean of its neighbours (Hamilton et al., 2017)."""

    def convolution(self) -> nn.Module:
        return pyg.SAGEConv(self.config.hidden, self.config.hidden)


class GCNII(OnePass):
    """Deep GCN that mixes the input into every layer (Chen et al., 2020)."""

    def __init__(self, config: ModelConfig, layers: int = 8) -> None:
        super().__init__(config, layers)
        self.convolutions = nn.ModuleList(
            pyg.GCN2Conv(config.hidden, GCNII_ALPHA, GCNII_THETA, layer=number)
            for number in range(1, layers + 1)
        )

    def propagate(self, nodes: Tensor, edge_index: Tensor) -> Tensor:
        first = nodes = nodes.relu()
        for convolution in self.convolutions:
            nodes = convolution(self.dropout(nodes), first, edge_index).relu()
        return nodes


class APPNP(OnePass):
    """One hidden layer per node, then `layers` rounds of personalised PageRank (Gasteiger et al., 2019).

    The head is linear: to propagate Z and then score is the same as to propagate the predictions.
    """

    def __init__(self, config: ModelConfig, layers: int = 10) -> None:
        super().__init__(config, layers)
        self.predict = nn.Linear(config.hidden, config.hidden)
        self.rounds = pyg.APPNP(K=layers, alpha=APPNP_ALPHA)

    def propagate(self, nodes: Tensor, edge_index: Tensor) -> Tensor:
        return self.rounds(self.predict(self.dropout(nodes.relu())), edge_index)
