"""Figures of a graph against NetworkX's, and every warning on a graph that deserves it."""

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
def test_counts_are_those_of_networkx(seed: int) -> None:
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


def test_homophily_by_chance_is_what_shuffled_edges_have() -> None:
    graph = make("blocks", nodes=4_000, classes=3, homophily=1 / 3)
    found = statistics(graph)
    assert found.homophily == pytest.approx(found.chance, abs=0.02)


def good() -> Graph:
    return make("blocks", nodes=400)


def masks(graph: Graph, **parts: np.ndarray) -> Graph:
    return replace(graph, **{f"{name}_mask": mask for name, mask in parts.items()})


def links() -> Graph:
    """Pairs of which one of the test part is an edge."""
    plain = good()
    pairs = np.stack([plain.edge_index[:, 0], [0, 1]], axis=1)
    labels = np.array([1, 0])
    return Graph(plain.features, plain.edge_index, labels, [[True, True]], None, [[True, True]], pairs=pairs)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (lambda: replace(good(), edge_index=good().edge_index[:, :800]), "lead one way only"),
        (lambda: replace(good(), edge_index=np.zeros((2, 0), np.int64)), "there is no edge"),
        (lambda: replace(good(), edge_index=np.stack([np.arange(400)] * 2)), "back to their own node"),
        (
            lambda: replace(good(), edge_index=np.repeat(good().edge_index, 2, axis=1)),
            "are there more than once",
        ),
        (lambda: replace(good(), edge_index=good().edge_index % 300), "hear no neighbour"),
        (lambda: replace(good(), features=good().features * 1000), "features go up to"),
        (lambda: replace(good(), features=np.ones((400, 2), np.float32)), "the same for every node"),
        (lambda: replace(good(), labels=None), "there are no labels"),
        (lambda: replace(good(), labels=np.full(400, -1)), "all labels are unknown"),
        (lambda: replace(good(), labels=(np.arange(400) < 10).astype(np.int64)), "are class block 0"),
        (lambda: replace(good(), labels=(np.arange(400) < 10).astype(np.int64)), "fewer than 10 labels"),
        (lambda: masks(good(), train=None, val=None, test=None), "there is no split"),
        (lambda: masks(good(), test=None), "there is no test part"),
        (lambda: masks(good(), test=good().train_mask), "are in the train and the test part"),
        (links, "are edges of the graph"),
    ],
)
def test_what_would_hurt_is_said(graph, message: str) -> None:
    assert any(message in warning for warning in warnings(graph()))


def test_classes_are_called_by_their_names() -> None:
    graph = replace(good(), labels=(np.arange(400) < 10).astype(np.int64), class_names=("hay", "needle" * 9))
    said = " ".join(warnings(graph))
    assert "of the labels are class hay:" in said
    assert "to learn from: needleneedleneedlene… (" in said


def test_a_good_graph_has_no_warning() -> None:
    assert warnings(good()) == []
    assert warnings(make("minesweeper", nodes=900)) == []
