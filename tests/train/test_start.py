from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from adar_runtime import Graph
from adar_train import AdaR, GraphTensors, ModelConfig
from adar_train.cell import Velocity
from adar_train.start import start
from tests.helpers import random_graph
from tests.runtime.test_graph import sparse


def started(graph: Graph, **settings) -> tuple[AdaR, GraphTensors]:
    torch.manual_seed(0)
    model = AdaR(ModelConfig(graph.width, 3, 8, 4, **settings))
    start(model, [graph])
    return model.eval(), GraphTensors.of(graph)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_the_first_state_has_one_scale_whatever_the_features_have(scale: float) -> None:
    graph = random_graph(300, 900)
    graph = replace(graph, features=graph.features * scale + 5 * scale)
    model, tensors = started(graph)
    nodes = model.encode(tensors.features).nodes
    assert nodes.std(dim=0).mean().item() == pytest.approx(1, abs=1e-2)
    assert nodes.mean(dim=0).abs().max() < 1e-3


def test_every_term_of_a_velocity_is_heard() -> None:
    model, tensors = started(random_graph(300, 900))
    seen = {}
    velocity = model.cell.velocity
    velocity.register_forward_pre_hook(lambda _, args: seen.update(projected=args[0], relation=args[1]))
    list(model.trajectory(tensors, [0.0, 1e-3]))
    for term in (seen["projected"], velocity.relation(seen["relation"])):
        assert term.std(dim=0).mean().item() == pytest.approx(1, abs=0.05)
    assert all(isinstance(v.norm, torch.nn.LayerNorm) for v in model.modules() if isinstance(v, Velocity))


def test_a_column_that_never_varied_is_not_heard_when_it_does() -> None:
    graph = random_graph(300, 900)
    features = graph.features.copy()
    features[:, 2] = 7
    model, _ = started(replace(graph, features=features))
    other = torch.from_numpy(features[:5])
    changed = other.clone()
    changed[:, 2] += 3
    assert torch.allclose(model.encode(other).nodes, model.encode(changed).nodes)


def test_sparse_features_start_as_dense_ones_of_the_same_kind_do() -> None:
    graph = random_graph(300, 900)
    words = np.where(graph.features > 1.5, 1, 0).astype(np.float32)
    model, _ = started(replace(graph, features=sparse(words)))
    assert torch.isfinite(model.feature_scale).all()
    assert torch.allclose(model.feature_offset, torch.from_numpy(words.mean(axis=0)), atol=1e-6)


def test_an_isotropic_model_starts_as_the_cosine_of_what_is_placed() -> None:
    graph = random_graph(60, 0, features=6)
    torch.manual_seed(0)
    model = AdaR(ModelConfig(6, None, 6, 4, isotropic=True)).eval()
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
