"""The closed-form start of the pretrained model."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import adar_deploy
from adar_runtime.errors import GraphError, UsageError
from adar_runtime.evaluation.evaluate import evaluate
from adar_runtime.evaluation.zero_shot_baselines import cosines
from adar_runtime.graph import Graph, SparseRows
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.smoothing import Smoothing
from adar_runtime.in_context.discriminant import SHRINKAGE, Analysis
from adar_runtime.in_context.features import UnitRows, leading_directions, unit_rows
from adar_runtime.in_context.start import (
    RESTARTS,
    ROUNDS,
    SmoothedFeatures,
    _candidates,
    _Guess,
    _joined,
    _of_smoothing,
    _reduced,
    known_labels,
    of_split,
    restarted,
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
        return list(_of_smoothing(1.0, unit - middle, middle, known, graph.targets, None))[number]

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
    expected = sum(w * each.scores(nodes[each.restart]) for w, each in zip(weights, candidates, strict=True))
    for placed, targets in (joined, _reduced(*joined, 16)):
        np.testing.assert_allclose(placed @ targets.T, expected, atol=1e-4)


def test_smoothing_restarts_at_the_features_in_every_round() -> None:
    """The weighted sum of rounds against one round after the other: H = (1 - a) S H + a X."""
    graph = block_graph()
    neighbours, rows = Neighbours.in_graph(graph), graph.rows(0, graph.nodes)
    for share, found in restarted(neighbours, rows).items():
        expected = rows
        for _ in range(ROUNDS):
            expected = (1 - share) * Smoothing(neighbours, 1)(expected) + share * rows
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert 1.0 in RESTARTS  # the features themselves


def two_clusters(sizes: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Centred nodes near two points, a constant last column, and the cluster of each node."""
    random, labels = np.random.default_rng(0), np.repeat([0, 1], sizes)
    points = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])[labels]
    points = points + 0.3 * random.standard_normal(points.shape)
    points -= points.mean(axis=0)
    return np.concatenate([points, np.ones((len(points), 1))], axis=1).astype(np.float32), labels


def estimated(nodes: np.ndarray, targets: np.ndarray, known: np.ndarray) -> np.ndarray:
    return _Guess(nodes, targets, known, "").estimated()


def test_estimated_targets_move_from_poor_descriptions_to_the_clusters() -> None:
    nodes, labels = two_clusters((100, 100))
    poor = np.array([[1, -0.2, 2, 0], [0.4, 0.6, -2, 0]], np.float32)
    found = estimated(nodes, poor, np.zeros((200, 2), np.float32))
    accuracy = [float(((nodes @ targets.T).argmax(axis=1) == labels).mean()) for targets in (poor, found)]
    assert accuracy[1] > accuracy[0] + 0.05


def test_a_large_class_becomes_more_likely() -> None:
    nodes, labels = two_clusters((180, 20))
    good = np.array([[1, -1, 0, 0], [-1, 1, 0, 0]], np.float32)
    none = np.zeros((200, 2), np.float32)
    found = estimated(nodes, good, none)
    assert found[0, -1] > found[1, -1]
    known = np.eye(2, dtype=np.float32)[1 - labels]  # labels that say the opposite
    reversed_ = estimated(nodes, good, known)
    assert reversed_[0, -1] < reversed_[1, -1]


def crossed_clusters(seed: int, *, along: bool) -> Graph:
    """Nodes of two clusters. Classes are the clusters, or a weaker direction across them; 20 are known."""
    random = np.random.default_rng(seed)
    strong, weak = random.integers(0, 2, (2, 400))
    features = 0.8 * random.standard_normal((400, 12))
    features[:, 0] += 2 * (2 * strong - 1)
    features[:, 1] += 2 * weak - 1
    labels, mask = strong if along else weak, np.zeros((1, 400), np.bool_)
    for number in range(2):
        mask[0, random.choice(np.flatnonzero(labels == number), 10, replace=False)] = True
    edges = np.zeros((2, 0), np.int64)
    return Graph(features.astype(np.float32), edges, labels=labels, train_mask=mask)


