"""Episodes: small tasks sampled from a large graph, with some of its classes, nodes and edges.

A model that trains on a new episode in every epoch learns what the tasks have in common, and that transfers
to unseen graphs.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from adar_runtime.graph import Graph, Integers, Mask
from adar_runtime.graph.neighbours import Neighbours

FEW_CLASSES = 8  # episodes of graphs with fewer classes have 2 to 4 classes, others 3 to 12
SMALLEST_CLASS = 100  # nodes that a class needs to be sampled; less if fewer than two classes have 100
LARGEST_SHARE = 0.6  # of nodes in one class; above it, always predicting that class scores too well
NODES = (800, 2000)  # range of the number of nodes of an episode
FAN_OUT = 3  # neighbours that each sampled node adds
PATCHES_FAN_OUT = (2, 12)  # range of the same in episodes of patches: sparse and dense graphs
PATCH = (10, 100)  # range of the number of nodes around one seed
EVENNESS = 5.0  # of the classes' shares in episodes of patches: the parameter of a Dirichlet distribution


@dataclass(frozen=True, eq=False)
class EpisodeSource:
    """A graph with described classes, and its nodes with training labels."""

    graph: Graph
    chosen: Integers  # nodes with training labels

    @classmethod
    def of(cls, graph: Graph, split: int) -> "EpisodeSource":
        mask = graph.labelled("train", split)
        assert mask is not None
        return cls(graph, np.flatnonzero(mask))

    def draw(
        self, random: np.random.Generator, sizes: tuple[int, int] = NODES, *, patches: bool = False
    ) -> Graph:
        """A new episode of `sizes` nodes.

        Nodes are sampled around one seed, so one class is often much larger than the others. With `patches`,
        there are many seeds, and the sizes of the classes are between similar ones and those of the graph.
        """
        classes = self._classes(random)
        labels = self._labels[self.chosen]
        nodes = self.chosen[np.isin(labels, classes)]
        nodes = self._sample(nodes, int(random.integers(*sizes)), random, patches=patches)
        return self._graph_of(classes, nodes, random)

    def of_classes(self, classes: Integers) -> Graph:
        """The graph of all nodes of some classes, and of all edges among them."""
        return self._graph_of(classes, self.chosen[np.isin(self._labels[self.chosen], classes)])

    def _graph_of(
        self, classes: Integers, nodes: Integers, random: np.random.Generator | None = None
    ) -> Graph:
        """The graph of some nodes, which have these classes; with `random`, only some edges are kept."""
        number = np.full(self.graph.targets, -1)
        number[classes] = np.arange(len(classes))
        assert self.graph.target_features is not None
        edges, numbers = _induced(self.graph, nodes)
        kept = np.ones(len(numbers), np.bool_) if random is None else _keep_some(edges, random)
        weights = self.graph.edge_weight
        return Graph(
            features=_rows(self.graph, nodes),
            edge_index=edges[:, kept],
            labels=number[self._labels[nodes]],
            target_features=self.graph.target_features[classes],
            edge_weight=None if weights is None else weights[numbers[kept]],
        )

    @property
    def _labels(self) -> Integers:
        assert self.graph.labels is not None
        return self.graph.labels.astype(np.int64, copy=False)

    def _classes(self, random: np.random.Generator) -> Integers:
        sizes = np.bincount(self._labels[self.chosen], minlength=self.graph.targets)
        usable = np.flatnonzero(sizes >= min(SMALLEST_CLASS, np.sort(sizes)[-2]))
        low, high = (2, 4) if len(usable) < FEW_CLASSES else (3, 12)
        for _ in range(100):
            count = min(int(random.integers(low, high + 1)), len(usable))
            drawn = random.choice(usable, count, replace=False)
            if sizes[drawn].max() <= LARGEST_SHARE * sizes[drawn].sum():
                break
        return drawn

    def _sample(self, nodes: Integers, size: int, random: np.random.Generator, *, patches: bool) -> Integers:
        """At most `size` of the nodes: random nodes and some of their neighbours, so that edges are kept."""
        if len(nodes) <= size:
            return nodes
        neighbours = Neighbours.of(_induced(self.graph, nodes)[0], len(nodes))
        _, labels = np.unique(self._labels[nodes], return_inverse=True)
        shares = _shares(labels, random) if patches else np.ones(labels.max() + 1)
        left = np.ceil(size * shares).astype(np.int64)  # nodes that each class may still get
        patch = int(random.integers(*PATCH)) if patches else size
        fan_out = int(random.integers(*PATCHES_FAN_OUT)) if patches else FAN_OUT
        kept = np.zeros(len(nodes), np.bool_)
        seeds, queue, count = iter(random.permutation(len(nodes))), deque[int](), 0
        while count < size:
            node = queue.popleft() if queue else int(next(seeds, -1))
            if node < 0:
                break
            if kept[node] or not left[labels[node]]:
                continue
            kept[node] = True
            count += 1
            left[labels[node]] -= 1
            if count % patch == 0:
                queue.clear()
                continue
            around = neighbours.sources[neighbours.starts[node] : neighbours.starts[node + 1]]
            queue.extend(random.permutation(around[~kept[around]])[:fan_out].tolist())
        return nodes[kept]


def _shares(
    labels: Integers, random: np.random.Generator
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Shares of the classes of an episode: between equal ones (power 0) and those of all nodes (power 1)."""
    sizes = np.bincount(labels)
    shares = random.dirichlet(np.full(len(sizes), EVENNESS)) * sizes ** random.random()
    found: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = shares / shares.sum()
    return found


def _rows(graph: Graph, nodes: Integers) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return graph.rows(0, graph.nodes)[nodes]


def _induced(graph: Graph, nodes: Integers) -> tuple[Integers, Integers]:
    """The edges among `nodes`, renumbered by their positions in `nodes`, and their numbers in the graph."""
    position = np.full(graph.nodes, -1)
    position[nodes] = np.arange(len(nodes))
    edges = position[graph.edge_index]
    numbers = np.flatnonzero((edges >= 0).all(axis=0))
    return edges[:, numbers], numbers


def _keep_some(edges: Integers, random: np.random.Generator) -> Mask:
    """Choose a random share (30 to 100 %) of the edges, both directions of an edge together."""
    low, high = np.sort(edges, axis=0)
    kept = random.random() * 0.7 + 0.3
    _, link = np.unique(low * (edges.max(initial=0) + 1) + high, return_inverse=True)
    chosen: Mask = (random.random(link.max(initial=-1) + 1) < kept)[link]
    return chosen
