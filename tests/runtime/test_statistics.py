"""Statistics compared to NetworkX, and every warning on a graph that has the problem."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from adar_runtime import Graph
from adar_runtime.graph.graph_warnings import warnings
from adar_runtime.graph.statistics import statistics
from adar_runtime.graph.synthetic import make
from tests.helpers import random_graph


def as_networkx(graph: Graph) -> nx.DiGraph:
    found = nx.DiGraph()
    found.add_nodes_from(range(graph.nodes))
    found.add_edges_from(graph.edge_index.T.tolist())
    return found


@pytest.mark.parametrize("seed", range(5))
def test_statistics_equal_those_of_networkx(seed: int) -> None:
    graph = random_graph(60, 90, seed=seed)
    found, other = statistics(graph), as_networkx(graph)
    degrees = sorted(degree for _, degree in other.in_degree())
    assert (found.degrees.least, found.degrees.most) == (degrees[0], degrees[-1])
    assert found.degrees.mean == pytest.approx(np.mean(degrees))
    assert found.isolated == degrees.count(0)
    assert found.loops == nx.number_of_selfloops(other)
    assert found.repeated == graph.edges - other.number_of_edges()
    assert found.one_way == sum(not other.has_edge(b, a) for a, b in other.edges())
    parts = list(nx.weakly_connected_components(other))
    assert (found.components, found.largest_component) == (len(parts), max(map(len, parts)))
    joined = [(a, b) for a, b in other.edges() if a != b]
    same = np.mean([graph.labels[a] == graph.labels[b] for a, b in joined])
    assert found.homophily == pytest.approx(same)


def test_homophily_by_chance_is_that_of_random_edges() -> None:
    graph = make("blocks", nodes=4_000, classes=3, homophily=1 / 3)
    found = statistics(graph)
    assert found.homophily == pytest.approx(found.chance, abs=0.02)


def good() -> Graph:
    return make("blocks", nodes=400)


def masks(graph: Graph, **parts: np.ndarray) -> Graph:
    return replace(graph, **{f"{name}_mask": mask for name, mask in parts.items()})


def links() -> Graph:
    """Two test pairs; one of them is an edge of the graph."""
    plain = good()
    pairs = np.stack([plain.edge_index[:, 0], [0, 1]], axis=1)
    labels = np.array([1, 0])
    return Graph(plain.features, plain.edge_index, labels, [[True, True]], None, [[True, True]], pairs=pairs)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            lambda: replace(good(), edge_index=good().edge_index[:, :800]),
            "have no reverse edge, and nodes receive messages along incoming edges only",
        ),
        (lambda: replace(good(), edge_index=np.zeros((2, 0), np.int64)), "the graph has no edges"),
        (lambda: replace(good(), edge_index=np.stack([np.arange(400)] * 2)), "are self-loops"),
        (
            lambda: replace(good(), edge_index=np.repeat(good().edge_index, 2, axis=1)),
            "edges are repeated",
        ),
        (lambda: replace(good(), edge_index=good().edge_index % 300), "have no incoming edges"),
        (lambda: replace(good(), features=good().features * 1000), "features go up to"),
        (lambda: replace(good(), features=np.ones((400, 2), np.float32)), "all nodes have the same features"),
        (lambda: replace(good(), labels=None), "the graph has no labels"),
        (lambda: replace(good(), labels=np.full(400, -1)), "all labels are unknown"),
        (lambda: replace(good(), labels=(np.arange(400) < 10).astype(np.int64)), "are class block 0"),
        (
            lambda: replace(good(), labels=(np.arange(400) < 10).astype(np.int64)),
            "fewer than 10 training labels",
        ),
        (lambda: masks(good(), train=None, val=None, test=None), "the graph has no split"),
        (lambda: masks(good(), test=None), "no labels in its test part"),
        (lambda: masks(good(), test=good().train_mask), "are in both the train and the test part"),
        (links, "are edges of the graph"),
    ],
)
def test_every_problem_gives_its_warning(graph, message: str) -> None:
    assert any(message in warning for warning in warnings(graph()))


def test_warnings_use_class_names() -> None:
    graph = replace(good(), labels=(np.arange(400) < 10).astype(np.int64), class_names=("hay", "needle" * 9))
    text = " ".join(warnings(graph))
    assert "of the labels are class hay:" in text
    assert "training labels: needleneedleneedlene… (" in text


def test_a_good_graph_has_no_warning() -> None:
    assert warnings(good()) == []
    assert warnings(make("minesweeper", nodes=900)) == []
