"""The three graphs of the self-test: small, with a hub, and large."""

import numpy as np

from adar_runtime.benchmarking.graphs import graph_for, near_edges
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.graph import Graph

SMALL, HUB, LARGE = "small", "hub", "large"
DEGREE = 8


def selftest_graphs(manifest: Manifest, nodes: int) -> dict[str, Graph]:
    """Graphs for a bundle, by name. `nodes` is the size of the large one."""
    few, some = min(200, nodes), min(3_000, nodes)
    hub = np.stack([np.arange(some), np.zeros(some, np.int64)])
    return {
        SMALL: graph_for(manifest, few, near_edges(few, DEGREE)),
        HUB: graph_for(manifest, some, np.concatenate([near_edges(some, 4), hub], axis=1)),
        LARGE: graph_for(manifest, nodes, near_edges(nodes, DEGREE, seed=2)),
    }
