"""Self-supervised baselines: DGI and GRACE train the layers of a baseline without labels.

For a zero-shot prediction, class descriptions are encoded as nodes without neighbours, and a node gets the
class with the largest cosine.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg

from adar_runtime.errors import UsageError
from adar_runtime.evaluation.zero_shot_baselines import cosines
from adar_runtime.graph import Floats, Graph
from adar_runtime.graph.neighbours import Neighbours
from adar_train.baselines.base import OnePass
from adar_train.sparse import SparseMatrix
from adar_train.tensors import GraphTensors

EDGES, COLUMNS = (0.2, 0.4), (0.3, 0.4)  # shares that GRACE's two views leave out: its values for citations
TEMPERATURE = 0.5  # of GRACE's contrast
CONTRASTED = 2048  # nodes that GRACE compares in one update; all pairs of a large graph do not fit in memory


def embed(model: OnePass, graph: GraphTensors) -> Tensor:
    """Z [n, d] after the last layer."""
    return model.propagate(model.encode(graph).nodes, graph)


class DGI(nn.Module):
    """Deep Graph Infomax (Velickovic et al., 2019): tells nodes from nodes with the features of others."""

    def __init__(self, model: OnePass) -> None:
        super().__init__()
        self.infomax = pyg.DeepGraphInfomax(
            model.config.hidden,
            encoder=_Embedding(model),
            summary=lambda z, *_: z.mean(dim=0).sigmoid(),
            corruption=lambda graph: replace(graph, features=_dense(graph)[torch.randperm(len(graph.share))]),
        )

    def loss(self, graph: GraphTensors) -> Tensor:
        """The loss of one graph."""
        return self.infomax.loss(*self.infomax(graph))


class GRACE(nn.Module):
    """Graph contrastive learning (Zhu et al., 2020): the same node in two views, against all other nodes."""

    def __init__(self, model: OnePass) -> None:
        super().__init__()
        self.model = model
        d = model.config.hidden
        self.head = nn.Sequential(nn.Linear(d, d), nn.ELU(), nn.Linear(d, d))

    def loss(self, graph: GraphTensors) -> Tensor:
        """The loss of one graph, over a sample of its nodes."""
        chosen = torch.randperm(len(graph.share))[:CONTRASTED]
        views = [view(graph, *shares) for shares in zip(EDGES, COLUMNS, strict=True)]
        one, two = (functional.normalize(self.head(embed(self.model, each)[chosen]), dim=1) for each in views)
        return (contrast(one, two) + contrast(two, one)) / 2


def contrast(one: Tensor, two: Tensor) -> Tensor:
    """-log of the share of a node's own pair among all pairs with it, within and between the two views."""
    between = one @ two.T / TEMPERATURE
    within = (one @ one.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    return (torch.cat([between, within], dim=1).logsumexp(dim=1) - between.diagonal()).mean()


def view(graph: GraphTensors, edges: float, columns: float) -> GraphTensors:
    """The graph without a random share of its edges and of its feature columns."""
    features = _dense(graph)
    kept = graph.edge_index[:, torch.rand(graph.edge_index.shape[1]) >= edges]
    neighbours = Neighbours.of(kept.cpu().numpy(), len(graph.share))
    return replace(
        graph,
        features=features * (torch.rand(features.shape[1]) >= columns),
        neighbours=SparseMatrix(neighbours, graph.share.device),
        share=torch.from_numpy(neighbours.share).to(graph.share.device),
        edge_index=kept,
    )


SELF_SUPERVISED: dict[str, type[DGI] | type[GRACE]] = {"dgi": DGI, "grace": GRACE}
"""Self-supervised methods by name, for the paper's zero-shot table. `train` does not have them."""


def pretrain(
    method: str,
    model: OnePass,
    graphs: Sequence[Graph],
    epochs: int,
    lr: float = 1e-3,
    on_epoch: Callable[[int, float], None] = lambda *_: None,
) -> None:
    """Train the model in place, without labels; one update per graph in each epoch."""
    if method not in SELF_SUPERVISED:
        raise UsageError(f"unknown method {method!r}: choose one of {', '.join(SELF_SUPERVISED)}")
    objective = SELF_SUPERVISED[method](model)
    tensors = [GraphTensors.of(graph) for graph in graphs]
    optimizer = torch.optim.Adam(objective.parameters(), lr)
    model.train()
    for epoch in range(1, epochs + 1):
        total = 0.0
        for graph in tensors:
            optimizer.zero_grad()
            loss = objective.loss(graph)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item()
        on_epoch(epoch, total / len(tensors))
    model.eval()


@torch.no_grad()
def zero_shot_scores(model: OnePass, graph: Graph) -> Floats:
    """Cosines [n, c] of the encoded nodes and the encoded class descriptions."""
    if graph.target_features is None:
        raise UsageError("the graph has no class descriptions (target_x): add them")
    rows = np.concatenate([graph.rows(0, graph.nodes), graph.target_features])
    joined = replace(graph, features=rows, labels=None, train_mask=None, val_mask=None, test_mask=None)
    z = embed(model.eval(), GraphTensors.of(joined)).cpu().numpy()
    return cosines(z[: graph.nodes], z[graph.nodes :])


class _Embedding(nn.Module):
    """`embed` as a module, for PyG."""

    def __init__(self, model: OnePass) -> None:
        super().__init__()
        self.model = model

    def forward(self, graph: GraphTensors) -> Tensor:
        return embed(self.model, graph)

    def reset_parameters(self) -> None:
        """Keep the weights: PyG would draw new ones."""


def _dense(graph: GraphTensors) -> Tensor:
    if isinstance(graph.features, SparseMatrix):
        raise UsageError("self-supervised baselines need dense features: this graph's features are sparse")
    return graph.features
