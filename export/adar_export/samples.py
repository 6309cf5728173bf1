"""The graphs of the comparison with PyTorch: small ones of several shapes, and a part of the run's graph."""

from dataclasses import replace

import numpy as np

from adar_runtime.graph import EDGE, GRAPH, MASKS, Floats, Graph, Integers, SparseRows
from adar_runtime.graph.neighbours import Neighbours
from adar_train.cell import ModelConfig

PART = 1_000  # nodes: 300 steps of bundle and PyTorch then take seconds


def random_graph(config: ModelConfig, seed: int = 0) -> Graph:
    """Return a small directed graph with isolated nodes, hubs and self-loops."""
    random = np.random.default_rng(seed)
    nodes, edges = 60, 240
    target = np.minimum(random.geometric(0.1, edges) - 1, nodes - 10)  # many edges end at the first nodes
    return _graph(config, random, nodes, np.stack([random.integers(0, nodes - 5, edges), target]))


def star_graph(config: ModelConfig, seed: int = 1) -> Graph:
    """Return a hub and its leaves: the longest list of neighbours beside the shortest."""
    leaves = np.arange(1, 700)
    hub = np.zeros_like(leaves)
    edges = np.stack([np.concatenate([leaves, hub]), np.concatenate([hub, leaves])])
    return _graph(config, np.random.default_rng(seed), 700, edges)


def lone_node(config: ModelConfig, seed: int = 2) -> Graph:
    """Return one node without edges."""
    return _graph(config, np.random.default_rng(seed), 1, np.zeros((2, 0), np.int64))


def shapes_for(config: ModelConfig) -> dict[str, Graph]:
    """Return graphs of several shapes that fit a model with these settings, by name."""
    return {
        "a random graph": random_graph(config),
        "a star": star_graph(config),
        "one node": lone_node(config),
    }


def _graph(config: ModelConfig, random: np.random.Generator, nodes: int, edges: Integers) -> Graph:
    def features(rows: int) -> Floats:
        return random.normal(size=(rows, config.features)).astype(np.float32)

    return Graph(
        features=features(nodes),
        edge_index=edges,
        target_features=None if config.targets else features(4),
        pairs=random.integers(0, nodes, (2, 30)) if config.level == EDGE else None,
        level=config.level,
        edge_weight=_weights(random, edges.shape[1]) if config.edge_weights else None,
    )


def _weights(random: np.random.Generator, count: int) -> Floats:
    return np.asarray(random.uniform(0.1, 3.0, count), np.float32)


def part_of(graph: Graph, size: int = PART, start: int = 0) -> Graph:
    """Return the graph or, if it is larger, `size` connected nodes with all edges between them.

    The part is around the node `start`; for link prediction, around some of the pairs.
    """
    if graph.nodes <= size:
        return graph
    nodes = _around(graph, size, start)
    number = np.full(graph.nodes, -1)
    number[nodes] = np.arange(len(nodes))
    pairs, outputs = None, np.zeros(1, np.int64) if graph.level == GRAPH else nodes
    if graph.pairs is not None:
        pairs, outputs = _renumbered(graph.pairs, number)
    edges, kept = _renumbered(graph.edge_index, number)
    return Graph(
        features=_features(graph, nodes),
        edge_index=edges,
        labels=None if graph.labels is None else graph.labels[outputs],
        **{name: mask[:, outputs] for name in MASKS if (mask := getattr(graph, name)) is not None},
        target_features=graph.target_features,
        class_names=graph.class_names,
        pairs=pairs,
        level=graph.level,
        ids=None if graph.ids is None else graph.ids[nodes],
        feature_encoding=graph.feature_encoding,
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[kept],
    )


def with_outputs(graph: Graph, count: int, seed: int = 3) -> Graph:
    """Return the graph or, if it has fewer than `count` predictions, one like it that has as many.

    Nodes are drawn with replacement. A drawn node receives from drawn copies of its neighbours, so that the
    copies of a node have different neighbours. For pairs of nodes, random pairs are added. A graph with one
    label stays as it is: it has one prediction.
    """
    if graph.outputs >= count or graph.level == GRAPH:
        return graph
    random = np.random.default_rng(seed)
    if graph.pairs is not None:
        added = random.integers(0, graph.nodes, (2, count - graph.outputs))
        pairs = np.concatenate([graph.pairs, added], axis=1)
        return replace(graph, pairs=pairs, labels=None, train_mask=None, val_mask=None, test_mask=None)
    drawn = np.sort(random.integers(0, graph.nodes, count))
    copies = np.bincount(drawn, minlength=graph.nodes)
    firsts = np.cumsum(copies) - copies
    neighbours = Neighbours.in_graph(graph)
    target = np.repeat(np.arange(count), neighbours.counts[drawn])
    place = _ranges(neighbours.starts[drawn], neighbours.starts[drawn + 1])
    source = neighbours.sources[place]
    chosen = firsts[source] + (random.random(len(source)) * copies[source]).astype(np.int64)
    kept = copies[source] > 0
    weights = neighbours.weights
    return Graph(
        features=_features(graph, drawn),
        edge_index=np.stack([chosen, target])[:, kept],
        target_features=graph.target_features,
        edge_weight=None if weights is None else weights[place][kept],
    )


def _around(graph: Graph, size: int, start: int) -> Integers:
    """Return the first `size` nodes of a breadth-first search that ignores the direction of edges.

    When the search has visited a whole component, it continues with another one.
    """
    both = np.concatenate([graph.edge_index, graph.edge_index[::-1]], axis=1)
    neighbours = Neighbours.of(both, graph.nodes)
    visited = np.zeros(graph.nodes, np.bool_)
    # For link prediction, the search starts at pairs, so that the part contains some.
    front = np.array([start]) if graph.pairs is None else np.unique(graph.pairs[:, : size // 4])
    found = [front]
    while sum(map(len, found)) < size:
        visited[front] = True
        around = np.unique(
            neighbours.sources[_ranges(neighbours.starts[front], neighbours.starts[front + 1])]
        )
        front = around[~visited[around]]
        front = front if len(front) else np.array([visited.argmin()])
        found.append(front)
    return np.sort(np.concatenate(found)[:size])


def _ranges(starts: Integers, stops: Integers) -> Integers:
    """Return the numbers from each start to its stop, one range after the other."""
    lengths = stops - starts
    return np.repeat(stops - np.cumsum(lengths), lengths) + np.arange(lengths.sum())


def _features(graph: Graph, nodes: Integers) -> Floats | SparseRows:
    x = graph.features
    if not isinstance(x, SparseRows):
        return x[nodes]
    entries = _ranges(x.starts[nodes], x.starts[nodes + 1])
    starts = np.concatenate([[0], np.cumsum(np.diff(x.starts)[nodes])])
    return SparseRows(starts, x.columns[entries], x.values[entries], (len(nodes), graph.width))


def _renumbered(pairs: Integers, number: Integers) -> tuple[Integers, Integers]:
    """Return the pairs whose nodes are both in the part, with new node numbers, and their old positions."""
    new = number[pairs]
    kept = np.flatnonzero((new >= 0).all(axis=0))
    return new[:, kept], kept
