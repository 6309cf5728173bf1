"""The closed-form start of the pretrained model."""

import tracemalloc
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
from adar_runtime.in_context.candidates import SmoothedNodes, candidates, described, plain_guess
from adar_runtime.in_context.discriminant import SHRINKAGE, Analysis, Joined
from adar_runtime.in_context.ensemble import BASELINE_PENALTY, Choice, Columns, Ensemble
from adar_runtime.in_context.experts import TWICE, UNSMOOTHED, estimated, experts
from adar_runtime.in_context.features import UnitRows, leading_directions, unit_rows
from adar_runtime.in_context.scores import LinearScores, spread
from adar_runtime.in_context.start import (
    RESTARTS,
    ROUNDS,
    SmoothedFeatures,
    _reduced,
    known_labels,
    of_split,
    restarted,
    start,
)
from tests.in_context_graphs import block_graph, unrelated_graph


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


def test_the_first_of_many_classes_are_not_preferred() -> None:
    """With more classes than columns, only the first ones kept their scores."""
    graph = replace(block_graph(400, 20, 40), target_features=None)
    features, known = SmoothedFeatures.of(graph, 16), known_labels(graph)
    linear, _ = features._ensemble.linear(known, 20, features._ensemble.choice(known, 20))
    late = (graph.labels >= 16) & (known < 0)  # type: ignore[operator]
    found, expected = (
        float((scores.argmax(axis=1) == graph.labels)[late].mean())
        for scores in (features.start(known, 20).scores, linear.scores)
    )
    assert found > expected - 0.05 > 0.3


def test_more_classes_than_columns_keep_scores_that_vary_in_few_directions() -> None:
    """With equal features, all nodes have the scores of the class sizes. Others were added to them."""
    random = np.random.default_rng(0)
    sizes, nodes = np.repeat(np.arange(20), np.arange(1, 21)), np.ones((210, 6))
    graph = Graph(
        nodes,
        random.integers(0, 210, (2, 600)),
        labels=sizes,
        train_mask=np.ones(210, np.bool_),
        target_features=random.standard_normal((20, 6)),
    )
    few, many = (start(graph, columns).scores for columns in (16, 32))
    np.testing.assert_allclose(np.corrcoef(few[0], many[0])[0, 1], 1, atol=1e-3)
    described = replace(graph, labels=None, train_mask=None)
    assert np.ptp(start(described, 16).scores) < 1e-3  # nothing is known: they were rounding errors


