"""A start that knows the data: features on one scale, every term of a velocity heard from the first step."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adar_runtime.graph import Graph, SparseRows
from adar_train.cell import Velocity
from adar_train.model import AdaR, Model
from adar_train.tensors import GraphTensors

LONGEST_ROW = 16.0  # root mean square length of a row of features; longer ones make Adam's steps too coarse
Moments = tuple[NDArray[np.float64], NDArray[np.float64]]
MANY = 200  # rows from which the spread of each column is worth measuring by itself


def start(model: AdaR, graphs: Sequence[Graph]) -> None:
    """Set scales and offsets by one look at the graphs to learn from: at features and edges, at no label."""
    with torch.no_grad():
        if model.config.isotropic:
            _start_isotropic(model, graphs)
            return
        _scale_features(model, graphs)
        _centre_input(model, graphs)
        _balance_velocities(model, GraphTensors.of(max(graphs, key=lambda graph: graph.nodes)))


def scale_labels(model: Model, labels: Sequence[NDArray[np.float32]]) -> None:
    """Let scores be in the unit of these labels [k, c], and around their mean; a constant one has none."""
    values = np.concatenate(labels).astype(np.float64)
    if model.config.targets is None:  # any number of described attributes, and one scale for them all
        values = values.reshape(-1, 1)
    mean, spread = values.mean(axis=0), values.std(axis=0)
    model.label_offset.copy_(torch.from_numpy(mean))
    model.label_scale.copy_(torch.from_numpy(np.where(spread > 1e-6 * np.abs(mean), spread, 1)))


def _start_isotropic(model: AdaR, graphs: Sequence[Graph]) -> None:
    """The features' own geometry, smoothed over neighbours; only rates and scales are left to learn.

    Directions that are learned on some graphs do not transfer to others (benchmarks/accuracy.md); how
    much to smooth, how fast targets follow their nodes and how sharp attention is do.
    """
    model.input.weight.copy_(torch.from_numpy(_principal_directions(graphs, model.config.hidden)))
    nn.init.zeros_(model.input.bias)
    rates, target_rates, parts, length = model.rates_and_scales()
    assert rates is not None
    assert target_rates is not None
    rates.fill_(2.0)
    target_rates.fill_(0.5)
    for weight in model.parameters():
        weight.requires_grad_(any(weight is one for one in (rates, target_rates, parts, length)))


def _principal_directions(graphs: Sequence[Graph], count: int) -> NDArray[np.float32]:
    """The leading directions [count, f] in which the nodes of a graph differ, all graphs counting alike."""
    total = np.zeros((graphs[0].width,) * 2)
    for graph in graphs:
        rows = graph.rows(0, graph.nodes)
        total += np.cov(rows, rowvar=False)
    _, directions = np.linalg.eigh(total)
    leading = np.zeros((count, graphs[0].width), np.float32)  # more columns than features stay at zero
    leading[: directions.shape[1]] = directions.T[::-1][:count]
    return leading


def _scale_features(model: AdaR, graphs: Sequence[Graph]) -> None:
    """Zero mean and unit spread for every column, and rows of about √f, at most `LONGEST_ROW`."""
    mean, variance = _moments_of_all(graphs)
    spread = np.sqrt(variance)
    if isinstance(graphs[0].features, SparseRows):  # a rare word is no louder for being rare
        spread = np.maximum(spread, 0.3 * np.sqrt(variance.mean()))
    # A column that never varies says nothing here, and must not shout where it does vary.
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
    """Mean and variance of every column over the rows of all graphs, taken one graph after the other.

    The variance within graphs and that of their means add up: a column that tells graphs apart varies too.
    """
    rows = graphs[0].nodes
    mean, variance = _moments(graphs[0].features)
    for graph in graphs[1:]:
        rows += graph.nodes
        share, (its_mean, its_variance) = graph.nodes / rows, _moments(graph.features)
        apart = its_mean - mean
        variance = variance + share * (its_variance - variance) + share * (1 - share) * apart**2
        mean = mean + share * apart
    return mean, variance


def _moments(features: NDArray[np.float32] | SparseRows) -> Moments:
    """Mean and variance of every column."""
    if isinstance(features, SparseRows):
        rows, width = features.shape
        mean = np.bincount(features.columns, features.values, width) / rows
        square = np.bincount(features.columns, features.values.astype(np.float64) ** 2, width) / rows
        return mean, np.maximum(square - mean**2, 0)
    return features.mean(axis=0, dtype=np.float64), features.var(axis=0, dtype=np.float64)


def _centre_input(model: AdaR, graphs: Sequence[Graph]) -> None:
    """Nodes with zero mean and unit spread in every column of H at t = 0."""
    model.eval()
    laid_out = map(GraphTensors.of, graphs)
    nodes = torch.cat([model.encode(one.features, one.target_features).nodes for one in laid_out])
    spread = nodes.std(dim=0, correction=0).mean().clamp_min(1e-6)
    model.input.weight.div_(spread)
    model.input.bias.copy_((model.input.bias - nodes.mean(dim=0)) / spread)


def _balance_velocities(model: AdaR, tensors: GraphTensors) -> None:
    """Representation and relation enter each velocity with unit spread and no common offset."""
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
    """Of every column, [d]; of all of them together where there are few rows."""
    if len(term) >= MANY:
        return term.std(dim=0).clamp_min(1e-4)
    return term.var(dim=0, correction=0).mean().sqrt().clamp_min(1e-2).expand(term.shape[1])
