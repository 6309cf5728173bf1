"""Standard errors and intervals, against published values, scipy and resampling."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import r2_score, roc_auc_score

from adar_runtime.evaluation.metrics import metric
from adar_runtime.evaluation.uncertainty import (
    auc_components,
    auc_error,
    estimate,
    grouped_error,
    r_squared_error,
    squared_spread,
    wilson,
)


@pytest.mark.parametrize(("correct", "count"), [(0, 7), (2, 7), (7, 7), (45, 50), (371, 400)])
def test_wilson_is_scipys(correct: int, count: int) -> None:
    known = binomtest(correct, count).proportion_ci(method="wilson")
    assert wilson(correct / count, count) == pytest.approx((known.low, known.high), abs=1e-6)


def noisy(seed: int, count: int, shift: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    positive = random.random(count) < 0.3
    return np.round(random.normal(size=count) + shift * positive, 1).astype(np.float32), positive


def test_delongs_variance_by_its_definition() -> None:
    """The double loop over pairs, ties included."""
    margin, positive = noisy(0, 60)
    high, low = margin[positive], margin[~positive]
    wins = (high[:, None] > low) + 0.5 * (high[:, None] == low)
    expected = np.var(wins.mean(axis=1), ddof=1) / len(high) + np.var(wins.mean(axis=0), ddof=1) / len(low)
    assert auc_error(margin, positive) == pytest.approx(math.sqrt(expected))
    components = auc_components(margin, positive)
    area = roc_auc_score(positive, margin)
    assert components[positive].mean() == pytest.approx(area)
    assert components[~positive].mean() == pytest.approx(area)


def test_the_error_of_a_difference_of_areas_is_that_of_resampling() -> None:
    first, positive = noisy(1, 500)
    second = first + np.random.default_rng(2).normal(0, 0.5, len(first)).astype(np.float32)
    random, found = np.random.default_rng(3), []
    for _ in range(400):
        drawn = random.integers(0, len(first), len(first))
        areas = [roc_auc_score(positive[drawn], margin[drawn]) for margin in (first, second)]
        found.append(areas[0] - areas[1])
    difference = auc_components(first, positive) - auc_components(second, positive)
    assert grouped_error(difference, positive) == pytest.approx(np.std(found), rel=0.15)


def test_the_error_of_r_squared_is_that_of_resampling() -> None:
    random = np.random.default_rng(4)
    labels = random.normal(size=(400, 2)).astype(np.float32)
    scores = (labels + random.standard_t(5, labels.shape)).astype(np.float32)
    errors = ((scores - labels) ** 2).sum(axis=1)
    found = []
    for _ in range(400):
        drawn = random.integers(0, len(labels), len(labels))
        found.append(r2_score(labels[drawn], scores[drawn], multioutput="variance_weighted"))
    assert r_squared_error(errors, squared_spread(labels)) == pytest.approx(np.std(found), rel=0.15)


@pytest.mark.parametrize("kind", ["accuracy", "roc_auc", "r2"])
def test_intervals_cover_the_truth_19_times_in_20(kind: str) -> None:
    random = np.random.default_rng(5)

    def sample(count: int) -> tuple[np.ndarray, np.ndarray]:
        if kind == "r2":
            labels = random.normal(size=(count, 1)).astype(np.float32)
            return (labels + 0.5 * random.normal(size=labels.shape)).astype(np.float32), labels
        classes = 2 if kind == "roc_auc" else 4
        labels = random.integers(0, classes, count)
        return (random.normal(size=(count, classes)) + 1.2 * np.eye(classes)[labels]).astype(
            np.float32
        ), labels

    truth = metric(*sample(200_000))
    inside = 0
    for _ in range(400):
        found = estimate(*(drawn := sample(120)))
        assert found.value == pytest.approx(metric(*drawn), abs=1e-6)
        inside += found.low <= truth <= found.high
    assert 0.91 <= inside / 400 <= 0.985


def test_small_and_perfect_samples_are_uncertain() -> None:
    third = estimate(np.eye(3, dtype=np.float32)[[0, 0, 0]], np.array([0, 1, 2]))
    assert (round(third.low, 2), round(third.high, 2), third.count) == (0.06, 0.79, 3)
    perfect = estimate(np.array([[0, 1], [1, 0], [1, 0]], np.float32), np.array([1, 0, 0]))
    assert perfect.value == 1
    assert perfect.low < 0.3
    assert math.isnan(estimate(np.zeros((3, 2), np.float32), np.zeros(3, np.int64)).value)  # one class only
