"""Blocks: communities with features that are mostly noise, so that a node has to ask around.

A stochastic block model. Neighbours are of the same class with the probability `homophily`: above 1 / classes
averaging over neighbours helps, below it misleads, and only who is linked to whom tells.
"""

import numpy as np

from adar_runtime.generated.parts import both_ways, require_range, split
from adar_runtime.graph import Graph

NOISE = 2.0  # standard deviation, beside a signal of 1


def blocks(
    nodes: int = 4_000, classes: int = 4, degree: int = 8, homophily: float = 0.8, seed: int = 0
) -> Graph:
    """Features [n, classes]: the class as one-hot, under noise of twice its size. Every node has a label."""
    require_range("classes", classes, 2, 1_000)
    require_range("nodes", nodes, 4 * classes, 10**9)
    require_range("degree", degree, 1, nodes - 1)
    require_range("homophily", homophily, 0, 1)
    random = np.random.default_rng(seed)
    labels = np.arange(nodes) % classes
    source = random.integers(0, nodes, nodes * degree // 2)
    away = np.where(random.random(len(source)) < homophily, 0, random.integers(1, classes, len(source)))
    other = (labels[source] + away) % classes
    target = other + classes * random.integers(0, nodes // classes, len(source))
    low, high = np.sort([source, target], axis=0)
    source, target = np.divmod(np.unique((low * nodes + high)[low != high]), nodes)
    order = random.permutation(nodes)  # so that a node's number says nothing
    features = np.eye(classes)[labels] + NOISE * random.normal(size=(nodes, classes))
    place = np.argsort(order)
    return Graph(
        features=features[order].astype(np.float32),
        edge_index=both_ways(place[source], place[target]),
        labels=labels[order],
        **split(random, nodes),
        class_names=tuple(f"block {number}" for number in range(classes)),
    )
