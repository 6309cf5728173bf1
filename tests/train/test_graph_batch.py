"""Small graphs in batches: the same states, losses, gradients and metrics as one by one."""

import numpy as np
import pytest
import torch

from adar_runtime.backends.prepared_batch import LARGEST
from adar_runtime.graph import GRAPH, Graph
from adar_train import AdaR, ModelConfig, TrainConfig
from adar_train.alignments import ALIGNMENTS
from adar_train.evaluate import curves, final_metrics
from adar_train.graph_batch import GraphBatch, are_small, graph_tensors
from adar_train.objective import Objective
from adar_train.prepare import default_sizes
from adar_train.tensors import GraphTensors
from adar_train.untrained import random_model

SIZES = (3, 17, 1, 8, 30, 8)
CLOCK = [0.0, 0.2, 0.5, 1.0]


def small_graph(seed: int, nodes: int, part: str = "train") -> Graph:
    random = np.random.default_rng(seed)
    mask = np.ones((1, 1), bool)
    return Graph(
        features=random.standard_normal((nodes, 4)).astype(np.float32),
        edge_index=random.integers(0, nodes, (2, 3 * nodes)),
        labels=np.array([seed % 2]),
        level=GRAPH,
        train_mask=mask & (part == "train"),
        val_mask=mask & (part == "val"),
    )


@pytest.fixture(params=list(ALIGNMENTS))
def model(request: pytest.FixtureRequest) -> AdaR:
    config = ModelConfig(
        4, 2, hidden=16, proxies=5, level=GRAPH, dropout=0.0, smoothing=1, alignment=request.param
    )
    return random_model(config, std=0.3).double()


def doubled(tensors: GraphTensors) -> GraphTensors:
    assert isinstance(tensors.features, torch.Tensor)
    found = object.__new__(type(tensors))
    for name, value in vars(tensors).items():
        is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
        object.__setattr__(found, name, value.double() if is_real else value)
    if isinstance(found, GraphBatch):  # 1/n in single precision would be the only difference
        counts = (found.present > 0).double()
        object.__setattr__(found, "present", counts / counts.sum(dim=1, keepdim=True))
    object.__setattr__(found, "share", 1 / (1 / found.share).round())
    return found


def test_loss_and_gradients_of_a_batch_are_the_means_over_its_graphs(model: AdaR) -> None:
    graphs = [small_graph(seed, nodes) for seed, nodes in enumerate(SIZES)]
    objective = Objective(model, TrainConfig(epochs=1, middle_weight=0.5, step_weight=0.3, full_weight=0.2))
    (batch,) = map(doubled, graph_tensors(model, graphs, 0))
    assert isinstance(batch, GraphBatch)
    loss = objective(batch, torch.arange(len(graphs)), CLOCK, 1)
    loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    alone = [
        objective(doubled(GraphTensors.of(graph)), torch.tensor([0]), CLOCK, 1) / len(graphs)
        for graph in graphs
    ]
    torch.stack(alone).sum().backward()
    assert loss.item() == pytest.approx(sum(each.item() for each in alone), rel=1e-12)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-9, atol=1e-12, msg=name)


def test_curves_and_metrics_of_batches_are_those_of_the_graphs(model: AdaR) -> None:
    model.float()
    graphs = [small_graph(seed, nodes, part) for part in ("train", "val") for seed, nodes in enumerate(SIZES)]
    batched, alone = graph_tensors(model, graphs, 0), [GraphTensors.of(graph) for graph in graphs]
    assert len(batched) == 2
    (found,), (wanted,) = (curves(model, graphs, tensors, 6) for tensors in (batched, alone))
    np.testing.assert_allclose(found.alignment, wanted.alignment, rtol=1e-4, atol=1e-6)
    assert found.metrics == wanted.metrics
    for part in ("train", "val"):
        one, other = (final_metrics(model, graphs, tensors, 6, 0, part) for tensors in (batched, alone))
        assert one == other


def test_large_graphs_stay_alone(model: AdaR) -> None:
    graphs = [small_graph(0, 600), small_graph(1, 5)]
    assert not any(isinstance(each, GraphBatch) for each in graph_tensors(model, graphs, 0))


def test_many_small_graphs_have_a_small_default_model() -> None:
    graphs = [small_graph(seed, nodes) for seed, nodes in enumerate((20, 40, 30))]
    assert are_small(graphs)
    assert default_sizes(graphs, small=True) == {"hidden": 32, "proxies": 7}
    assert default_sizes(graphs[:1], small=True)["proxies"] == 5
    assert default_sizes([small_graph(0, 3)], small=True)["proxies"] == 4
    assert default_sizes([small_graph(0, 400)], small=True)["proxies"] == 32
    assert default_sizes(graphs, small=False) == {"hidden": 64, "proxies": 32}
    assert not are_small(graphs[:1])  # a training on one graph
    assert not are_small([*graphs, small_graph(0, LARGEST + 1)])