def test_the_start_with_few_nodes_and_many_classes_stays_small() -> None:
    """No array has the square of the number of classes."""
    random, classes = np.random.default_rng(0), 2_000
    edges, described = random.integers(0, 20, (2, 40)), random.standard_normal((classes, 4))
    graph = Graph(random.standard_normal((20, 4)), edges, target_features=described)
    tracemalloc.start()
    try:
        found = start(graph, 16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * classes**2
    assert found.nodes.shape == (20, 16)


@pytest.mark.parametrize("nodes", [60, 2_000], ids=["few", "many, whose mean has large errors"])
def test_nodes_with_equal_features_get_equal_scores(nodes: int) -> None:
    """The differences of their smoothed features are rounding errors."""
    graph = block_graph(nodes)
    equal = replace(graph, features=np.tile(graph.rows(0, 1), (nodes, 1)), target_features=None)
    scores = start(equal, 32).scores
    assert np.ptp(scores, axis=0).max() < 1e-5 * np.abs(scores).max()


@pytest.mark.parametrize("number", [0, 1, 2], ids=["class means", "ridge 0.1", "ridge 1"])
def test_leave_one_out_is_what_leaving_out_gives(number: int) -> None:
    """The closed form against a computation without each label."""
    graph = replace(block_graph(), target_features=None)
    labels, unit = known_labels(graph), unit_rows(graph.rows(0, graph.nodes))
    middle = unit.mean(axis=0)

    def candidate(known: np.ndarray) -> Any:
        nodes = SmoothedNodes(1.0, unit - middle, middle)
        return list(candidates(nodes, known, graph.targets, None))[number]

    for position, node in enumerate(np.flatnonzero(labels >= 0)[:5]):
        without = labels.copy()
        without[node] = -1
        expected = candidate(without).scores.of(unit - middle)[node]
        np.testing.assert_allclose(candidate(labels).left_out[position], expected, atol=1e-4)


def test_the_start_has_the_weighted_scores_of_its_experts() -> None:
    graph = block_graph()
    features = SmoothedFeatures.of(graph, graph.width)
    found = experts(features.smoothed, known_labels(graph), graph.targets, features.descriptions)
    rows = {nodes.restart: nodes.rows for nodes in features.smoothed}
    assert len(found) == 3 * (len(RESTARTS) - 1)  # no expert uses the features that are smoothed twice
    assert all(spread(each.of(rows[each.restart])) == pytest.approx(1, abs=1e-3) for each in found)
    weights = np.linspace(0.01, 0.1, len(found))
    columns = Columns.of(features.smoothed, found, weights.tolist())
    placed = Joined(columns.nodes, columns.targets(found, weights))
    expected = sum(w * each.of(rows[each.restart]) for w, each in zip(weights, found, strict=True))
    np.testing.assert_allclose(placed.scores, expected, atol=1e-4)
    nodes, targets = _reduced(placed.nodes, placed.targets, 16)
    np.testing.assert_allclose(nodes @ targets.T, expected, atol=1e-4)


@pytest.mark.parametrize(("rows", "columns"), [(12, 16), (30, 16), (60, 16)], ids=["all", "few", "many"])
def test_fewer_columns_keep_scores_and_the_directions_of_most_variance(rows: int, columns: int) -> None:
    random = np.random.default_rng(rows)
    scales = 0.8 ** np.arange(100)
    nodes, targets = ((random.standard_normal((n, 100)) * scales).astype(np.float32) for n in (rows, 3))
    few, few_targets = _reduced(nodes, targets, columns)
    np.testing.assert_allclose(few @ few_targets.T, nodes @ targets.T, atol=1e-4)
    basis = np.linalg.qr(targets.T)[0]
    rest = nodes - nodes @ basis @ basis.T
    kept = np.linalg.svd(rest, compute_uv=False)[: columns - 3]  # beside the directions of the targets
    expected = np.square(kept).sum() + np.square(nodes @ basis).sum()
    assert np.square(few).sum() == pytest.approx(expected, rel=1e-4)


def test_smoothing_restarts_at_the_features_in_every_round() -> None:
    """The weighted sum of rounds against one round after the other: H = (1 - a) S H + a X."""
    graph = block_graph()
    neighbours, rows = Neighbours.in_graph(graph), graph.rows(0, graph.nodes)
    smoothed = restarted(neighbours, rows)
    np.testing.assert_allclose(smoothed.pop(TWICE), Smoothing(neighbours, 2)(rows), atol=1e-5)
    for share, found in smoothed.items():
        expected = rows
        for _ in range(ROUNDS):
            expected = (1 - share) * Smoothing(neighbours, 1)(expected) + share * rows
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert 1.0 in RESTARTS  # the features themselves


def two_clusters(sizes: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Centred nodes near two points, and the cluster of each node."""
    random, labels = np.random.default_rng(0), np.repeat([0, 1], sizes)
    points = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])[labels]
    points = points + 0.3 * random.standard_normal(points.shape)
    return (points - points.mean(axis=0)).astype(np.float32), labels


def linear(targets: list[list[float]]) -> LinearScores:
    return LinearScores(1.0, np.array(targets, np.float32), np.zeros(len(targets), np.float32))


UNKNOWN = np.full(200, -1)


def test_estimated_targets_move_from_poor_descriptions_to_the_clusters() -> None:
    nodes, labels = two_clusters((100, 100))
    poor = linear([[1, -0.2, 2], [0.4, 0.6, -2]])
    found = estimated(poor, nodes, UNKNOWN)
    before, after = (float((each.of(nodes).argmax(axis=1) == labels).mean()) for each in (poor, found))
    assert after > before + 0.05


def test_a_large_class_becomes_more_likely() -> None:
    nodes, labels = two_clusters((180, 20))
    good = linear([[1, -1, 0], [-1, 1, 0]])
    found = estimated(good, nodes, UNKNOWN)
    assert found.bias[0] > found.bias[1]
    opposite = estimated(good, nodes, 1 - labels)  # labels that say the opposite
    assert opposite.bias[0] < opposite.bias[1]


def test_descriptions_count_less_in_directions_of_much_variance() -> None:
    features, labels = stretched_clusters()
    nodes = SmoothedNodes(0.15, features, np.zeros(3, np.float32))
    means = np.array([[1, 1, 0], [-1, -1, 0]], np.float32)
    found = described(nodes, means).of(features)
    before, after = (
        float((scores.argmax(axis=1) == labels).mean()) for scores in (features @ means.T, found)
    )
    assert after > before + 0.03


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


def test_hidden_labels_decide_how_much_estimated_classes_count() -> None:
    """Estimating classes again follows the clusters, which is wrong if the classes cut through them."""
    shares = {}
    for along in (True, False):
        found = []
        for seed in range(6):
            graph = crossed_clusters(seed, along=along)
            weights = start(graph, 16).choice.weights
            guesses, estimates = weights[0::2].sum(), weights[1::2].sum()
            found.append(estimates / (guesses + estimates))
        shares[along] = float(np.mean(found))
    assert shares[True] > 0.45
    assert shares[False] < 0.35


def test_the_features_that_predict_hidden_labels_count() -> None:
    """Neighbours are random here, so experts that smooth them in predict hidden labels badly."""
    graph = crossed_clusters(0, along=True)
    edges = np.random.default_rng(0).integers(0, graph.nodes, (2, 20 * graph.nodes))
    features = SmoothedFeatures.of(replace(graph, edge_index=edges), graph.width)
    weights = Ensemble(features.smoothed, None).choice(known_labels(graph), graph.targets).weights
    unsmoothed = weights[:2].sum() / weights.sum()
    assert RESTARTS[0] == UNSMOOTHED
    assert unsmoothed > 0.6


def test_without_labels_all_experts_are_smoothed_and_count_alike() -> None:
    graph = replace(block_graph(), train_mask=None)
    features = SmoothedFeatures.of(graph, graph.width)
    found = experts(features.smoothed, known_labels(graph), graph.targets, features.descriptions)
    assert [each.restart for each in found] == list(RESTARTS[1:-1])
    choice = features.start(known_labels(graph), graph.targets).choice
    assert (len(choice.weights), choice.plain) == (1, 0)


def test_the_plain_guess_counts_less_where_clusters_help() -> None:
    """Five labels of each of two clusters in much noise: the other nodes show where the clusters are."""
    shares = []
    for seed in range(10):
        random, labels = np.random.default_rng(seed), np.arange(400) % 2
        features = random.standard_normal((400, 12)).astype(np.float32)
        features[:, 0] += 1.5 * (2 * labels - 1)
        known = np.arange(400)[None] < 10
        graph = Graph(features, np.zeros((2, 0), np.int64), labels=labels, train_mask=known)
        shares.append(start(graph, 16).choice.plain)
    assert np.mean(shares) < 0.4


def test_the_plain_guess_is_mixed_in_with_its_share() -> None:
    """The scores are those of both sides at the same spread, weighted with the share."""
    graph = replace(block_graph(), target_features=None)
    features, labels = SmoothedFeatures.of(graph, graph.width), known_labels(graph)
    ensemble = Ensemble(features.smoothed, None)
    weights = ensemble.choice(labels, graph.targets).weights
    rows = {nodes.restart: nodes.rows for nodes in features.smoothed}
    plain = sum(each.of(rows[each.restart]) for each in plain_guess(features.smoothed, labels, graph.targets))
    alone, both = (
        ensemble.linear(labels, graph.targets, Choice(weights, share))[0].scores for share in (0, 0.3)
    )
    expected = 0.7 * alone / spread(alone) + 0.3 * plain / spread(plain)
    np.testing.assert_allclose(both, expected, atol=1e-3)


def test_a_free_baseline_answers_where_hidden_labels_are_predicted_by_chance() -> None:
    graph = unrelated_graph()
    features, labels = SmoothedFeatures.of(graph, graph.width), known_labels(graph)
    found = features.start(labels, graph.targets)
    assert found.choice.is_chance
    [nodes] = (each for each in features.smoothed if each.restart == TWICE)
    parts = candidates(
        nodes, labels, graph.targets, None, [BASELINE_PENALTY]
    )  # class means and ridge regression
    expected = sum(part.scores.normalised(nodes.rows).of(nodes.rows) for part in parts)
    np.testing.assert_allclose(
        found.scores / spread(found.scores), expected / spread(expected), rtol=1e-3, atol=1e-3
    )
    assert not start(replace(block_graph(), target_features=None), 24).choice.is_chance


def test_one_label_of_each_class_counts_more_where_neighbours_are_smoothed_in() -> None:
    mask = np.arange(240) < 3
    graph = replace(block_graph(), train_mask=mask, target_features=None)
    weights = start(graph, 16).choice.weights
    assert list(weights) == [0.5, 0.5, 1, 1, 1.4, 1.4, 2, 2]
    assert len(start(replace(block_graph(), train_mask=mask), 16).choice.weights) == 1  # with descriptions


def test_equal_targets_stay_finite() -> None:
    nodes, _ = two_clusters((30, 30))
    unknown, zero = np.full(60, -1), np.zeros((60, 3), np.float32)
    equal = linear([[0, 0, 0], [0, 0, 0]])
    for rows in (nodes, zero):
        assert np.isfinite(estimated(equal, rows, unknown).targets).all()
        assert np.isfinite(described(SmoothedNodes(0.15, rows, rows[0]), equal.targets).targets).all()
        columns = np.concatenate([rows, np.ones((60, 1), np.float32)], axis=1)
        found, _ = Joined(columns, np.zeros((2, 4), np.float32)).analysed(Analysis(rows), unknown)
        assert np.isfinite(found.scores).all()


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
    guess = Joined(nodes, np.array([[1, 1, 0, 0], [-1, -1, 0, 0]], np.float32))
    found, _ = guess.analysed(Analysis(features), np.where(np.arange(400) < 200, labels, -1))
    before, after = (float((each.scores.argmax(axis=1) == labels)[200:].mean()) for each in (guess, found))
    assert after > before + 0.03


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
