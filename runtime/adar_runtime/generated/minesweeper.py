"""Minesweeper: which cells of a board are mines, told by the counts on the open half of the board.

After the data set of the same name in the heterophilous-graphs benchmark (Platonov et al., 2023),
generated here so that the first command needs no network.
"""

import numpy as np

from adar_runtime.generated.parts import both_ways, require_range, split
from adar_runtime.graph import Graph, Integers

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
