"""Eq. loss: the task loss, and two terms that make the steps follow its negative gradient."""

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
    """Compute L_task of the outputs `chosen`: cross-entropy of classes, or squared error of numbers.

    Regression targets are standardised, so the loss does not depend on their mean or unit.
    """
    assert graph.labels is not None
    z, labels = graph.readout(state.nodes, chosen), graph.labels[chosen]
    products = model.products(z, state.targets)
    if labels.is_floating_point():
        return functional.mse_loss(products, model.standardised(labels), reduction=reduction)
    return functional.cross_entropy(products, labels, reduction=reduction, label_smoothing=smoothing)


def step_loss(model: Model, states: Sequence[State], graph: GraphTensors, chosen: Tensor) -> Tensor:
    """Compute L_step: the distance of each step's movement from the negative task gradient at its start."""
    touched = graph.touched(chosen)
    terms = [
        _distance(task_gradient(model, before, graph, chosen), before.nodes - after.nodes, touched)
        for before, after in pairwise(states)
    ]
    return torch.stack(terms).mean()


def full_loss(model: Model, states: Sequence[State], graph: GraphTensors, chosen: Tensor) -> Tensor:
    """Compute L_full: the distance of the whole movement from the negative task gradient at the start."""
    moved = states[0].nodes - states[-1].nodes
    return _distance(task_gradient(model, states[0], graph, chosen), moved, graph.touched(chosen))


def task_gradient(model: Model, state: State, graph: GraphTensors, chosen: Tensor) -> Tensor:
    """Compute ∇H^(t_s) [n, d] of the summed task loss. It is a constant: no gradient flows through it."""
    nodes = state.nodes.detach().requires_grad_()
    with torch.enable_grad():
        at = state._replace(nodes=nodes, targets=state.targets.detach())
        (gradient,) = torch.autograd.grad(task_loss(model, at, graph, chosen, reduction="sum"), nodes)
    return gradient


def _distance(gradient: Tensor, moved: Tensor, touched: Tensor) -> Tensor:
    # ‖·‖₁ is the mean over entries, so that no term depends on the number of nodes.
    return (gradient - moved)[touched].abs().mean()
