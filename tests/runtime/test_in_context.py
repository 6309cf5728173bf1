"""The closed-form start of the pretrained model."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adar_runtime.errors import GraphError
from adar_runtime.evaluation.zero_shot_baselines import cosines
from adar_runtime.graph import Graph, SparseRows
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.smoothing import Smoothing
from adar_runtime.in_context.features import UnitRows, leading_directions, unit_rows
from adar_runtime.in_context.start import (
    SmoothedFeatures,
    _candidates,
    _joined,
    _of_rounds,
    _reduced,
    known_labels,
    of_split,
    start,
)
from tests.in_context_graphs import block_graph


def accuracy(graph: Graph) -> float:
    scores, known = start(graph, 16).scores, known_labels(graph) >= 0
    return float((scores.argmax(axis=1) == graph.labels)[~known].mean())


def test_labels_and_descriptions_give_a_good_start() -> None:
    graph = block_graph()
    labelled = replace(graph, target_features=None)
    described = replace(graph, train_mask=None)
    assert min(map(accuracy, (labelled, described, graph))) > 0.8


def test_only_labels_of_the_train_mask_are_used() -> None:
    graph = replace(block_graph(), target_features=None)
    hidden = np.where(graph.train_mask[0], graph.labels, (graph.labels + 1) % graph.targets)  # type: ignore
    np.testing.assert_array_equal(start(graph, 16).nodes, start(replace(graph, labels=hidden), 16).nodes)


def test_rotating_the_features_changes_no_score() -> None:
    graph = block_graph()
    turn = np.linalg.qr(np.random.default_rng(3).standard_normal((graph.width, graph.width)))[0]
    turned = replace(
        graph, features=graph.rows(0, graph.nodes) @ turn, target_features=graph.target_features @ turn
    )
    np.testing.assert_allclose(start(turned, graph.width).scores, start(graph, graph.width).scores, atol=1e-3)


@pytest.mark.parametrize("columns", [1, 6, 15])
def test_the_order_of_nodes_and_classes_changes_no_score_with_few_feature_columns(columns: int) -> None:
    """Directions without variance were taken twice, by rounding errors alone."""
    random = np.random.default_rng(columns)
    graph = Graph(
        random.normal(size=(60, columns)),
        random.integers(0, 60, (2, 150)),
        target_features=random.normal(size=(3, columns)),
    )
    nodes, classes = random.permutation(60), [2, 0, 1]
    permuted = Graph(
        graph.rows(0, 60)[nodes],
        np.argsort(nodes)[graph.edge_index],
        target_features=graph.target_features[classes],  # type: ignore[index]
    )
    expected = start(graph, 16).scores[nodes][:, classes]
    np.testing.assert_allclose(start(permuted, 16).scores, expected, atol=1e-4)


@pytest.mark.parametrize("number", [0, 1, 2], ids=["class means", "ridge 0.1", "ridge 1"])
def test_leave_one_out_is_what_leaving_out_gives(number: int) -> None:
    """The closed form against a computation without each label."""
    graph = replace(block_graph(), target_features=None)
    labels, unit = known_labels(graph), unit_rows(graph.rows(0, graph.nodes))
    middle = unit.mean(axis=0)

    def candidate(known: np.ndarray) -> Any:
        return list(_of_rounds(0, unit - middle, middle, known, graph.targets, None))[number]

    for position, node in enumerate(np.flatnonzero(labels >= 0)[:5]):
        without = labels.copy()
        without[node] = -1
        expected = candidate(without).scores(unit - middle)[node]
        np.testing.assert_allclose(candidate(labels).left_out[position], expected, atol=1e-4)


def test_the_start_has_the_weighted_scores_of_its_candidates() -> None:
    graph = replace(block_graph(), target_features=None)
    features = SmoothedFeatures.of(graph, graph.width)
    nodes, candidates = features.nodes, _candidates(features, known_labels(graph), graph.targets)
    weights = np.linspace(0.01, 0.1, len(candidates))
    joined = _joined(nodes, candidates, weights, weights)
    expected = sum(w * each.scores(nodes[each.rounds]) for w, each in zip(weights, candidates, strict=True))
    for placed, targets in (joined, _reduced(*joined, 16)):
        np.testing.assert_allclose(placed @ targets.T, expected, atol=1e-4)


def test_leading_directions_keep_the_inner_products() -> None:
    random = np.random.default_rng(0)
    low = (random.standard_normal((60, 5)) @ random.standard_normal((5, 40))).astype(np.float32)
    graph = Graph(low, np.zeros((2, 0), np.int64))
    rows = UnitRows(graph)
    none = Smoothing(Neighbours.in_graph(graph), 0)
    basis = leading_directions(rows, none, 8, low[:2])
    placed = rows.times(basis)
    np.testing.assert_allclose(placed @ placed.T, unit_rows(low) @ unit_rows(low).T, atol=1e-4)
    np.testing.assert_allclose(low[:2] @ basis @ basis.T, low[:2], atol=1e-3)


def test_sparse_features_are_those_of_dense_ones() -> None:
    graph = block_graph()
    dense = np.where(np.abs(graph.rows(0, graph.nodes)) > 0.5, graph.rows(0, graph.nodes), 0)
    rows, columns = np.nonzero(dense)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=graph.nodes))])
    sparse = SparseRows(starts, columns, dense[rows, columns], dense.shape)
    found = [start(replace(graph, features=features), 16).scores for features in (dense, sparse)]
    np.testing.assert_allclose(*found, atol=1e-4)


@pytest.mark.parametrize("factor", [1e30, 1e-30, 1e37])
def test_the_unit_of_the_features_changes_no_score(factor: float) -> None:
    graph = replace(block_graph(), target_features=None)
    scaled = replace(graph, features=graph.features * np.float32(factor))
    np.testing.assert_allclose(start(scaled, 16).scores, start(graph, 16).scores, atol=1e-3)


def test_rows_of_any_length_become_unit_rows() -> None:
    lengths = np.array([[1], [3e38], [1e-37], [0], [2e19], [1e-20]], np.float32)
    rows = unit_rows(lengths * np.array([[0.6, 0.8]], np.float32))
    np.testing.assert_allclose(rows, (lengths > 0) * np.array([[0.6, 0.8]]), rtol=1e-5)
    np.testing.assert_allclose(cosines(lengths, np.ones((1, 1), np.float32)), lengths > 0)


def test_a_graph_without_descriptions_and_labels_is_refused() -> None:
    with pytest.raises(GraphError, match="class descriptions"):
        start(replace(block_graph(), target_features=None, train_mask=None), 16)


def test_the_test_part_of_a_split_has_no_known_label() -> None:
    graph = block_graph()
    masks = np.stack([graph.train_mask[0], ~graph.train_mask[0]])  # type: ignore[index]
    split = of_split(replace(graph, train_mask=masks), 1)
    assert split.train_mask is not None
    assert split.test_mask is not None
    np.testing.assert_array_equal(split.train_mask[0], masks[1])
    assert not (split.train_mask & split.test_mask).any()
    with pytest.raises(GraphError, match="split 2"):
        of_split(replace(graph, train_mask=masks), 2)
