"""Neighbour tables give the same sums as the edges, with little padding."""

import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adar_runtime import read_graph
from adar_runtime.graph.neighbour_tables import (
    FIXED,
    JOINS,
    LEAVES,
    LONGEST,
    Tables,
    Widths,
    fixed_widths,
    largest_leaf,
    most_rows,
)
from adar_runtime.graph.neighbours import Neighbours
from tests.helpers import SHARED_DATA


def summed(tables: Tables, messages: np.ndarray) -> np.ndarray:
    """Sum as a cell does: Gather and ReduceSum, twice."""
    zero = np.zeros((1, messages.shape[1]))
    rows = np.concatenate([zero, messages])
    sums = np.concatenate([zero, *(rows[table].sum(axis=1) for table in tables.leaves)])
    joined = np.concatenate([sums, *(sums[table].sum(axis=1) for table in tables.joins)])
    return joined[tables.place]


def check(edge_index: np.ndarray, nodes: int, widths: Widths | None = None) -> Tables:
    """Compare to a plain sum over distinct edges. Integers, so that the sums are exactly equal."""
    neighbours = Neighbours.of(edge_index, nodes)
    tables = Tables.of(neighbours, widths)
    messages = np.random.default_rng(0).integers(-1000, 1000, (nodes, 2)).astype(np.float64)
    expected = np.zeros_like(messages)
    source, target = np.unique(edge_index, axis=1)
    np.add.at(expected, target, messages[source])
    assert np.array_equal(summed(tables, messages), expected)
    assert (len(tables.leaves), len(tables.joins), len(tables.place)) == (LEAVES, JOINS, nodes)
    assert all(table.dtype == np.int32 and table.ndim == 2 for table in tables.leaves + tables.joins)
    return tables


def entries(tables: Tables) -> int:
    return sum(table.size for table in tables.leaves + tables.joins)


@settings(max_examples=150, deadline=None)
@given(
    nodes=st.integers(1, 80),
    edges=st.integers(0, 1500),
    skew=st.floats(0.2, 6),
    seed=st.integers(0, 10**6),
)
def test_sums_of_any_graph(nodes: int, edges: int, skew: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    target = (nodes * random.random(edges) ** skew).astype(np.int64)  # skewed: most edges end at a few nodes
    edge_index = np.stack([random.integers(0, nodes, edges), target])
    leaves = check(edge_index, nodes).leaves
    check_fixed(edge_index, nodes)
    assert max(table.size for table in leaves) == leaves[-1].size  # for ONNX Runtime, which sums it first
    assert largest_leaf(Neighbours.of(edge_index, nodes).counts) == (leaves[-1].size if edges else 0)


def check_fixed(edge_index: np.ndarray, nodes: int) -> Tables:
    """With fixed widths, the sums are the same, and no table has more rows than the sizes allow."""
    tables = check(edge_index, nodes, FIXED)
    edges = np.unique(edge_index, axis=1).shape[1]
    arrays = tables.arrays()
    for name, width in fixed_widths().items():
        assert arrays[name].shape[1] == width
        assert 1 <= len(arrays[name]) <= most_rows(nodes, edges)[name], name
    return tables


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=40))
def test_lists_of_any_length(lengths: list[int]) -> None:
    nodes = max(len(lengths), *lengths)
    source = np.concatenate([np.arange(length) for length in lengths])
    edge_index = np.stack([source, np.repeat(np.arange(len(lengths)), lengths)])
    check(edge_index, nodes)
    check_fixed(edge_index, nodes)


@pytest.mark.parametrize("lengths", [range(140), range(380, 460), [1000, 1025, 24 * 512 + 417, 40_000]])
def test_fixed_widths_bound_the_rows_of_lists_of_every_length(lengths: Sequence[int]) -> None:
    """Lists of one length at a time, since the bounds hold for the worst of them."""
    for length in lengths:
        edge_index = np.stack([np.tile(np.arange(length), 3), np.repeat(np.arange(3), length)])
        tables = check_fixed(edge_index, max(length, 3))
        assert sum(table[table > 0].size for table in tables.leaves) == 3 * length


def test_fixed_widths_hold_a_hub_of_two_million_neighbours() -> None:
    neighbours = Neighbours(np.array([0, LONGEST]), np.zeros(LONGEST, np.int64))
    tables = Tables.of(neighbours, FIXED)
    assert len(tables.leaves[5]) == 4087
    longer = Neighbours(np.array([0, 4097 * 512]), np.zeros(4097 * 512, np.int64))
    with pytest.raises(ValueError, match="wider than every table"):
        Tables.of(longer, FIXED)


@pytest.mark.parametrize("nodes", [1, 2, 17])
def test_no_edges(nodes: int) -> None:
    tables = check(np.zeros((2, 0), np.int64), nodes)
    assert not tables.place.any()
    assert entries(tables) == LEAVES + JOINS  # one entry each: backends do not support empty tables


@pytest.mark.parametrize("nodes", [1, 5, 1000])
def test_only_loops(nodes: int) -> None:
    check(np.stack([np.arange(nodes)] * 2), nodes)


@pytest.mark.parametrize("neighbours", [8, 9, 511, 512, 513, 100_000])
def test_a_hub_costs_no_more_than_its_edges(neighbours: int) -> None:
    spokes = np.arange(1, neighbours + 1)
    hub = np.zeros_like(spokes)
    for edges in (np.stack([spokes, hub]), np.concatenate([[spokes, hub], [hub, spokes]], axis=1)):
        tables = check(edges, neighbours + 1)
        assert entries(tables) <= 1.25 * edges.shape[1] + 600  # one partly filled row per round
        assert max(table.shape[1] for table in tables.leaves + tables.joins) <= 512


def test_both_rounds_have_short_sums_for_any_hub() -> None:
    """Short sums keep float32 precise, and no table is wide because of a single row."""
    spokes = np.arange(1, 100_001)
    tables = check(np.stack([spokes, np.zeros_like(spokes)]), 100_001)
    assert len(tables.leaves[0]) < 100_001
    assert sum(table.shape[1] for table in tables.joins) <= 1000


@pytest.mark.parametrize("name", ["minesweeper", "tolokers", "amazon-computers", "coauthor-cs"])
def test_real_graphs_have_little_padding(name: str) -> None:
    path = SHARED_DATA / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"no real data in {SHARED_DATA}")
    graph = read_graph(path)
    neighbours = Neighbours.of(graph.edge_index, graph.nodes)
    assert entries(Tables.of(neighbours)) < 1.25 * len(neighbours.sources)


def test_a_million_edges_take_less_than_three_seconds() -> None:
    """A Python loop over nodes or edges would take many seconds."""
    random = np.random.default_rng(0)
    neighbours = Neighbours.of(random.integers(0, 100_000, (2, 1_000_000)), 100_000)
    before = time.process_time()
    Tables.of(neighbours)
    assert time.process_time() - before < 3
