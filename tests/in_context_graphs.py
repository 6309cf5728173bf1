"""A small graph for the tests of the pretrained model: block structure, descriptions and a few labels."""

from dataclasses import replace

import numpy as np
import torch

from adar_runtime import Bundle
from adar_runtime.graph import Graph
from adar_train.equivariant import EquivariantAdaR


def block_graph(nodes: int = 240, classes: int = 3, width: int = 24, seed: int = 0) -> Graph:
    random = np.random.default_rng(seed)
    labels = np.arange(nodes) % classes
    centres = random.standard_normal((classes, width))
    source = random.integers(0, nodes, 4 * nodes)
    jump = classes * random.integers(1, nodes // classes, len(source))
    target = np.where(random.random(len(source)) < 0.8, source + jump, source + 1) % nodes
    mask = np.zeros(nodes, np.bool_)
    mask[: 4 * classes] = True
    return Graph(
        (centres[labels] + 2 * random.standard_normal((nodes, width))).astype(np.float32),
        np.stack([np.concatenate([source, target]), np.concatenate([target, source])]),
        labels,
        train_mask=mask,
        target_features=(centres + 0.5 * random.standard_normal(centres.shape)).astype(np.float32),
    )


def unrelated_graph() -> Graph:
    """The graph with classes that have nothing to do with features and edges; 60 of them are known."""
    labels = np.random.default_rng(0).integers(0, 3, 240)
    return replace(block_graph(), labels=labels, train_mask=np.arange(240) < 60, target_features=None)


def half_labelled() -> Graph:
    """The graph with enough known labels to fine-tune a model."""
    return replace(block_graph(), train_mask=np.arange(240) < 120)


def labelled_graph(bundle: Bundle, strength: float) -> Graph:
    """A graph without descriptions whose hidden labels choose this strength."""
    for seed in range(200):
        graph = replace(block_graph(seed=seed), target_features=None)
        check = bundle.prepare(graph).check
        if check is not None and check.strength == strength:
            return graph
    raise AssertionError(f"no graph has the strength {strength}")


def with_random_gates(seed: int = 0, columns: int = 16) -> EquivariantAdaR:
    """A model whose gates do something, and something else for each task."""
    torch.manual_seed(seed)
    model = EquivariantAdaR(columns)
    for gates in (*model.cell.node_gates, *model.cell.target_gates):
        torch.nn.init.normal_(gates.out.weight, std=0.3)
    return model
