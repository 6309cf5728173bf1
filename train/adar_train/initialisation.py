"""Initialisation from the data: features get one scale, and all terms of a velocity get equal weight."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adar_runtime.graph import Graph, SparseRows
from adar_train.cell import COMMON, Velocity
from adar_train.tensors import GraphTensors

if TYPE_CHECKING:
    from adar_train.model import AdaR, Model

LONGEST_ROW = 16.0  # root mean square length of a feature row; with longer rows, Adam's steps are too coarse
MANY = 200  # number of rows from which the spread is measured for each column separately
Moments = tuple[NDArray[np.float64], NDArray[np.float64]]  # mean and variance of every column


def start(model: "AdaR", graphs: Sequence[Graph]) -> None:
    """Initialise a model for the graphs to train on, from their features and edges. Labels are not used."""
    with torch.no_grad():
        model.variant.initialise(model, graphs)


def initialise(model: "AdaR", graphs: Sequence[Graph]) -> None:
    """Initialise a standard model: scale features, centre the first states, balance the velocities."""
    _scale_features(model, graphs)
    _centre_input(model, graphs)
    _balance_velocities(model, GraphTensors.of(max(graphs, key=lambda graph: graph.nodes)))


def scale_labels(model: "Model", labels: Sequence[NDArray[np.float32]]) -> None:
    """Set the label scale and offset from the training labels [k, c]. A constant label gets a scale of 1."""
    values = np.concatenate(labels).astype(np.float64)
    if model.config.targets is None:  # any number of described targets: one scale for all
        values = values.reshape(-1, 1)
    mean, spread = values.mean(axis=0), values.std(axis=0)
    model.label_offset.copy_(torch.from_numpy(mean))
    model.label_scale.copy_(torch.from_numpy(np.where(spread > 1e-6 * np.abs(mean), spread, 1)))


def _scale_features(model: "AdaR", graphs: Sequence[Graph]) -> None:
    """Give every column zero mean, and rows a length of √f, at most `LONGEST_ROW`.

    Every column gets unit spread or, with the feature scaling "common", all columns get the same factor.
    """
    mean, variance = _moments_of_all(graphs)
    spread = np.sqrt(variance)
    if model.config.feature_scaling == COMMON:
        spread = np.where(spread > 1e-6 * np.maximum(1, np.abs(mean)), np.sqrt(variance.mean()), 0)
    elif isinstance(graphs[0].features, SparseRows):  # a rare word does not get a larger scale
        spread = np.maximum(spread, 0.3 * np.sqrt(variance.mean()))
    # A column that is constant here gets scale 0, so that it has no effect on graphs where it varies.
    varies = spread > 1e-6 * np.maximum(1, np.abs(mean))
    scale = np.where(varies, 1 / np.where(varies, spread, 1), 0)
    length = np.sqrt((variance * scale**2).sum())
    wanted = min(np.sqrt(graphs[0].width), LONGEST_ROW)
    scale *= wanted / max(length, 1e-6)
    model.feature_offset.copy_(torch.from_numpy(mean))
    model.feature_scale.copy_(torch.from_numpy(scale))
    nn.init.normal_(model.input.weight, std=1 / wanted)
    nn.init.zeros_(model.input.bias)


def _moments_of_all(graphs: Sequence[Graph]) -> Moments:
    """Compute mean and variance of every column over all graphs, one graph at a time.

    The result includes the variance between graphs: a column that distinguishes graphs varies too.
    """
    rows = graphs[0].nodes
    mean, variance = _moments(graphs[0].features)
    for graph in graphs[1:]:
        rows += graph.nodes
        share, (graph_mean, graph_variance) = graph.nodes / rows, _moments(graph.features)
        difference = graph_mean - mean
        variance = variance + share * (graph_variance - variance) + share * (1 - share) * difference**2
        mean = mean + share * difference
    return mean, variance


def _moments(features: NDArray[np.float32] | SparseRows) -> Moments:
    """Compute mean and variance of every column."""
    if isinstance(features, SparseRows):
        rows, width = features.shape
        mean = np.bincount(features.columns, features.values, width) / rows
        square = np.bincount(features.columns, features.values.astype(np.float64) ** 2, width) / rows
        return mean, np.maximum(square - mean**2, 0)
    return features.mean(axis=0, dtype=np.float64), features.var(axis=0, dtype=np.float64)


def _centre_input(model: "AdaR", graphs: Sequence[Graph]) -> None:
    """Give the columns of H at t = 0 zero mean and, on average, unit spread."""
    model.eval()
    all_tensors = map(GraphTensors.of, graphs)
    nodes = torch.cat([model.first_state(one).nodes for one in all_tensors])
    spread = nodes.std(dim=0, correction=0).mean().clamp_min(1e-6)
    model.input.weight.div_(spread)
    model.input.bias.copy_((model.input.bias - nodes.mean(dim=0)) / spread)


def _balance_velocities(model: "AdaR", tensors: GraphTensors) -> None:
    """Give representation and relation unit spread and zero mean in the first layer of each velocity."""
    velocities = [module for module in model.modules() if isinstance(module, Velocity)]
    seen: dict[Velocity, tuple[Tensor, Tensor]] = {}
    hooks = [
        v.register_forward_pre_hook(lambda module, args: seen.update({module: args[:2]})) for v in velocities
    ]
    for _ in model.trajectory(tensors, [0.0, 1e-3]):
        pass
    for hook in hooks:
        hook.remove()
    for velocity, (projected, relation) in seen.items():
        for layer, term in (
            (velocity.representation, projected),
            (velocity.relation, velocity.relation(relation)),
        ):
            spread = _spread(term)
            layer.weight.div_(spread[:, None])
            velocity.step.bias.sub_(term.mean(dim=0) / spread)


def _spread(term: Tensor) -> Tensor:
    """Compute the spread of every column [d]. With few rows, all columns get one common spread."""
    if len(term) >= MANY:
        return term.std(dim=0).clamp_min(1e-4)
    return term.var(dim=0, correction=0).mean().sqrt().clamp_min(1e-2).expand(term.shape[1])
