"""A two-layer GCN that is trained on the known labels of one graph, for `benchmarks.pretrained`."""

import numpy as np
import torch
from torch.nn import functional

from adar_runtime.graph import Floats, Graph, SparseRows
from adar_runtime.graph.neighbours import Neighbours
from adar_train.sparse import SparseMatrix

EPOCHS, HIDDEN, LR, WEIGHT_DECAY, DROPOUT = 100, 64, 1e-2, 5e-4, 0.5


def gcn_scores(graph: Graph, seed: int = 0) -> Floats:
    """Train on the labels of train_mask for a fixed number of epochs, and return the scores of all nodes."""
    torch.manual_seed(seed)
    mask = graph.labelled("train")
    assert mask is not None
    assert graph.labels is not None
    labels, chosen = torch.from_numpy(graph.labels[mask].astype(np.int64)), torch.from_numpy(mask)
    neighbours = Neighbours.in_graph(graph, weighted=False)
    links, root = SparseMatrix(neighbours), torch.from_numpy(np.sqrt(neighbours.share))
    features = graph.features
    x = SparseMatrix(features) if isinstance(features, SparseRows) else torch.from_numpy(features)
    first = torch.nn.init.xavier_uniform_(torch.empty(graph.width, HIDDEN)).requires_grad_()
    second = torch.nn.init.xavier_uniform_(torch.empty(HIDDEN, graph.targets)).requires_grad_()
    optimiser = torch.optim.Adam([first, second], LR, weight_decay=WEIGHT_DECAY)

    def spread(rows: torch.Tensor) -> torch.Tensor:
        scaled = root * rows
        return root * (links @ scaled + scaled)

    def scores(dropout: float) -> torch.Tensor:
        hidden = spread(x @ first).relu()
        return spread(functional.dropout(hidden, dropout, training=dropout > 0) @ second)

    for _ in range(EPOCHS):
        optimiser.zero_grad()
        functional.cross_entropy(scores(DROPOUT)[chosen], labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    found: Floats = scores(0.0).detach().numpy()
    return found
