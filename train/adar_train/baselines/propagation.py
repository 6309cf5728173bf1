"""Sums over neighbours for the baselines, with the sparse product that AdaR uses.

The convolutions have the weights of PyG's layers and give their results (a test compares them). PyG's own
products build one row per edge, which takes 40 times as long on a CPU for a graph with a million edges.
"""

from torch import Tensor
from torch_geometric import nn as pyg

from adar_train.tensors import GraphTensors


def normalised(graph: GraphTensors, x: Tensor) -> Tensor:
    """D^-1/2 (A + I) D^-1/2 x: GCN's propagation.

    A node that is its own neighbour counts once, as in PyG; `GraphTensors.smoothed` counts it twice.
    """
    sources, targets = graph.edge_index
    once = x.new_ones(len(x), 1)
    once[targets[sources == targets]] = 0
    root = (1 / graph.share - 1 + once) ** -0.5  # [n, 1]
    x = root * x
    return root * (graph.neighbours @ x + once * x)


def neighbour_mean(graph: GraphTensors, x: Tensor) -> Tensor:
    """The mean over the neighbours of each node; zero for a node without neighbours."""
    count = (1 / graph.share - 1).clamp(min=1)
    return (graph.neighbours @ x) / count


class GCNConvolution(pyg.GCNConv):  # type: ignore[misc]
    """PyG's GCNConv."""

    def forward(self, x: Tensor, graph: GraphTensors) -> Tensor:
        return normalised(graph, self.lin(x)) + self.bias


class SAGEConvolution(pyg.SAGEConv):  # type: ignore[misc]
    """PyG's SAGEConv with the mean over neighbours."""

    def forward(self, x: Tensor, graph: GraphTensors) -> Tensor:
        return self.lin_l(neighbour_mean(graph, x)) + self.lin_r(x)


class GCN2Convolution(pyg.GCN2Conv):  # type: ignore[misc]
    """PyG's GCN2Conv with one weight for the node and the input."""

    def forward(self, x: Tensor, first: Tensor, graph: GraphTensors) -> Tensor:
        mixed = (1 - self.alpha) * normalised(graph, x) + self.alpha * first
        return (1 - self.beta) * mixed + self.beta * (mixed @ self.weight1)