def test_hidden_labels_decide_whether_classes_are_estimated_again() -> None:
    """Estimating classes again follows the clusters, which is wrong if the classes cut through them."""
    chosen = {
        along: [start(crossed_clusters(seed, along=along), 16).estimated for seed in range(6)]
        for along in (True, False)
    }
    assert sum(chosen[True]) >= 4
    assert sum(chosen[False]) <= 2
    graph = crossed_clusters(0, along=False)
    features, known = SmoothedFeatures.of(graph, 16), known_labels(graph)
    never, always = (features.start(known, 2, estimate=each).scores for each in (False, True))
    assert np.array_equal(start(graph, 16).scores, never)
    assert not np.array_equal(never, always)


def test_equal_targets_stay_finite() -> None:
    nodes, _ = two_clusters((30, 30))
    equal, none = np.zeros((2, 4), np.float32), np.zeros((60, 2), np.float32)
    assert np.isfinite(estimated(nodes, equal, none)).all()
    for features in (nodes[:, :-1], np.zeros((60, 3), np.float32)):
        found = _Guess(nodes, equal, none, "").analysed(equal, Analysis(features))
        assert np.isfinite(found.scores).all()
        assert all(np.isfinite(part).all() for part in found.joined())


def stretched_clusters() -> tuple[np.ndarray, np.ndarray]:
    """Centred nodes near two points, with much noise along one direction, and the cluster of each node."""
    random, labels = np.random.default_rng(0), np.arange(400) % 2
    points = np.array([[1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]])[labels]
    points = points + random.standard_normal(points.shape) * [3.0, 0.6, 0.6]
    return (points - points.mean(axis=0)).astype(np.float32), labels


def test_the_discriminant_is_that_of_the_textbook() -> None:
    features, labels = stretched_clusters()
    found = Analysis(features).of(np.eye(2, dtype=np.float32)[labels])
    means = np.stack([features[labels == number].mean(axis=0) for number in range(2)])
    residuals = features - means[labels]
    within = residuals.T @ residuals / len(labels)
    within += SHRINKAGE * np.trace(within) / len(within) * np.eye(len(within))
    weights = np.linalg.solve(within, means.T)
    np.testing.assert_allclose(found.weights, weights, atol=1e-4)
    np.testing.assert_allclose(found.bias, -(means * weights.T).sum(axis=1) / 2, atol=1e-4)


def test_the_analysis_improves_a_guess_that_follows_noise() -> None:
    """Half of the classes are known: they show that the first direction is mostly noise."""
    features, labels = stretched_clusters()
    nodes = np.concatenate([features, np.ones((400, 1), np.float32)], axis=1)
    means = np.array([[1, 1, 0, 0], [-1, -1, 0, 0]], np.float32)
    known = np.eye(2, dtype=np.float32)[labels] * (np.arange(400) < 200)[:, None]
    found = _Guess(nodes, means, known, "").analysed(means, Analysis(features))
    before, after = (
        float((scores.argmax(axis=1) == labels)[200:].mean()) for scores in (nodes @ means.T, found.scores)
    )
    assert after > before + 0.03
    rows, targets = found.joined()
    np.testing.assert_allclose(rows @ targets.T, found.scores, atol=1e-4)


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


def test_the_lengths_of_descriptions_change_no_score() -> None:
    graph = replace(block_graph(), train_mask=None)
    assert graph.target_features is not None
    lengths = np.array([[1], [100], [1e25]], np.float32)
    scaled = replace(graph, target_features=lengths * graph.target_features)
    np.testing.assert_allclose(start(scaled, 64).scores, start(graph, 64).scores, atol=1e-3)


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


@pytest.mark.parametrize("split", [-1, "a", 1.5, None])
def test_a_split_is_a_whole_number(split: object) -> None:
    subject = adar_deploy.pretrained(threads=1).subject()
    with pytest.raises(UsageError, match="split is"):
        evaluate("graph", [block_graph()], subject, [2], split)  # type: ignore[arg-type]


def test_the_start_of_one_node_is_not_its_rounding_errors() -> None:
    """The scores of a single node are equal, and nothing divides by the spread of their rounding errors."""
    graph = block_graph()
    lone = Graph(graph.rows(0, 1), np.zeros((2, 0), np.int64), target_features=graph.target_features)
    first = start(lone, 16)
    assert max(np.abs(first.nodes).max(), np.abs(first.targets).max()) < 100
    assert np.ptp(first.scores) < 1e-3
