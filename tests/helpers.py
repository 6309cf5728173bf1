"""Graphs and models for tests."""

from pathlib import Path

import numpy as np
import torch

from adar_runtime import Graph
from adar_train import AdaR, ModelConfig

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


def random_graph(
    nodes: int, edges: int, *, features: int = 6, classes: int = 3, seed: int = 0, level: str = "node"
) -> Graph:
    """A directed graph with repeated edges, self-loops and often isolated nodes."""
    random = np.random.default_rng(seed)
    outputs = {"node": nodes, "edge": 15, "graph": 1}[level]
    return Graph(
        features=random.normal(size=(nodes, features)),
        edge_index=random.integers(0, nodes, (2, edges)),
        labels=random.integers(0, classes, outputs),
        target_features=random.normal(size=(classes, features)),
        pairs=random.integers(0, nodes, (2, outputs)) if level == "edge" else None,
        level=level,
    )


def awake(config: ModelConfig, seed: int = 0) -> AdaR:
    """A model with random velocities; before training, they are zero."""
    torch.manual_seed(seed)
    model = AdaR(config)
    for name, weight in model.named_parameters():
        if name.endswith("out.weight"):
            torch.nn.init.normal_(weight, std=0.3)
    return model.eval()
