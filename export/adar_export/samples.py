"""Graphs to compare on: one unlike any that a model was trained on, and a part of the one it was."""

import numpy as np

from adar_runtime.graph import EDGE, GRAPH, MASKS, Graph, Integers
from adar_runtime.neighbours import Neighbours
from adar_train.model import ModelConfig

PART = 2_000  # nodes: 300 steps of both sides on so many take seconds


def random_graph(config: ModelConfig, seed: int = 0) -> Graph:
    """Small, directed, with isolated nodes, hubs and loops."""
    random = np.random.default_rng(seed)
    nodes, edges = 60, 240
    target = np.minimum(random.geometric(0.1, edges) - 1, nodes - 10)  # many edges end at the first nodes
    return _graph(config, random, nodes, np.stack([random.integers(0, nodes - 5, edges), target]))


def star_graph(config: ModelConfig, seed: int = 1) -> Graph:
    """One hub and nodes that know only it: the longest list of neighbours beside the shortest."""
    leaves = np.arange(1, 700)
    hub = np.zeros_like(leaves)
    edges = np.stack([np.concatenate([leaves, hub]), np.concatenate([hub, leaves])])
    return _graph(config, np.random.default_rng(seed), 700, edges)


def lone_node(config: ModelConfig, seed: int = 2) -> Graph:
    """No edge at all."""
    return _graph(config, np.random.default_rng(seed), 1, np.zeros((2, 0), np.int64))


def shapes_for(config: ModelConfig) -> dict[str, Graph]:
    """Graphs of several shapes that a model of this kind takes."""
    return {
        "a random graph": random_graph(config),
        "a star": star_graph(config),
        "one node": lone_node(config),
    }


def _graph(config: ModelConfig, random: np.random.Generator, nodes: int, edges: Integers) -> Graph:
    def features(rows: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return random.normal(size=(rows, config.features)).astype(np.float32)

    return Graph(
        features=features(nodes),
        edge_index=edges,
        target_features=None if config.targets else features(4),
        pairs=random.integers(0, nodes, (2, 30)) if config.level == EDGE else None,
        level=config.level,
    )


def part_of(graph: Graph, size: int = PART) -> Graph:
    """The graph itself or, of a larger one, nodes around its first one with all edges among them."""
    if graph.nodes <= size or graph.level == GRAPH:
        return graph
    nodes = _around(graph, size)
    number = np.full(graph.nodes, -1)
    number[nodes] = np.arange(len(nodes))
    pairs, kept = (None, nodes) if graph.pairs is None else _renumbered(graph.pairs, number)
    return Graph(
        features=np.concatenate([graph.rows(node, node + 1) for node in nodes]),
        edge_index=_renumbered(graph.edge_index, number)[0],
        labels=None if graph.labels is None else graph.labels[kept],
        **{name: mask[:, kept] for name in MASKS if (mask := getattr(graph, name)) is not None},
        target_features=graph.target_features,
        class_names=graph.class_names,
        pairs=pairs,
        level=graph.level,
    )


def _around(graph: Graph, size: int) -> Integers:
    """The first `size` nodes that a walk in all directions meets; where it ends, it starts anew."""
    both = np.concatenate([graph.edge_index, graph.edge_index[::-1]], axis=1)
    neighbours = Neighbours.of(both, graph.nodes)
    met = np.zeros(graph.nodes, np.bool_)
    order: list[int] = []
    front = np.zeros(0, np.int64)
    while len(order) < size:
        if not len(front):
            front = np.flatnonzero(~met)[:1]
        met[front] = True
        order.extend(front.tolist())
        lists = [neighbours.sources[neighbours.starts[v] : neighbours.starts[v + 1]] for v in front]
        around = np.unique(np.concatenate(lists))
        front = around[~met[around]]
    return np.sort(np.array(order[:size]))


def _renumbered(pairs: Integers, number: Integers) -> tuple[Integers, Integers]:
    """The pairs of which both nodes are left, by their new numbers, and which they were."""
    new = number[pairs]
    kept = np.flatnonzero((new >= 0).all(axis=0))
    return new[:, kept], kept
