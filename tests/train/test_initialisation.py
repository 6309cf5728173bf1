"""The weights before training: scales from features and edges."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from adar_runtime import Graph
from adar_train import AdaR, GraphTensors, ModelConfig, TrainConfig, fit
from adar_train.cell import Velocity
from adar_train.data.splits import split_graphs
from adar_train.initialisation import start
from adar_train.prepare import model_config
from tests.helpers import random_graph
from tests.runtime.test_graph import sparse


def started(graph: Graph, **settings) -> tuple[AdaR, GraphTensors]:
    torch.manual_seed(0)
    model = AdaR(ModelConfig(graph.width, 3, 8, 4, **settings))
    start(model, [graph])
    return model.eval(), GraphTensors.of(graph)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_the_first_state_has_unit_scale_for_any_scale_of_the_features(scale: float) -> None:
    graph = random_graph(300, 900)
    graph = replace(graph, features=graph.features * scale + 5 * scale)
    model, tensors = started(graph)
    nodes = model.encode(tensors.features).nodes
    assert nodes.std(dim=0).mean().item() == pytest.approx(1, abs=1e-2)
    assert nodes.mean(dim=0).abs().max() < 1e-3


def test_every_term_of_a_velocity_has_unit_scale() -> None:
    model, tensors = started(random_graph(300, 900))
    seen = {}
    velocity = model.cell.velocity
    velocity.register_forward_pre_hook(lambda _, args: seen.update(projected=args[0], relation=args[1]))
    list(model.trajectory(tensors, [0.0, 1e-3]))
    for term in (seen["projected"], velocity.relation(seen["relation"])):
        assert term.std(dim=0).mean().item() == pytest.approx(1, abs=0.05)
    assert all(isinstance(v.norm, torch.nn.LayerNorm) for v in model.modules() if isinstance(v, Velocity))


def test_a_column_that_was_constant_in_training_is_ignored() -> None:
    graph = random_graph(300, 900)
    features = graph.features.copy()
    features[:, 2] = 7
    model, _ = started(replace(graph, features=features))
    other = torch.from_numpy(features[:5])
    changed = other.clone()
    changed[:, 2] += 3
    assert torch.allclose(model.encode(other).nodes, model.encode(changed).nodes)


def test_sparse_features_are_scaled_like_dense_features() -> None:
    graph = random_graph(300, 900)
    words = np.where(graph.features > 1.5, 1, 0).astype(np.float32)
    model, _ = started(replace(graph, features=sparse(words)))
    assert torch.isfinite(model.feature_scale).all()
    assert torch.allclose(model.feature_offset, torch.from_numpy(words.mean(axis=0)), atol=1e-6)


def test_an_untrained_zero_shot_model_scores_by_cosines() -> None:
    graph = random_graph(60, 0, features=6)
    torch.manual_seed(0)
    model = AdaR(ModelConfig(6, None, 6, 4, variant="zero-shot")).eval()
    start(model, [graph])
    tensors = GraphTensors.of(graph)
    state = model.encode(tensors.features, tensors.target_features)
    unit = [functional.normalize(rows, dim=1) for rows in (state.nodes, state.targets)]
    assert torch.allclose(model.scores(state, tensors), 20 * unit[0] @ unit[1].T, atol=1e-3)
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert sorted(trained) == [
        "cell.parts",
        "cell.target_update.velocity.rates",
        "cell.velocity.rates",
        "log_length",
    ]


def test_graphs_that_differ_in_one_constant_column_are_learned() -> None:
    random = np.random.default_rng(0)
    graphs = []
    for index in range(24):
        features = random.normal(size=(1 if index == 0 else 6, 3))
        features[:, 0] = index % 2
        edges = np.zeros((2, 1), np.int64)
        graphs.append(Graph(features, edges, labels=np.array([index % 2]), level="graph"))
    graphs = split_graphs(graphs)
    short = TrainConfig(epochs=40, train_steps=3, select_budgets=(3,), exit_budgets=(3,))
    fitted = fit(graphs, model_config(graphs, hidden=8, proxies=2, dropout=0.0), short)
    assert fitted.metrics["test"] > 0.9


def several(wrap: Callable) -> AdaR:
    """A model initialised on three parts of one graph; the first column is constant within each part."""
    torch.manual_seed(0)
    whole = labelled_by_graph()
    parts = [whole[:1], whole[1:151], whole[151:]]
    model = AdaR(ModelConfig(whole.shape[1], 3, 8, 4))
    start(model, [Graph(wrap(rows), np.zeros((2, 1), np.int64)) for rows in parts])
    return model.eval()


def labelled_by_graph() -> np.ndarray:
    features = random_graph(301, 900).features.copy()
    features[:, 0] = np.repeat([0, 0, 1], [1, 150, 150])
    return features


@pytest.mark.parametrize("wrap", [lambda rows: rows, sparse], ids=["dense", "sparse"])
def test_features_are_scaled_by_all_graphs_together(wrap) -> None:
    whole = labelled_by_graph()
    model, (together, _) = several(wrap=wrap), started(Graph(wrap(whole), np.zeros((2, 1), np.int64)))
    assert model.feature_scale[0] > 0  # constant within each graph, but different between graphs
    assert torch.allclose(model.feature_offset, together.feature_offset, atol=1e-6)
    assert torch.allclose(model.feature_scale, together.feature_scale, rtol=1e-5)
    nodes = model.encode(torch.from_numpy(whole)).nodes
    assert nodes.std(dim=0).mean().item() == pytest.approx(1, abs=1e-2)
    assert nodes.mean(dim=0).abs().max() < 1e-3


def test_the_scale_of_one_graph_is_exactly_that_of_its_columns() -> None:
    graph = random_graph(300, 900)
    model, _ = started(graph)
    mean = graph.features.mean(axis=0, dtype=np.float64)
    variance = graph.features.var(axis=0, dtype=np.float64)
    scale = 1 / np.sqrt(variance)
    scale *= np.sqrt(graph.width) / np.sqrt((variance * scale**2).sum())
    assert np.array_equal(model.feature_offset.numpy(), mean.astype(np.float32))
    assert np.array_equal(model.feature_scale.numpy(), scale.astype(np.float32))
