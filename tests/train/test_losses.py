import torch
from adar_runtime.schedule import times
from adar_train import AdaR, GraphTensors, ModelConfig
from adar_train.losses import losses, task_gradient
from torch.nn import functional

from tests.helpers import awake, random_graph


def test_the_three_terms_are_eq_loss() -> None:
    graph = random_graph(12, 30)
    tensors = GraphTensors.of(graph)
    states = list(awake(ModelConfig(graph.width, None, 8, 4)).trajectory(tensors, times(4)))
    chosen = torch.tensor([0, 3, 7])
    got = losses(states, tensors.labels, chosen)

    def gradient(s: int) -> torch.Tensor:
        """(softmax − one-hot) C, the derivative of cross-entropy by each node's row."""
        shares = AdaR.scores(states[s]).softmax(1)[chosen]
        return (shares - functional.one_hot(tensors.labels[chosen], 3)) @ states[s].targets

    h = [state.nodes[chosen] for state in states]
    step = sum((gradient(s - 1) + (h[s] - h[s - 1])).abs().mean() for s in range(1, 5)) / 4
    full = (gradient(0) - (h[0] - h[4])).abs().mean()
    task = -AdaR.scores(states[4]).log_softmax(1)[chosen, tensors.labels[chosen]].mean()
    for ours, theirs in zip(got, (step, full, task), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    assert torch.allclose(got.total, step + full + task, atol=1e-6)


def test_the_task_gradient_is_a_target_and_carries_none() -> None:
    graph = random_graph(12, 30)
    tensors = GraphTensors.of(graph)
    *_, state = awake(ModelConfig(graph.width, None, 8, 4)).trajectory(tensors, times(2))
    assert not task_gradient(state, tensors.labels[:3], torch.arange(3)).requires_grad
