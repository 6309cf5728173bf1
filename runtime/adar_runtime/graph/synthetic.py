"""Synthetic graphs: training data without a network. Each family needs information from another distance."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, UsageError
from adar_runtime.graph import MASKS, Graph, Integers
from adar_runtime.graph.limits import max_bytes

__all__ = ["FAMILIES", "Family", "make", "minesweeper"]


def split(random: np.random.Generator, outputs: int, asked: Integers | None = None) -> dict[str, Any]:
    """A random 50/25/25 split of the outputs, or of those that have a label."""
    count = outputs if asked is None else len(asked)
    train, val = count // 2, count // 4
    part = random.permutation(np.repeat([0, 1, 2], [train, val, count - train - val]))
    if asked is not None:
        everyone = np.full(outputs, -1)
        everyone[asked] = part
        part = everyone
    return {name: part == number for number, name in enumerate(MASKS)}


def both_ways(sources: Integers, targets: Integers) -> Integers:
    """Edges in both directions: [2, 2m]."""
    there = np.stack([sources, targets])
    return np.concatenate([there, there[::-1]], axis=1)


def require_range(name: str, value: float, low: float, high: float) -> None:
    """Refuse a setting that makes no graph."""
    if not low <= value <= high:
        raise UsageError(f"{name} is {value:g}: choose {low:g} to {high:g}")


COUNTS = 9  # a cell has 0 to 8 neighbouring mines


def minesweeper(side: int = 100, mines: float = 0.2, hidden: float = 0.5, seed: int = 0) -> Graph:
    """A side × side board; cells touch their 8 neighbours, and a share of them is `hidden`.

    Features [n, 10]: the count of neighbouring mines as one-hot, or, for a hidden cell, only the
    last column. Labels: 1 for a mine. Split 50/25/25 at random.
    """
    random = np.random.default_rng(seed)
    edges = grid_edges(side)
    nodes = side * side
    mine = random.random(nodes) < mines
    counts = np.bincount(edges[1], weights=mine[edges[0]], minlength=nodes).astype(np.int64)
    features = np.zeros((nodes, COUNTS + 1), np.float32)
    is_hidden = random.random(nodes) < hidden
    features[np.arange(nodes), np.where(is_hidden, COUNTS, counts)] = 1
    return Graph(
        features=features,
        edge_index=edges,
        labels=mine.astype(np.int64),
        **split(random, nodes),
        class_names=("safe", "mine"),
    )


def board(nodes: int = 10_000, mines: float = 0.2, seed: int = 0) -> Graph:
    """The square board that comes closest to so many cells."""
    require_range("nodes", nodes, 9, 10**9)
    require_range("mines", mines, 0.01, 0.99)
    return minesweeper(round(nodes**0.5), mines, seed=seed)


def grid_edges(side: int) -> Integers:
    """Both directions of all edges between cells that touch, corners included: [2, m]."""
    cell = np.arange(side * side).reshape(side, side)
    pairs = [
        (cell[:, :-1], cell[:, 1:]),  # east
        (cell[:-1], cell[1:]),  # south
        (cell[:-1, :-1], cell[1:, 1:]),  # south-east
        (cell[:-1, 1:], cell[1:, :-1]),  # south-west
    ]
    one_way = np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in pairs], axis=1)
    return both_ways(*one_way)


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


BYTES_A_NODE = 1_000  # of the largest family, features and edges, with room to spare


@dataclass(frozen=True)
class Family:
    """A kind of graph."""

    make: Callable[..., Graph]
    about: str
    sees: str  # how far a node has to, for its label

    @property
    def settings(self) -> dict[str, Any]:
        """What it takes, and what each is where it is not said."""
        return {name: one.default for name, one in inspect.signature(self.make).parameters.items()}


FAMILIES = {
    "minesweeper": Family(board, "which cells are mines, from counts on half of them", "2 hops"),
    "chain": Family(chain, "the end of a path has the class that its start shows", "as many hops as you say"),
    "tree": Family(
        tree, "the root has the colour of most leaves", "as many hops as you say, and every leaf there"
    ),
    "blocks": Family(blocks, "communities whose features are mostly noise", "the further, the surer"),
}
"""By name. Adding one is a file and a line here."""


def make(name: str, **settings: Any) -> Graph:
    """A graph of that family; what is not said is as the family has it."""
    if name not in FAMILIES:
        raise GraphError(f"there is no family {name!r}: choose {', '.join(FAMILIES)}")
    known = FAMILIES[name].settings
    for setting in settings:
        if setting not in known:
            raise UsageError(f"{name} has no {setting}: it takes {', '.join(known)}")
    chosen = known | settings
    if chosen["nodes"] * BYTES_A_NODE > max_bytes():
        raise UsageError(
            f"{chosen['nodes']:,} nodes may take more than {max_bytes():,} bytes: set ADAR_MAX_BYTES"
        )
    return FAMILIES[name].make(**chosen)
