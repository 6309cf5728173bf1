"""Synthetic graphs: training data without a download. Each family needs information from another distance.

| family | a label depends on | distance |
|---|---|---|
| `minesweeper` | counts of mines around a cell, shown on half of the cells | 2 hops |
| `chain` | the node at the other end of a path | exactly `hops` hops |
| `tree` | all leaves of a tree | exactly `hops` hops |
| `blocks` | noisy features of nodes in the same community | the further, the more accurate |

To add a family, write a function that takes `nodes` and `seed`, and add one line to `FAMILIES`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, UsageError
from adar_runtime.graph import MASKS, Graph, Integers
from adar_runtime.graph.limits import max_bytes

__all__ = ["FAMILIES", "Family", "grid_edges", "make", "minesweeper"]


# minesweeper: which cells of a board are mines? ----------------------------------------------------------
#
# A cell that is not hidden shows how many of its 8 neighbours are mines. A hidden cell shows nothing. The
# counts of a cell's neighbours depend on the cells around them, so a label depends on 2 hops.

COUNTS = 9  # a cell has 0 to 8 neighbouring mines


def minesweeper(side: int = 100, mines: float = 0.2, hidden: float = 0.5, seed: int = 0) -> Graph:
    """A board of side × side cells. Each cell has edges to its 8 neighbours.

    Features [n, 10]: the count of neighbouring mines as one-hot; a hidden cell has only the last column.
    Labels: 1 for a mine. Split: random, 50/25/25.
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
        **_random_split(random, nodes),
        class_names=("safe", "mine"),
    )


def board(nodes: int = 10_000, mines: float = 0.2, seed: int = 0) -> Graph:
    """The square minesweeper board whose number of cells is closest to `nodes`."""
    _require_range("nodes", nodes, 9, 10**9)
    _require_range("mines", mines, 0.01, 0.99)
    return minesweeper(round(nodes**0.5), mines, seed=seed)


def grid_edges(side: int) -> Integers:
    """All edges between cells that touch, corners included, in both directions: [2, m]."""
    cell = np.arange(side * side).reshape(side, side)
    pairs = [
        (cell[:, :-1], cell[:, 1:]),  # east
        (cell[:-1], cell[1:]),  # south
        (cell[:-1, :-1], cell[1:, 1:]),  # south-east
        (cell[:-1, 1:], cell[1:, :-1]),  # south-west
    ]
    one_way = np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in pairs], axis=1)
    return _both_directions(*one_way)


# chain: which class does the other end of a path show? ---------------------------------------------------
#
#   start (shows its class) - node - node - … - end (labelled)
#
# Only the start knows the class, so a label depends on a node that is exactly `hops` hops away.


