import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, f1_score, r2_score, roc_auc_score

from adar_runtime import Graph
from adar_runtime.evaluation.metrics import (
    ClassMetrics,
    metric,
    metric_name,
    r_squared,
    roc_auc,
    split_metrics,
)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2))
def test_roc_auc_is_scikit_learns(pairs: list[tuple[int, bool]]) -> None:
    score, positive = (np.array(column) for column in zip(*pairs, strict=True))
    if positive.all() or not positive.any():
        assert np.isnan(roc_auc(score.astype(np.float32), positive))
    else:
        assert roc_auc(score.astype(np.float32), positive) == pytest.approx(roc_auc_score(positive, score))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1), st.integers(6, 8))
def test_metrics_of_classes_are_scikit_learns(pairs: list[tuple[int, int]], classes: int) -> None:
    labels, guesses = (np.array(column) for column in zip(*pairs, strict=True))
    found = ClassMetrics.of(np.eye(classes, dtype=np.float32)[guesses], labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about guesses of classes without labels
        assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(labels, guesses))
        assert found.macro_f1 == pytest.approx(f1_score(labels, guesses, average="macro"))
    sizes = np.bincount(labels)
    assert found.imbalance == sizes.max() / sizes[sizes > 0].min()


def test_accuracy_where_there_are_more_than_two_classes() -> None:
    scores = np.eye(3, dtype=np.float32)
    assert metric_name(3) == "accuracy"
    assert metric(scores, np.array([0, 1, 1])) == pytest.approx(2 / 3)


def test_splits_with_nothing_to_measure_are_left_out() -> None:
    graph = Graph(
        features=np.ones((4, 1)),
        edge_index=np.zeros((2, 0), np.int64),
        labels=np.array([0, 1, 0, -1]),
        val_mask=np.array([True, False, False, False]),  # one class only
        test_mask=np.array([True, True, False, True]),
    )
    assert split_metrics(graph, np.array([[1, 0], [0, 1], [0, 0], [0, 0]], np.float32)) == {"test": 1.0}


@pytest.mark.parametrize("columns", [1, 2])
def test_r_squared_of_a_million_large_numbers(columns: int) -> None:
    random = np.random.default_rng(0)
    values = random.normal(2000, 5, (1_000_000, columns)).astype(np.float32)
    scores = (values + random.normal(0, 10, values.shape)).astype(np.float32)
    expected = r2_score(values.astype(np.float64), scores.astype(np.float64), multioutput="variance_weighted")
    assert r_squared(scores, values) == pytest.approx(expected, abs=1e-6)
