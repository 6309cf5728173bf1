"""Sums over neighbours with learned weights per edge: the convolutions of GAT and FAGCN.

They have the weights of PyG's layers and give their results (a test compares them). PyG builds one row of
all columns per edge and adds the rows up in both directions; here, sums are `embedding_bag`, as in
`SparseMatrix`, and only the gradient of a weight multiplies rows per edge, a block of edges at a time.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric import nn as pyg

from adar_train.sparse import bag
from adar_train.tensors import GraphTensors

BLOCK = 4096  # edges whose rows are multiplied at a time: they stay in the cache


class Edges:
    """The edges of a graph and one loop per node, ordered by target; the order by source for gradients.

    Attributes:
        sources, targets: Nodes of each edge [m].
        degrees: Number of incoming edges with the loop [n].
    """

    def __init__(self, edge_index: Tensor, nodes: int) -> None:
        sources, targets = edge_index[:, edge_index[0] != edge_index[1]]
        loops = torch.arange(nodes, device=edge_index.device)
        sources, targets = torch.cat([sources, loops]), torch.cat([targets, loops])
        by_target = targets.argsort(stable=True)
        self.sources, self.targets = sources[by_target], targets[by_target]
        self.degrees = torch.bincount(targets, minlength=nodes)
        self.starts = self.degrees.cumsum(0) - self.degrees
        self.each = torch.arange(len(sources), device=edge_index.device)
        self.by_source = self.sources.argsort(stable=True)
        counts = torch.bincount(sources, minlength=nodes)
        self.source_starts = counts.cumsum(0) - counts

    def from_sources(self, x: Tensor) -> Tensor:
        """The row of each edge's source [m, h], from the rows of the nodes [n, h]."""
        return _Rows.apply(x, self.sources, self.by_source, self.source_starts)  # type: ignore[no-untyped-call]

    def from_targets(self, x: Tensor) -> Tensor:
        """The row of each edge's target [m, h], from the rows of the nodes [n, h]."""
        return _Rows.apply(x, self.targets, self.each, self.starts)  # type: ignore[no-untyped-call]

    def softmax(self, values: Tensor) -> Tensor:
        """Softmax of values [m, h] over the incoming edges of each node."""
        with torch.no_grad():
            most = functional.embedding_bag(self.each, values, self.starts, mode="max")
            values_of = most.index_select(0, self.targets)
        values = (values - values_of).exp()
        sums = _Sums.apply(values, self)  # type: ignore[no-untyped-call]
        return values * self.from_targets(1 / sums)

    def weighted_sum(self, weights: Tensor, x: Tensor) -> Tensor:
        """Σ_e w_e x_source(e) for each node [n, d]; the d columns are split among the heads of w [m, h]."""
        return _WeightedSum.apply(weights, x, self)  # type: ignore[no-untyped-call]


_known: WeakKeyDictionary[GraphTensors, Edges] = WeakKeyDictionary()


def edges_of(graph: GraphTensors) -> Edges:
    """The edges of a graph, ordered once."""
    if graph not in _known:
        _known[graph] = Edges(graph.edge_index, len(graph.share))
    return _known[graph]


class GATConvolution(pyg.GATConv):  # type: ignore[misc]
    """PyG's GATConv."""

    def forward(self, x: Tensor, graph: GraphTensors) -> Tensor:
        edges = edges_of(graph)
        rows = self.lin(x)  # [n, d]
        heads = rows.view(-1, self.heads, self.out_channels)
        sent = edges.from_sources((heads * self.att_src).sum(-1))  # [m, heads]
        received = edges.from_targets((heads * self.att_dst).sum(-1))
        weights = edges.softmax(functional.leaky_relu(sent + received, self.negative_slope))
        weights = functional.dropout(weights, self.dropout, self.training)
        return edges.weighted_sum(weights, rows) + self.bias


class FAConvolution(pyg.FAConv):  # type: ignore[misc]
    """PyG's FAConv."""

    def forward(self, x: Tensor, first: Tensor, graph: GraphTensors) -> Tensor:
        edges = edges_of(graph)
        root = edges.degrees.to(x.dtype)[:, None] ** -0.5  # [n, 1]
        weights = (edges.from_sources(self.att_l(x)) + edges.from_targets(self.att_r(x))).tanh()
        weights = functional.dropout(weights, self.dropout, self.training)
        return root * edges.weighted_sum(weights, root * x) + self.eps * first


class _Rows(torch.autograd.Function):
    """Rows of x by index; the gradient is a sum over ragged lists of edges."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, edges: Tensor, starts: Tensor) -> Tensor:
        ctx.lists = edges, starts
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return bag(grad, *ctx.lists), None, None, None


class _Sums(torch.autograd.Function):
    """The sum of values over the incoming edges of each node."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, edges: Edges) -> Tensor:
        ctx.targets = edges.targets
        return bag(values, edges.each, edges.starts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad.index_select(0, ctx.targets), None


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, x: Tensor, edges: Edges) -> Tensor:
        ctx.save_for_backward(weights, x)
        ctx.edges = edges
        return _weighted_bag(x, edges.sources, edges.starts, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weights, x), edges = ctx.saved_tensors, ctx.edges
        of_weights = torch.empty_like(weights)
        for block in range(0, len(weights), BLOCK):
            chosen = slice(block, block + BLOCK)
            rows = grad.index_select(0, edges.targets[chosen]) * x.index_select(0, edges.sources[chosen])
            of_weights[chosen] = rows.view(len(rows), weights.shape[1], -1).sum(-1)
        order = edges.by_source
        of_x = _weighted_bag(grad, edges.targets[order], edges.source_starts, weights.index_select(0, order))
        return of_weights, of_x, None


def _weighted_bag(x: Tensor, columns: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of rows; one weight per head, each for its share of the columns."""
    parts = x.chunk(weights.shape[1], dim=1)
    heads = weights.detach().T.contiguous()  # [h, m]
    return torch.cat([bag(part, columns, starts, one) for part, one in zip(parts, heads, strict=True)], dim=1)
