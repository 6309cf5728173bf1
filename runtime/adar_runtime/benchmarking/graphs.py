"""Graphs for benchmarks: any size, random features that fit a bundle, no labels."""

import numpy as np

from adar_runtime.bundle.manifest import Manifest
from adar_runtime.graph import EDGE, Graph, Integers

NEAR = 100  # largest distance between the ids of neighbours
TARGETS = 2  # for zero-shot bundles
PAIRS = 1_000  # for link prediction


def near_edges(nodes: int, degree: int, seed: int = 1) -> Integers:
    """Random edges of this mean degree between nodes with close ids, as in a mesh."""
    random, count = np.random.default_rng(seed), nodes * degree
    target = random.integers(0, nodes, count)
    return np.stack([(target + random.integers(-NEAR, NEAR + 1, count)) % nodes, target])


def graph_for(manifest: Manifest, nodes: int, edges: Integers) -> Graph:
    """A graph with these edges and with random features that fit the bundle."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(nodes, manifest.features)).astype(np.float32)
    return Graph(
        features=rows,
        edge_index=edges,
        target_features=None if manifest.targets else np.resize(rows, (TARGETS, manifest.features)),
        pairs=random.integers(0, nodes, (2, PAIRS)) if manifest.level == EDGE else None,
        level=manifest.level,
    )
