"""Graphs to measure with: any size, features that a bundle takes, and no labels."""

import numpy as np

from adar_runtime.bundle.manifest import Manifest
from adar_runtime.graph import EDGE, Graph, Integers

NEAR = 100  # how far apart the numbers of neighbours are at most
TARGETS = 2  # where a bundle takes descriptions of them
PAIRS = 1_000  # where it judges links


def near_edges(nodes: int, degree: int, seed: int = 1) -> Integers:
    """As many neighbours as the degree on average, with numbers close to each other as on a mesh."""
    random, count = np.random.default_rng(seed), nodes * degree
    target = random.integers(0, nodes, count)
    return np.stack([(target + random.integers(-NEAR, NEAR + 1, count)) % nodes, target])


def graph_for(manifest: Manifest, nodes: int, edges: Integers) -> Graph:
    """A graph with these edges that the bundle takes."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(nodes, manifest.features)).astype(np.float32)
    return Graph(
        features=rows,
        edge_index=edges,
        target_features=None if manifest.targets else np.resize(rows, (TARGETS, manifest.features)),
        pairs=random.integers(0, nodes, (2, PAIRS)) if manifest.level == EDGE else None,
        level=manifest.level,
    )
