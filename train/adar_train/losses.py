"""Eq. loss: the task's loss, and the two terms that make each step descend it."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from adar_train.model import AdaR, State


class Losses(NamedTuple):
    """The three terms of Eq. loss."""

    step: Tensor
    full: Tensor
    task: Tensor

    @property
    def total(self) -> Tensor:
        return self.step + self.full + self.task


def losses(states: Sequence[State], labels: Tensor, chosen: Tensor) -> Losses:
    """The terms for the trajectory `states` (t_0 … t_S), over the nodes with index `chosen`."""
    nodes = [state.nodes[chosen] for state in states]  # H^(t_s) of the labelled nodes
    gradients = [task_gradient(state, labels[chosen], chosen) for state in states[:-1]]
    moves = [after - before for before, after in pairwise(nodes)]  # ΔH^(t_s)
    # ‖·‖₁ is taken as the mean over entries, so that no term depends on how many nodes there are.
    step = torch.stack([(g + move).abs().mean() for g, move in zip(gradients, moves, strict=True)]).mean()
    full = (gradients[0] - (nodes[0] - nodes[-1])).abs().mean()
    task = functional.cross_entropy(AdaR.scores(states[-1])[chosen], labels[chosen])
    return Losses(step, full, task)


def task_gradient(state: State, labels: Tensor, chosen: Tensor) -> Tensor:
    """∇H^(t_s) of each labelled node's own task loss: what a step should descend, not learn to change."""
    nodes = state.nodes.detach()[chosen].requires_grad_()
    with torch.enable_grad():
        loss = functional.cross_entropy(nodes @ state.targets.detach().T, labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, nodes)
    return gradient
