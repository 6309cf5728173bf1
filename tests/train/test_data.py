"""Synthetic data sets, and loading by name."""

import numpy as np
import pytest

from adar_runtime.errors import GraphError
from adar_runtime.graph.synthetic import minesweeper
from adar_train import load


def test_minesweeper_is_a_board_with_counts() -> None:
    side = 7
    graph = minesweeper(side=side, seed=3)
    mines = graph.labels.reshape(side, side)
    padded = np.pad(mines, 1)
    for node in range(side * side):
        row, column = divmod(node, side)
        count = padded[row : row + 3, column : column + 3].sum() - mines[row, column]
        assert graph.features[node].sum() == 1
        assert graph.features[node, 9] == 1 or graph.features[node, count] == 1
    assert graph.edges == 2 * (2 * side * (side - 1) + 2 * (side - 1) ** 2)
    assert not (graph.train_mask & graph.val_mask).any()
    assert (graph.train_mask | graph.val_mask | graph.test_mask).all()


def test_the_default_board_has_the_shape_of_the_benchmark() -> None:
    graph = load("minesweeper")
    assert (graph.nodes, graph.edges) == (10_000, 78_804)
    assert graph.labels.mean() == pytest.approx(0.2, abs=0.02)
    assert graph.features[:, 9].mean() == pytest.approx(0.5, abs=0.02)
    assert [mask.sum() for mask in (graph.train_mask, graph.val_mask, graph.test_mask)] == [5000, 2500, 2500]


def test_the_same_seed_gives_the_same_board() -> None:
    assert np.array_equal(minesweeper(9, seed=1).features, minesweeper(9, seed=1).features)
    assert not np.array_equal(minesweeper(9, seed=1).features, minesweeper(9, seed=2).features)


def test_an_unknown_data_set_lists_the_choices() -> None:
    with pytest.raises(GraphError, match="choose minesweeper"):
        load("chess")
