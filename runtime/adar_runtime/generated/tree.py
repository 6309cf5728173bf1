"""Trees: a root is asked which colour most of its leaves have, k hops below and three times as many each hop.

A chain asks for one thing from afar; a tree asks for everything that lies at that distance at once.
"""

import numpy as np

from adar_runtime.generated.parts import both_ways, require_range, split
from adar_runtime.graph import Graph

CHILDREN = 3  # odd, so that there is always a majority
FEWEST = 24  # trees: a split of fewer may have parts of one colour
BLANK, ASKED = 2, 3  # columns after the two colours


def tree(nodes: int = 6_000, hops: int = 3, seed: int = 0) -> Graph:
    """About `nodes` nodes in trees of depth `hops`.

    Features [n, 4]: a leaf shows its colour in one of the first two columns; the others mark the nodes
    between, and the root. Only roots have labels.
    """
    require_range("hops", hops, 1, 9)
    size = (CHILDREN ** (hops + 1) - 1) // (CHILDREN - 1)
    require_range("nodes", nodes, FEWEST * size, 10**9)
    count, leaves = nodes // size, CHILDREN**hops
    random = np.random.default_rng(seed)
    first = np.arange(count)[:, None] * size  # the roots
    child = np.arange(1, size)
    colours = random.integers(0, 2, (count, leaves))
    features = np.zeros((count, size, 4), np.float32)
    features[:, 1 : size - leaves, BLANK] = 1
    features[:, 0, ASKED] = 1
    features[:, size - leaves :] = np.eye(4)[colours]
    labels = np.full(count * size, -1)
    labels[first[:, 0]] = colours.sum(axis=1) > leaves / 2
    return Graph(
        features=features.reshape(count * size, 4),
        edge_index=both_ways((first + child).ravel(), (first + (child - 1) // CHILDREN).ravel()),
        labels=labels,
        **split(random, count * size, first[:, 0]),
        class_names=("mostly black", "mostly white"),
    )
