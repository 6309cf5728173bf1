"""The three terms of Eq. loss."""

import pytest
import torch
from torch.nn import functional

from adar_runtime.loop.schedule import times
from adar_train import GraphTensors, ModelConfig
from adar_train.losses import full_loss, step_loss, task_gradient, task_loss
from tests.helpers import awake, random_graph


def test_the_three_terms_equal_eq_loss() -> None:
    graph = random_graph(12, 30)
    tensors = GraphTensors.of(graph)
    model = awake(ModelConfig(graph.width, None, 8, 4))
    states = list(model.trajectory(tensors, times(4)))
    chosen = torch.tensor([0, 3, 7])

    def gradient(s: int) -> torch.Tensor:
        """(softmax − one-hot) C, the derivative of cross-entropy with respect to each node."""
        shares = (states[s].nodes @ states[s].targets.T).softmax(1)[chosen]
        return (shares - functional.one_hot(tensors.labels[chosen], 3)) @ states[s].targets

    h = [state.nodes[chosen] for state in states]
    step = sum((gradient(s - 1) + (h[s] - h[s - 1])).abs().mean() for s in range(1, 5)) / 4
    full = (gradient(0) - (h[0] - h[4])).abs().mean()
    task = -(h[4] @ states[4].targets.T).log_softmax(1)[range(3), tensors.labels[chosen]].mean()
    assert torch.allclose(step_loss(model, states, tensors, chosen), step, atol=1e-6)
    assert torch.allclose(full_loss(model, states, tensors, chosen), full, atol=1e-6)
    assert torch.allclose(task_loss(model, states[-1], tensors, chosen), task, atol=1e-6)


@pytest.mark.parametrize("level", ["node", "edge", "graph"])
def test_the_task_gradient_is_a_constant_of_the_chosen_nodes(level: str) -> None:
    graph = random_graph(12, 30, level=level)
    tensors = GraphTensors.of(graph)
    model = awake(ModelConfig(graph.width, None, 8, 4))
    *_, state = model.trajectory(tensors, times(2))
    gradient = task_gradient(model, state, tensors, torch.tensor([0]))
    assert not gradient.requires_grad
    touched = gradient.abs().sum(dim=1).nonzero()[:, 0]
    assert set(touched.tolist()) == set(tensors.touched(torch.tensor([0])).tolist())
