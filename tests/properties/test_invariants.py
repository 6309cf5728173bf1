"""Invariants of inference that hold for every graph and all weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import adar_runtime
from adar_export.writer import _ExportOptions, _write
from adar_runtime import Bundle, Final, Graph
from adar_train import load_run
from tests.helpers import random_graph
from tests.properties.graphs import Drawn, graphs, many

STEPS = 6


@pytest.fixture(scope="module")
def bundle(described_bundle: Path) -> Bundle:
    return adar_runtime.load(described_bundle, "onnxruntime-cpu", threads=1)


@pytest.fixture(scope="module")
def local_bundle(described_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle whose nodes send nothing to proxies and targets, so that no global term depends on nodes."""
    run, folder = load_run(described_run), tmp_path_factory.mktemp("local")
    with torch.no_grad():
        for messages in (run.model.cell.node_abstraction, run.model.cell.target_update):
            messages.value.linear.weight.zero_()
            messages.value.linear.bias.zero_()
    _write(folder, run, run.model, run.graph(), _ExportOptions(17, "fp32", plain=False))
    return adar_runtime.load(folder, "onnxruntime-cpu", threads=1)


def scores(bundle: Bundle, graph: Graph) -> np.ndarray:
    return bundle.run(graph, STEPS, Final()).scores


def with_edges(graph: Graph, edges: np.ndarray) -> Graph:
    return Graph(graph.features, edges, target_features=graph.target_features)


def near(a: np.ndarray, b: np.ndarray) -> bool:
    return np.allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max() + 1e-6)


@many
@given(drawn=graphs(), seed=st.integers(0, 2**32 - 1))
def test_permuted_nodes_permute_the_scores(drawn: Drawn, seed: int, bundle: Bundle) -> None:
    graph = drawn.graph()
    order = np.random.default_rng(seed).permutation(graph.nodes)
    name = np.argsort(order)  # old -> new
    renamed = Graph(
        graph.rows(0, graph.nodes)[order], name[graph.edge_index], target_features=graph.target_features
    )
    assert near(scores(bundle, renamed), scores(bundle, graph)[order])


@many
@given(drawn=graphs(targets=5), seed=st.integers(0, 2**32 - 1))
def test_permuted_targets_permute_the_columns(drawn: Drawn, seed: int, bundle: Bundle) -> None:
    graph = drawn.graph()
    order = np.random.default_rng(seed).permutation(5)
    renamed = Graph(graph.features, graph.edge_index, target_features=graph.target_features[order])
    assert near(scores(bundle, renamed), scores(bundle, graph)[:, order])


@many
@given(drawn=graphs(), seed=st.integers(0, 2**32 - 1), times=st.integers(1, 4))
def test_order_and_repetition_of_edges_do_not_change_the_scores(
    drawn: Drawn, seed: int, times: int, bundle: Bundle
) -> None:
    graph = drawn.graph()
    repeated = np.tile(graph.edge_index, times)
    shuffled = np.random.default_rng(seed).permutation(repeated, axis=1)
    assert np.array_equal(scores(bundle, with_edges(graph, shuffled)), scores(bundle, graph))


def with_isolated_node(graph: Graph) -> Graph:
    more = np.vstack([graph.rows(0, graph.nodes), np.full((1, graph.width), 0.7, np.float32)])
    return Graph(more, graph.edge_index, target_features=graph.target_features)


@many
@given(drawn=graphs())
def test_an_isolated_node_reaches_others_only_by_the_global_terms(drawn: Drawn, local_bundle: Bundle) -> None:
    graph = drawn.graph()
    assert near(scores(local_bundle, with_isolated_node(graph))[:-1], scores(local_bundle, graph))


def test_an_isolated_node_reaches_others_by_the_global_terms(bundle: Bundle) -> None:
    """Otherwise the test above would pass for a model without global terms."""
    graph = random_graph(12, 30)
    assert not near(scores(bundle, with_isolated_node(graph))[:-1], scores(bundle, graph))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_input_gives_the_same_bits(threads: int, described_bundle: Path) -> None:
    """Twice with one bundle, and with a bundle that was loaded again."""
    graph = random_graph(400, 3000)
    first, second = (adar_runtime.load(described_bundle, "onnxruntime-cpu", threads) for _ in range(2))
    expected = first.run(graph, 30, Final())
    for bundle in (first, second):
        again = bundle.run(graph, 30, Final())
        assert np.array_equal(again.scores, expected.scores)
        assert again.alignment == expected.alignment
