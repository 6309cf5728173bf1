"""Part "more": GCN and logistic regression on further graphs; GIN on the small graphs of reddit-threads."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adar_runtime.evaluation.metrics import metric
from adar_runtime.graph.formats import read_graphs
from adar_runtime.graph.neighbours import Neighbours
from adar_train import GraphTensors, load
from adar_train.sparse import SparseMatrix
from benchmarks.paper.table import Key, Row, Table
from benchmarks.paper.tasks import Part, Task, Work
from benchmarks.paper.training import score_row, train_baseline

SETS = (
    "acm",
    "actor",
    "blogcatalog",
    "chameleon-filtered",
    "dblp-words",
    "flickr",
    "twitch-engb",
    "twitch-es",
    "twitch-ptbr",
    "wisconsin",
    "reddit-threads",
)
SPLITS = (0, 1, 2)
GRAPHS = "reddit-threads"
GCN_SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},  # of `adar-deploy train --baseline gcn --preset quick`
    "shallow": {"layers": 2, "dropout": 0.5, "weight_decay": 5e-4},
}
EPOCHS, QUICK_EPOCHS = 200, 60
STRENGTHS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of the L2 penalty, chosen on validation
DEGREES, GIN_HIDDEN, GIN_LAYERS, GIN_EPOCHS = 32, 32, 3, 60


def tasks(table: Table, sets: tuple[str, ...], quick: bool) -> list[Task]:  # noqa: ARG001
    """Logistic regression and GCN with its defaults first, then GCN with more regularisation."""
    found = [Task(Key("more", GRAPHS, 0, "gin"), 120)] if GRAPHS in sets else []
    node_sets = [name for name in sets if name != GRAPHS]
    for method, setting in (("lr", "default"), *(("gcn", name) for name in GCN_SETTINGS)):
        found += [
            Task(
                Key("more", name, split, method, setting),
                15 if method == "lr" else 40,
                has_quick_form=method != "lr",
            )
            for split in SPLITS
            for name in node_sets
        ]
    return found


def measure(work: Work) -> Row:
    """One row."""
    if work.key.method == "gin":
        return gin(work)
    graph = load(str(work.file()))
    if work.key.method == "lr":
        return logistic_regression(work, graph)
    epochs = QUICK_EPOCHS if work.quick else EPOCHS
    settings = GCN_SETTINGS[work.key.setting]
    return train_baseline(work, [graph], "gcn", epochs=epochs, evaluate_every=5, **settings)[1]


def logistic_regression(work: Work, graph: Any) -> Row:
    """Softmax of a linear map of the features, without the edges, by L-BFGS."""
    tensors = GraphTensors.of(graph)
    mask = graph.labelled("train", work.key.split)
    chosen = torch.from_numpy(np.flatnonzero(mask))
    assert tensors.labels is not None
    labels = tensors.labels[chosen]
    found = []
    for index, strength in enumerate(STRENGTHS):
        work.report(index / len(STRENGTHS), f"strength {strength:g}")
        weight = torch.zeros(graph.width, graph.targets, requires_grad=True)
        bias = torch.zeros(graph.targets, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

        def closure(
            weight: Tensor = weight,
            bias: Tensor = bias,
            optimizer: Any = optimizer,
            strength: float = strength,
        ) -> Tensor:
            optimizer.zero_grad()
            scores = (tensors.features @ weight + bias)[chosen]
            loss = functional.cross_entropy(scores, labels) + strength * weight.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            scores = (tensors.features @ weight + bias).numpy()
        found.append(score_row(graph, scores, work.key.split) | {"settings": {"strength": strength}})
    return max(found, key=lambda row: row["val"])


class GIN(nn.Module):
    """Sums over neighbours, each followed by two layers (Xu et al., 2019); the mean and sum of all layers."""

    def __init__(self, features: int, hidden: int, layers: int) -> None:
        super().__init__()
        widths = [features] + [hidden] * layers
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(a, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, hidden))
            for a in widths[:-1]
        )
        self.head = nn.Linear(2 * layers * hidden, 2)

    def forward(self, x: Tensor, neighbours: SparseMatrix, members: Tensor, counts: Tensor) -> Tensor:
        """Scores [graphs, 2] of nodes [n, f] that belong to the graphs `members` [n]."""
        pooled = []
        for layer in self.layers:
            x = layer(x + neighbours @ x).relu()
            total = x.new_zeros(len(counts), x.shape[1]).index_add(0, members, x)
            pooled += [total / counts[:, None], total / 100]
        return self.head(torch.cat(pooled, dim=1))


def gin(work: Work) -> Row:
    """All graphs as one graph without edges between them; features are the degrees, one-hot."""
    graphs = read_graphs(work.file())
    sizes = np.array([graph.nodes for graph in graphs])
    members = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.cumsum(sizes) - sizes
    edges = [graph.edge_index + start for graph, start in zip(graphs, starts, strict=True)]
    neighbours = Neighbours.of(np.concatenate(edges, axis=1), len(members))
    x = functional.one_hot(torch.from_numpy(np.minimum(neighbours.counts, DEGREES - 1)), DEGREES).float()
    torch.manual_seed(work.key.seed)
    model = GIN(DEGREES, GIN_HIDDEN, GIN_LAYERS)
    matrix = SparseMatrix(neighbours)
    inputs = (x, matrix, torch.from_numpy(members), torch.from_numpy(sizes).float())
    known = np.array([graph.labels for graph in graphs]).ravel()
    labels = torch.from_numpy(known)
    parts = ("train", "val", "test")
    masks = {part: np.array([g.labelled(part, work.key.split) is not None for g in graphs]) for part in parts}
    chosen = torch.from_numpy(np.flatnonzero(masks["train"]))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=1e-5)
    epochs = GIN_EPOCHS // 2 if work.quick else GIN_EPOCHS
    best: Row = {"val": 0.0}
    for epoch in range(1, epochs + 1):
        model.train()
        optimizer.zero_grad()
        functional.cross_entropy(model(*inputs)[chosen], labels[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if epoch % 5 == 0:
            with torch.no_grad():
                scores = model.eval()(*inputs).numpy()
            found = {part: metric(scores[mask], known[mask]) for part, mask in masks.items()}
            best = max(best, found | {"best_epoch": epoch}, key=lambda row: row["val"])
            work.report(epoch / epochs, f"epoch {epoch} of {epochs}, best val {100 * best['val']:.2f}")
    settings = {"layers": GIN_LAYERS, "hidden": GIN_HIDDEN, "lr": 1e-2, "features": "degrees, one-hot"}
    return best | {"metric": "roc_auc", "epochs": epochs, "settings": settings}


PART = Part("more", SETS, tasks, measure)
