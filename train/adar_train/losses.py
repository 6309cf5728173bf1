"""Eq. loss: the task's loss, and the two terms that make each step descend it."""

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
    terms = [_distance(model, before, after, graph, chosen) for before, after in pairwise(states)]
    return torch.stack(terms).mean()


def full_loss(model: Model, states: Sequence[State], graph: GraphTensors, chosen: Tensor) -> Tensor:
    """L_full: the move of the whole trajectory against the task's gradient at its start."""
    return _distance(model, states[0], states[-1], graph, chosen)


def task_gradient(model: Model, state: State, graph: GraphTensors, chosen: Tensor) -> Tensor:
    """∇H^(t_s) [n, d], each output's own loss counting whole: what a step should descend, not change."""
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
    gradient = task_gradient(model, before, graph, chosen)
    return (gradient - (before.nodes - after.nodes))[graph.touched(chosen)].abs().mean()


def class_gradient(
    model: Model, nodes: Tensor, targets: Tensor, graph: GraphTensors, chosen: Tensor
) -> Tensor:
    """The chosen rows [k, d] of `task_gradient` for node classes, in closed form: (softmax − one-hot) C."""
    assert graph.labels is not None
    error = model.products(nodes, targets).softmax(dim=1)  # [k, c]
    error[torch.arange(len(chosen), device=chosen.device), graph.labels[chosen]] -= 1
    gradient = error @ targets
    return gradient / nodes.shape[1] ** 0.5 if model.variant.scaled_scores else gradient