def chain(nodes: int = 4_000, hops: int = 16, classes: int = 4, seed: int = 0) -> Graph:
    """About `nodes` nodes on paths of `hops` edges.

    Features [n, classes + 2]: the class as one-hot at the start; one column marks the inner nodes, one the
    end. Labels: at the end of a path only.
    """
    _require_range("hops", hops, 1, 10_000)
    _require_range("classes", classes, 2, 1_000)
    length = hops + 1
    count = max(2 * classes, nodes // length)
    _require_range("nodes", nodes, 2 * classes * length, 10**9)
    random = np.random.default_rng(seed)
    node = np.arange(count * length).reshape(count, length)
    classes_shown = random.permutation(np.arange(count) % classes)
    features = np.zeros((count * length, classes + 2), np.float32)
    features[node[:, 0], classes_shown] = 1
    features[node[:, 1:-1], classes] = 1
    features[node[:, -1], classes + 1] = 1
    labels = np.full(count * length, -1)
    labels[node[:, -1]] = classes_shown
    return Graph(
        features=features,
        edge_index=_both_directions(node[:, :-1].ravel(), node[:, 1:].ravel()),
        labels=labels,
        **_random_split(random, count * length, node[:, -1]),
        class_names=tuple(f"start {number}" for number in range(classes)),
    )


# tree: which colour do most leaves have? -----------------------------------------------------------------
#
# Every inner node has 3 children. Only the leaves have colours and only the root has a label, so a label
# depends on all 3^hops leaves, each exactly `hops` hops away.

CHILDREN = 3  # odd, so that there is always a majority
MIN_TREES = 24  # with fewer trees, a part of the split may have one class only
INNER_COLUMN, ROOT_COLUMN = 2, 3  # feature columns after the two colours


def tree(nodes: int = 6_000, hops: int = 3, seed: int = 0) -> Graph:
    """About `nodes` nodes in trees of depth `hops`.

    Features [n, 4]: the colour of a leaf as one-hot in the first two columns; the other two mark the inner
    nodes and the root. Labels: at the root only.
    """
    _require_range("hops", hops, 1, 9)
    size = (CHILDREN ** (hops + 1) - 1) // (CHILDREN - 1)
    _require_range("nodes", nodes, MIN_TREES * size, 10**9)
    count, leaves = nodes // size, CHILDREN**hops
    random = np.random.default_rng(seed)
    root = np.arange(count)[:, None] * size  # [count, 1]
    child = np.arange(1, size)  # numbers within a tree, level by level
    colours = random.integers(0, 2, (count, leaves))
    features = np.zeros((count, size, 4), np.float32)
    features[:, 1 : size - leaves, INNER_COLUMN] = 1
    features[:, 0, ROOT_COLUMN] = 1
    features[:, size - leaves :] = np.eye(4)[colours]
    labels = np.full(count * size, -1)
    labels[root[:, 0]] = colours.sum(axis=1) > leaves / 2
    return Graph(
        features=features.reshape(count * size, 4),
        edge_index=_both_directions((root + child).ravel(), (root + (child - 1) // CHILDREN).ravel()),
        labels=labels,
        **_random_split(random, count * size, root[:, 0]),
        class_names=("mostly black", "mostly white"),
    )


# blocks: to which community does a node belong? ----------------------------------------------------------
#
# A stochastic block model. A node's own features are mostly noise. The average over its neighbours, most of
# which are in the same community, has less noise, and the average over their neighbours even less.

NOISE = 2.0  # standard deviation; the signal is 1


def blocks(
    nodes: int = 4_000, classes: int = 4, degree: int = 8, homophily: float = 0.8, seed: int = 0
) -> Graph:
    """Communities of equal size. A share `homophily` of the edges stays within a community.

    Features [n, classes]: the class as one-hot plus noise of twice its size. Labels: at every node.
    """
    _require_range("classes", classes, 2, 1_000)
    _require_range("nodes", nodes, 4 * classes, 10**9)
    _require_range("degree", degree, 1, nodes - 1)
    _require_range("homophily", homophily, 0, 1)
    random = np.random.default_rng(seed)
    labels = np.arange(nodes) % classes
    source = random.integers(0, nodes, nodes * degree // 2)
    shift = np.where(random.random(len(source)) < homophily, 0, random.integers(1, classes, len(source)))
    target_class = (labels[source] + shift) % classes
    target = target_class + classes * random.integers(0, nodes // classes, len(source))
    low, high = np.sort([source, target], axis=0)
    source, target = np.divmod(np.unique((low * nodes + high)[low != high]), nodes)
    order = random.permutation(nodes)  # so that a node's number does not reveal its class
    features = np.eye(classes)[labels] + NOISE * random.normal(size=(nodes, classes))
    position = np.argsort(order)
    return Graph(
        features=features[order].astype(np.float32),
        edge_index=_both_directions(position[source], position[target]),
        labels=labels[order],
        **_random_split(random, nodes),
        class_names=tuple(f"block {number}" for number in range(classes)),
    )


# Registry ------------------------------------------------------------------------------------------------

BYTES_PER_NODE = (
    1_000  # upper bound over all families with few classes and edges, features and edges together
)
BYTES_PER_CLASS, BYTES_PER_DEGREE = 40, 100  # of a node, where classes or edges are many


@dataclass(frozen=True)
class Family:
    """A family of synthetic graphs.

    Attributes:
        make: The function that makes a graph.
        about: One sentence: what a model has to predict.
        receptive_field: How far away the information for a label is.
    """

    make: Callable[..., Graph]
    about: str
    receptive_field: str

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `make`, with their defaults."""
        return {name: one.default for name, one in inspect.signature(self.make).parameters.items()}


FAMILIES = {
    "minesweeper": Family(board, "find the mines from counts on half of the cells", "2 hops"),
    "chain": Family(chain, "predict the class that the other end of a path shows", "exactly --hops hops"),
    "tree": Family(tree, "predict the colour of most leaves at the root", "all leaves, exactly --hops hops"),
    "blocks": Family(blocks, "find communities from noisy features", "the further, the more accurate"),
}


def make(name: str, **settings: Any) -> Graph:
    """Make a graph.

    Args:
        name: A family of `FAMILIES`.
        **settings: Arguments of the family, such as nodes, hops or seed. Default: those of the family.

    Returns:
        A graph with labels and one split of 50/25/25.

    Raises:
        GraphError: There is no such family.
        UsageError: The family does not have this setting, or the value is out of range.

    Examples:
        >>> make("chain", nodes=1_000, hops=4).nodes
        1000
    """
    if name not in FAMILIES:
        raise GraphError(f"unknown family {name!r}: choose one of {', '.join(FAMILIES)}")
    defaults = FAMILIES[name].settings
    for setting in settings:
        if setting not in defaults:
            raise UsageError(f"{name} has no setting {setting}: choose from {', '.join(defaults)}")
    chosen = defaults | settings
    of_node = BYTES_PER_CLASS * chosen.get("classes", 0) + BYTES_PER_DEGREE * chosen.get("degree", 0)
    if chosen["nodes"] * max(BYTES_PER_NODE, of_node) > max_bytes():
        raise UsageError(
            f"{chosen['nodes']:,} nodes may need more than {max_bytes():,} bytes: set ADAR_MAX_BYTES higher"
        )
    return FAMILIES[name].make(**chosen)


# Helpers -------------------------------------------------------------------------------------------------


def _random_split(
    random: np.random.Generator, outputs: int, labelled: Integers | None = None
) -> dict[str, Any]:
    """Masks of a random 50/25/25 split of all outputs, or of the `labelled` ones."""
    count = outputs if labelled is None else len(labelled)
    train, val = count // 2, count // 4
    part = random.permutation(np.repeat([0, 1, 2], [train, val, count - train - val]))
    if labelled is not None:
        all_parts = np.full(outputs, -1)
        all_parts[labelled] = part
        part = all_parts
    return {name: part == number for number, name in enumerate(MASKS)}


def _both_directions(sources: Integers, targets: Integers) -> Integers:
    """Each edge in both directions: [2, 2m]."""
    edges = np.stack([sources, targets])
    return np.concatenate([edges, edges[::-1]], axis=1)


def _require_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} is {value:g}: choose a value from {low:g} to {high:g}")
