"""Baselines built from layers of PyTorch Geometric: GCN, GAT, GraphSAGE, GCNII, APPNP and GraphGPS."""

from abc import abstractmethod
from math import gcd

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from adar_runtime.errors import UsageError
from adar_train.baselines.base import OnePass
from adar_train.baselines.edge_weights import GATConvolution
from adar_train.baselines.propagation import (
    GCN2Convolution,
    GCNConvolution,
    SAGEConvolution,
    normalised,
)
from adar_train.cell import ModelConfig
from adar_train.tensors import GraphTensors

GAT_HEADS = 8  # as in the GAT paper; fewer if 8 does not divide the number of hidden columns
GPS_HEADS = 4  # as in the GraphGPS paper; fewer if 4 does not divide the number of hidden columns
GPS_MOST = 8192  # columns of all layers: a saved run that asks for more is refused before it takes memory
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

    def propagate(self, nodes: Tensor, graph: GraphTensors) -> Tensor:
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            nodes = nodes + self.dropout(convolution(norm(nodes), graph).relu())
        return self.last_norm(nodes)


class GCN(ResidualBaseline):
    """Mean over a node and its neighbours, weighted by degrees (Kipf and Welling, 2017)."""

    def convolution(self) -> nn.Module:
        return GCNConvolution(self.config.hidden, self.config.hidden)


class GAT(ResidualBaseline):
    """Mean over a node and its neighbours with learned weights (Velickovic et al., 2018)."""

    def convolution(self) -> nn.Module:
        d, heads = self.config.hidden, gcd(self.config.hidden, GAT_HEADS)
        return GATConvolution(d, d // heads, heads=heads, dropout=self.config.dropout)


class SAGE(ResidualBaseline):
    """GraphSAGE: a node's own representation plus the mean of its neighbours (Hamilton et al., 2017)."""

    def convolution(self) -> nn.Module:
        return SAGEConvolution(self.config.hidden, self.config.hidden)


class GCNII(OnePass):
    """Deep GCN that mixes the input into every layer (Chen et al., 2020)."""

    def __init__(self, config: ModelConfig, layers: int = 8) -> None:
        super().__init__(config, layers)
        self.convolutions = nn.ModuleList(
            GCN2Convolution(config.hidden, GCNII_ALPHA, GCNII_THETA, layer=number)
            for number in range(1, layers + 1)
        )

    def propagate(self, nodes: Tensor, graph: GraphTensors) -> Tensor:
        first = nodes = nodes.relu()
        for convolution in self.convolutions:
            nodes = convolution(self.dropout(nodes), first, graph).relu()
        return nodes


class APPNP(OnePass):
    """One hidden layer per node, then `layers` rounds of personalised PageRank (Gasteiger et al., 2019).

    The head is linear: to propagate Z and then score is the same as to propagate the predictions.
    """

    def __init__(self, config: ModelConfig, layers: int = 10) -> None:
        super().__init__(config, layers)
        self.predict = nn.Linear(config.hidden, config.hidden)
        self.rounds = layers

    def propagate(self, nodes: Tensor, graph: GraphTensors) -> Tensor:
        first = nodes = self.predict(self.dropout(nodes.relu()))
        for _ in range(self.rounds):
            nodes = (1 - APPNP_ALPHA) * normalised(graph, nodes) + APPNP_ALPHA * first
        return nodes


class GraphGPS(OnePass):
    """Layers of GCN and global attention side by side (Rampasek et al., 2022), with PyG's GPSConv.

    The attention is linear in the number of nodes (Performer). There are no positional encodings.
    """

    def __init__(self, config: ModelConfig, layers: int = 2) -> None:
        super().__init__(config, layers)
        d, heads = config.hidden, gcd(config.hidden, GPS_HEADS)
        if d * layers > GPS_MOST:
            raise UsageError(f"GraphGPS has {layers} layers of {d} columns: at most {GPS_MOST} together")
        # PyG draws the projections of the attention on the CPU. It cannot draw them on the device "meta", on
        # which a saved run is built first.
        with torch.device("cpu"):
            self.convolutions = nn.ModuleList(self._layer(d, heads) for _ in range(layers))

    def _layer(self, d: int, heads: int) -> nn.Module:
        return pyg.GPSConv(
            d,
            GCNConvolution(d, d),
            heads=heads,
            dropout=self.config.dropout,
            attn_type="performer",
            attn_kwargs={"head_channels": d // heads},
        )

    def propagate(self, nodes: Tensor, graph: GraphTensors) -> Tensor:
        for convolution in self.convolutions:
            nodes = convolution(nodes, graph)  # GPSConv only hands the graph to its GCN layer
        return nodes
