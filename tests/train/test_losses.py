"""The three terms of Eq. loss."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from adar_runtime.loop.schedule import times
from adar_train import GraphTensors, ModelConfig
from adar_train.cell import State
from adar_train.losses import class_gradient, full_loss, step_loss, task_gradient, task_loss
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


@pytest.mark.parametrize("variant", ["standard", "zero-shot"])
def test_the_closed_form_of_the_gradient_is_that_of_autograd(variant: str) -> None:
    graph = random_graph(40, 90)
    tensors = GraphTensors.of(graph)
    model = awake(ModelConfig(graph.width, None, 8, 4, variant=variant)).double()
    tensors = replace(
        tensors,
        features=tensors.features.double(),
        target_features=tensors.target_features.double(),
        share=tensors.share.double(),
    )
    chosen = torch.tensor([1, 5, 6, 30])
    state = model.encode(tensors.features, tensors.target_features)
    closed = class_gradient(model, state.nodes[chosen], state.targets, tensors, chosen)
    assert closed.abs().max() > 1e-3
    assert torch.allclose(
        closed, task_gradient(model, state, tensors, chosen)[chosen], rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("learned", [True, False])
def test_the_losses_in_closed_form_have_the_gradients_of_the_general_form(learned: bool) -> None:
    graph = random_graph(40, 90)
    tensors = GraphTensors.of(graph)
    model = awake(ModelConfig(graph.width, 3 if learned else None, 8, 4))
    chosen = torch.tensor([1, 5, 6, 30])
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def general(before: State, after: State) -> torch.Tensor:
        gradient = task_gradient(model, before, tensors, chosen)
        return (gradient - (before.nodes - after.nodes))[chosen].abs().mean()

    states = list(model.trajectory(tensors, times(3)))
    slow = torch.stack([general(*two) for two in pairwise(states)]).mean() + general(states[0], states[-1])
    fast = step_loss(model, states, tensors, chosen) + full_loss(model, states, tensors, chosen)
    assert torch.allclose(fast, slow, rtol=1e-6)
    wanted = torch.autograd.grad(slow, weights, retain_graph=True, allow_unused=True)
    for found, expected in zip(torch.autograd.grad(fast, weights, allow_unused=True), wanted, strict=True):
        assert (found is None) == (expected is None)
        assert found is None or torch.allclose(found, expected, rtol=1e-4, atol=1e-7)
