"""Synthetic graphs: a label depends on nodes at exactly the distance that the family documents."""

from collections import deque

import numpy as np
import pytest

from adar_runtime.errors import AdarError
from adar_runtime.graph import Graph
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.statistics import components, statistics
from adar_runtime.graph.synthetic import FAMILIES, make


def distances(graph: Graph, start: int) -> dict[int, int]:
    """Hops to every node that can be reached from `start`."""
    neighbours = Neighbours.of(graph.edge_index, graph.nodes)
    found, queue = {start: 0}, deque([start])
    while queue:
        node = queue.popleft()
        for other in neighbours.sources[neighbours.starts[node] : neighbours.starts[node + 1]].tolist():
            if other not in found:
                found[other] = found[node] + 1
                queue.append(other)
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_seed_gives_the_same_graph_with_a_complete_split(name: str) -> None:
    one, other, third = (make(name, nodes=1000, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.features, other.features)
    assert np.array_equal(one.edge_index, other.edge_index)
    assert not np.array_equal(one.labels, third.labels)
    assert 0.9 * 1000 <= one.nodes <= 1.1 * 1000
    parts = np.stack([one.labelled(part) for part in ("train", "val", "test")])
    assert np.array_equal(parts.sum(axis=0), one.labels >= 0)
    found = statistics(one)
    assert (found.one_way, found.repeated, found.loops) == (0, 0, 0)


@pytest.mark.parametrize("hops", [1, 2, 7])
def test_a_chain_depends_on_one_node_at_distance_hops(hops: int) -> None:
    graph = make("chain", nodes=300, hops=hops, classes=3)
    informative = graph.features[:, :3].any(axis=1)
    for node in np.flatnonzero(graph.labels >= 0):
        away = {other: far for other, far in distances(graph, node).items() if informative[other]}
        ((start, far),) = away.items()
        assert far == hops
        assert graph.features[start].argmax() == graph.labels[node]


@pytest.mark.parametrize("hops", [1, 3])
def test_a_tree_depends_on_all_leaves_at_distance_hops(hops: int) -> None:
    graph = make("tree", nodes=1000, hops=hops)
    informative = graph.features[:, :2].any(axis=1)
    for node in np.flatnonzero(graph.labels >= 0):
        away = {other: far for other, far in distances(graph, node).items() if informative[other]}
        assert len(away) == 3**hops
        assert set(away.values()) == {hops}
        assert (graph.features[list(away), 1].mean() > 0.5) == graph.labels[node]


@pytest.mark.parametrize("homophily", [0.1, 0.9])
def test_blocks_have_the_requested_homophily_and_degree(homophily: float) -> None:
    found = statistics(make("blocks", nodes=3_000, classes=5, degree=12, homophily=homophily))
    assert found.homophily == pytest.approx(homophily, abs=0.02)
    assert found.degrees.mean == pytest.approx(12, abs=0.3)
    assert found.class_sizes == [600] * 5


def test_a_board_has_the_requested_share_of_mines() -> None:
    graph = make("minesweeper", nodes=2_500, mines=0.4)
    assert graph.nodes == 2_500
    assert graph.labels.mean() == pytest.approx(0.4, abs=0.03)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("chess", {}, "choose one of minesweeper, chain, tree, blocks"),
        ("tree", {"homophily": 0.5}, "tree has no setting homophily: choose from nodes, hops, seed"),
        ("chain", {"hops": 0}, "hops is 0: choose a value from 1 to"),
        ("chain", {"nodes": 5}, "nodes is 5"),
        ("blocks", {"homophily": 1.5}, "homophily is 1.5"),
        ("blocks", {"nodes": 10**12}, "ADAR_MAX_BYTES"),
        ("minesweeper", {"mines": 0}, "mines is 0"),
    ],
)
def test_invalid_settings_are_an_error(name: str, settings: dict, message: str) -> None:
    with pytest.raises(AdarError, match=message):
        make(name, **settings)


def test_components_of_long_paths_and_without_edges() -> None:
    path = np.stack([np.arange(999), np.arange(1, 1000)])
    assert set(components(path, 1001)[:1000]) == {0}
    assert components(path, 1001)[1000] == 1000
    assert np.array_equal(components(np.zeros((2, 0), np.int64), 3), np.arange(3))
    shuffled = np.random.default_rng(0).permutation(1000)
    assert len(set(components(shuffled[path], 1000))) == 1


@pytest.mark.parametrize(
    "settings", [{"nodes": 300_000, "classes": 1000}, {"nodes": 100_000, "degree": 1000}]
)
def test_many_classes_and_edges_count_as_memory(settings: dict[str, int]) -> None:
    with pytest.raises(AdarError, match="may need more than"):
        make("blocks", **settings)
