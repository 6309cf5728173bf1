"""The classes of similar nodes, against a plain loop."""

import numpy as np
import pytest

from adar_runtime.in_context import similar_nodes
from adar_runtime.in_context.discriminant import Joined
from adar_runtime.in_context.scores import spread
from adar_runtime.in_context.similar_nodes import LEAST_WEIGHT, SIMILAR, ComparedNodes

K, C = 6, 3


def problem(nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, directions and classes of random nodes."""
    random = np.random.default_rng(nodes)
    psi = random.dirichlet(np.ones(C), nodes).astype(np.float32)
    features, root = random.standard_normal((nodes, K)), random.standard_normal((K, K))
    return features.astype(np.float32), root.astype(np.float32), psi


@pytest.mark.parametrize("nodes", [2, 3, SIMILAR, 2 * SIMILAR])
def test_the_shares_are_those_of_a_loop(nodes: int) -> None:
    features, root, psi = problem(nodes)
    found = ComparedNodes.of(features, root, psi).shares(features, np.arange(nodes))
    rows = features.astype(np.float64) @ root
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for node in range(nodes):
        others = sorted((float(rows[node] @ rows[other]), other) for other in range(nodes) if other != node)
        nearest = others[::-1][: SIMILAR + 1]  # the last one is left out
        weights = [cosine - nearest[-1][0] for cosine, _ in nearest]
        pairs = zip(weights, nearest, strict=True)
        total = sum(weight * psi[other] for weight, (_, other) in pairs)
        np.testing.assert_allclose(found[node], total / (sum(weights) + LEAST_WEIGHT), atol=1e-5)


def test_equally_similar_nodes_say_nothing() -> None:
    """Which of them are the nearest is a matter of rounding."""
    psi = np.eye(C, dtype=np.float32)[np.arange(60) % C]
    features = np.ones((60, K), np.float32)
    found = ComparedNodes.of(features, np.eye(K, dtype=np.float32), psi).shares(features, np.arange(60))
    assert np.abs(found).max() < 1e-3


def test_one_node_has_no_similar_node() -> None:
    features, root, psi = problem(1)
    assert not ComparedNodes.of(features, root, psi).shares(features, np.arange(1)).any()


def test_the_order_of_the_nodes_does_not_matter() -> None:
    features, root, psi = problem(100)
    order = np.random.default_rng(0).permutation(100)
    first = ComparedNodes.of(features, root, psi).shares(features, np.arange(100))
    other = ComparedNodes.of(features[order], root, psi[order]).shares(features[order], np.arange(100))
    np.testing.assert_allclose(other, first[order], atol=1e-5)


def test_large_graphs_are_compared_with_drawn_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similar_nodes, "LARGEST", 50)
    monkeypatch.setattr(similar_nodes, "ROWS", 30)  # several blocks
    features, root, psi = problem(200)
    compared = ComparedNodes.of(features, root, psi)
    assert len(set(compared.numbers.tolist())) == 50
    np.testing.assert_array_equal(compared.psi, psi[compared.numbers])
    apart = [compared.shares(features[[i]], np.array([i])) for i in range(200)]
    np.testing.assert_allclose(compared.shares(features, np.arange(200)), np.concatenate(apart), atol=1e-5)


def test_a_class_in_two_places_is_found() -> None:
    """One class is on both sides of the other: no direction separates them, similar nodes do."""
    random, labels = np.random.default_rng(0), np.arange(400) % 2
    angles = np.where(labels == 0, 0, np.where(np.arange(400) % 4 == 1, 1, -1)) + 0.2 * random.normal(
        size=400
    )
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    is_wrong = random.random(400) < 0.3
    psi = np.eye(2, dtype=np.float32)[np.where(is_wrong, 1 - labels, labels)]  # guesses, 30 % of them wrong
    shares = ComparedNodes.of(features, np.eye(2, dtype=np.float32), psi).shares(features, np.arange(400))
    assert (shares.argmax(axis=1) == labels).mean() > 0.9


def test_shares_are_added_to_scores_of_spread_one() -> None:
    features, _, psi = problem(50)
    first = Joined(
        np.concatenate([features, np.ones((50, 1), np.float32)], axis=1), problem(C)[0] @ np.eye(K, K + 1)
    )
    found = first.with_shares(psi)
    expected = first.scores / spread(first.scores) + psi - 1 / C
    np.testing.assert_allclose(found.scores / spread(first.scores), expected, atol=1e-4)
    np.testing.assert_array_equal(found.nodes[:, -1], 1)
