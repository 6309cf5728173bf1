"""Eq. loss: the task loss, and two terms that make the steps follow its negative gradient."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from adar_runtime.graph import NODE
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

    Regression targets are standardised, so the loss does not depend on their mean or unit. Classes have the
    weights of the graph, if it has some; a mean is over the number of outputs, not over their weights.
    """
    assert graph.labels is not None
    z, labels = graph.readout(state.nodes, chosen), graph.labels[chosen]
    products = model.products(z, graph.targets_of(state.targets, chosen))
    if labels.is_floating_point():
        return functional.mse_loss(products, model.standardised(labels), reduction=reduction)
    if graph.class_weights is None:
        return functional.cross_entropy(products, labels, reduction=reduction, label_smoothing=smoothing)
    losses = functional.cross_entropy(products, labels, reduction="none", label_smoothing=smoothing)
    losses = losses * graph.class_weights[labels]
    return losses.sum() if reduction == "sum" else losses.mean()


def step_loss(model: Model, states: Sequence[State], graph: GraphTensors, chosen: Tensor) -> Tensor:
    """Compute L_step: the distance of each step's movement from the negative task gradient at its start."""
    terms = [_distance(model, before, after, graph, chosen) for before, after in pairwise(states)]
    return torch.stack(terms).mean()


def full_loss(model: Model, states: Sequence[State], graph: GraphTensors, chosen: Tensor) -> Tensor:
    """Compute L_full: the distance of the whole movement from the negative task gradient at the start."""
    return _distance(model, states[0], states[-1], graph, chosen)


def task_gradient(model: Model, state: State, graph: GraphTensors, chosen: Tensor) -> Tensor:
    """Compute ∇H^(t_s) [n, d] of the summed task loss. It is a constant: no gradient flows through it."""
    nodes = state.nodes.detach().requires_grad_()
    with torch.enable_grad():
        at = state._replace(nodes=nodes, targets=state.targets.detach())
        (gradient,) = torch.autograd.grad(task_loss(model, at, graph, chosen, reduction="sum"), nodes)
    return gradient


def _distance(model: Model, before: State, after: State, graph: GraphTensors, chosen: Tensor) -> Tensor:
    """‖∇H − (H_before − H_after)‖₁ over the nodes that the chosen outputs depend on."""
    # ‖·‖₁ is taken as the mean over entries, so that no term depends on how many nodes there are.
    if graph.level == NODE and not model.config.regression:
        start = before.nodes[chosen]
        gradient = class_gradient(model, start.detach(), before.targets.detach(), graph, chosen)
        return functional.l1_loss(start - after.nodes[chosen], gradient)
    distance = (task_gradient(model, before, graph, chosen) - (before.nodes - after.nodes)).abs()
    shares = graph.shares()
    if shares is not None:  # a batch: the mean over its graphs
        return (distance * shares).sum(dim=1)[chosen].mean()
    return distance[graph.touched(chosen)].mean()


def class_gradient(
    model: Model, nodes: Tensor, targets: Tensor, graph: GraphTensors, chosen: Tensor
) -> Tensor:
    """The chosen rows [k, d] of `task_gradient` for node classes, in closed form: (softmax − one-hot) C."""
    assert graph.labels is not None
    error = model.products(nodes, targets).softmax(dim=1)  # [k, c]
    error[torch.arange(len(chosen), device=chosen.device), graph.labels[chosen]] -= 1
    if graph.class_weights is not None:
        error = error * graph.class_weights[graph.labels[chosen]][:, None]
    gradient = error @ targets
    return gradient / nodes.shape[1] ** 0.5 if model.variant.scaled_scores else gradient
