"""Chains: the class stands at one end of a path and is asked for at the other, exactly k hops away.

No node nearer to the asked one knows anything about it, so a model that sees k - 1 hops can only guess.
"""

import numpy as np

from adar_runtime.generated.parts import both_ways, require_range, split
from adar_runtime.graph import Graph


def chain(nodes: int = 4_000, hops: int = 16, classes: int = 4, seed: int = 0) -> Graph:
    """About `nodes` nodes on paths of `hops` edges.

    Features [n, classes + 2]: the class as one-hot at the start; one column marks the nodes between, one the
    end. Only ends have labels.
    """
    require_range("hops", hops, 1, 10_000)
    require_range("classes", classes, 2, 1_000)
    length = hops + 1
    count = max(2 * classes, nodes // length)
    require_range("nodes", nodes, 2 * classes * length, 10**9)
    random = np.random.default_rng(seed)
    node = np.arange(count * length).reshape(count, length)
    shown = random.permutation(np.arange(count) % classes)
    features = np.zeros((count * length, classes + 2), np.float32)
    features[node[:, 0], shown] = 1
    features[node[:, 1:-1], classes] = 1
    features[node[:, -1], classes + 1] = 1
    labels = np.full(count * length, -1)
    labels[node[:, -1]] = shown
    return Graph(
        features=features,
        edge_index=both_ways(node[:, :-1].ravel(), node[:, 1:].ravel()),
        labels=labels,
        **split(random, count * length, node[:, -1]),
        class_names=tuple(f"start {number}" for number in range(classes)),
    )
