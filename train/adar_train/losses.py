"""Eq. loss: the task's loss, and the two terms that make each step descend it."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from adar_train.cell import State
from adar_train.model import Model
from adar_train.tensors import GraphTensors


def task_loss(
    model: Model,
    state: State,
    graph: GraphTensors,
    chosen: Tensor,
    *,
    reduction: str = "mean",
    smoothing: float = 0.0,
) -> Tensor:
    """L_task of the outputs with index `chosen`: cross-entropy with classes, squared distance to numbers.

    Numbers are standardised, so that neither their mean nor their unit matters.
    """
    assert graph.labels is not None
    z, labels = graph.readout(state.nodes, chosen), graph.labels[chosen]
    products = model.products(z, state.targets)
    if labels.is_floating_point():
        return functional.mse_loss(products, model.standardised(labels), reduction=reduction)
    return functional.cross_entropy(products, labels, reduction=reduction, label_smoothing=smoothing)


def step_loss(model: Model, states: Sequence[State], graph: GraphTensors, chosen: Tensor) -> Tensor:
    """L_step: each step's move against the task's gradient where it started."""
    touched = graph.touched(chosen)
    terms = [
        _distance(task_gradient(model, before, graph, chosen), before.nodes - after.nodes, touched)
        for before, after in pairwise(states)
    ]
    return torch.stack(terms).mean()


def full_loss(model: Model, states: Sequence[State], graph: GraphTensors, chosen: Tensor) -> Tensor:
    """L_full: the move of the whole trajectory against the task's gradient at its start."""
    moved = states[0].nodes - states[-1].nodes
    return _distance(task_gradient(model, states[0], graph, chosen), moved, graph.touched(chosen))


def task_gradient(model: Model, state: State, graph: GraphTensors, chosen: Tensor) -> Tensor:
    """∇H^(t_s) [n, d], each output's own loss counting whole: what a step should descend, not change."""
    nodes = state.nodes.detach().requires_grad_()
    with torch.enable_grad():
        at = state._replace(nodes=nodes, targets=state.targets.detach())
        (gradient,) = torch.autograd.grad(task_loss(model, at, graph, chosen, reduction="sum"), nodes)
    return gradient


def _distance(gradient: Tensor, moved: Tensor, touched: Tensor) -> Tensor:
    # ‖·‖₁ is taken as the mean over entries, so that no term depends on how many nodes there are.
    return (gradient - moved)[touched].abs().mean()
