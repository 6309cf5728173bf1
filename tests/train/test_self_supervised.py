"""DGI and GRACE learn without labels, and score unseen classes by their descriptions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from adar_runtime.errors import UsageError
from adar_train import GraphTensors, ModelConfig
from adar_train.baselines import BASELINES, self_supervised
from adar_train.baselines.self_supervised import SELF_SUPERVISED, contrast, pretrain, view, zero_shot_scores
from tests.helpers import random_graph
from tests.runtime.test_graph import sparse
from tests.train.test_baselines import communities


@pytest.mark.parametrize("method", SELF_SUPERVISED)
def test_the_loss_falls_and_descriptions_find_their_classes(method: str) -> None:
    graph = communities()
    torch.manual_seed(0)
    model = BASELINES["gcn"](ModelConfig(graph.width, None, hidden=16), layers=1)
    losses: list[float] = []
    pretrain(method, model, [replace(graph, labels=None)], 60, 1e-2, lambda _, loss: losses.append(loss))
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    scores = zero_shot_scores(model, graph)
    assert scores.shape == (60, 3)
    assert (scores.argmax(axis=1) == graph.labels).mean() > 0.6  # chance is a third
    assert not model.training


def test_contrast_is_the_share_of_the_own_pair() -> None:
    one, two = torch.eye(2), torch.eye(2)
    sharp = np.exp(1 / self_supervised.TEMPERATURE)  # own pair; the other node is at 0, in both views
    assert contrast(one, two).item() == pytest.approx(-np.log(sharp / (sharp + 2)))


def test_a_view_leaves_out_edges_and_columns() -> None:
    torch.manual_seed(0)
    graph = GraphTensors.of(random_graph(40, 400, features=20))
    seen = view(graph, 0.5, 0.5)
    assert 0.3 < seen.edge_index.shape[1] / graph.edge_index.shape[1] < 0.7
    assert 0.2 < (seen.features == 0).all(dim=0).float().mean() < 0.8
    degree = torch.bincount(seen.edge_index[1], minlength=40)
    assert torch.allclose(seen.share[:, 0], 1 / (degree + 1.0))
    assert torch.equal((seen.neighbours @ torch.ones(40, 1))[:, 0], degree.float())
    assert torch.equal(view(graph, 0, 0).features, graph.features)


def test_what_cannot_work_is_refused() -> None:
    graph = random_graph(9, 20)
    model = BASELINES["gcn"](ModelConfig(graph.width, None, hidden=8))
    with pytest.raises(UsageError, match="dgi, grace"):
        pretrain("simclr", model, [graph], 1)
    with pytest.raises(UsageError, match="class descriptions"):
        zero_shot_scores(model, replace(graph, target_features=None))
    few = sparse(np.eye(200, 6, dtype=np.float32))
    with pytest.raises(UsageError, match="dense features"):
        pretrain("grace", model, [replace(random_graph(200, 20), features=few)], 1)
