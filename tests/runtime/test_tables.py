import numpy as np
import pytest

from adar_runtime.neighbours import Neighbours
from adar_runtime.tables import FULL_WIDTHS, JOINS, LEAVES, Tables


def sums(tables: Tables, messages: np.ndarray) -> np.ndarray:
    """What a cell does with them."""
    rows = np.concatenate([np.zeros_like(messages[:1]), messages])
    leaves = np.concatenate(
        [np.zeros_like(messages[:1]), *(rows[table].sum(axis=1) for table in tables.leaves)]
    )
    return np.concatenate([leaves, *(leaves[table].sum(axis=1) for table in tables.joins)])[tables.place]


def graph(kind: str) -> tuple[np.ndarray, int]:
    random = np.random.default_rng(0)
    return {
        "no edges": (np.zeros((2, 0), np.int64), 5),
        "one node": (np.zeros((2, 1), np.int64), 1),
        "a ring": (np.stack([np.arange(9), np.roll(np.arange(9), 1)]), 9),
        "random": (random.integers(0, 50, (2, 600)), 50),
        "a star": (np.stack([np.arange(3000), np.zeros(3000, np.int64)]), 3000),
        "hubs": (
            np.stack([random.integers(0, 4000, 9000), random.integers(0, 4000, 9000) ** 3 // 4000**2]),
            4000,
        ),
    }[kind]


@pytest.mark.parametrize("kind", ["no edges", "one node", "a ring", "random", "a star", "hubs"])
def test_sums_over_tables_are_sums_over_neighbours(kind: str) -> None:
    edges, nodes = graph(kind)
    neighbours = Neighbours.of(edges, nodes)
    tables = Tables.of(neighbours)
    messages = np.random.default_rng(1).normal(size=(nodes, 2))
    expected = np.zeros((nodes, 2))
    np.add.at(expected, neighbours.targets, messages[neighbours.sources])
    assert np.allclose(sums(tables, messages), expected)
    assert (len(tables.leaves), len(tables.joins)) == (LEAVES, JOINS)
    entries = sum(table.size for table in (*tables.leaves, *tables.joins))
    assert entries <= 1.5 * len(neighbours.sources) + nodes / FULL_WIDTHS[0] + LEAVES + JOINS
