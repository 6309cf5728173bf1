"""Scores of classes, calibration and the simple baseline, against scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import precision_recall_fscore_support

from adar_runtime import Graph, SparseRows
from adar_runtime.evaluation.class_report import class_report, reliability
from adar_runtime.evaluation.linear_baseline import linear_baseline
from adar_runtime.graph.synthetic import blocks
from adar_train.data.splits import with_split


def test_precision_recall_and_f1_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    scores, labels = random.normal(size=(300, 4)), random.integers(0, 4, 300)
    expected = precision_recall_fscore_support(labels, scores.argmax(axis=1))
    rows = class_report(scores, labels)
    for name, values in zip(("precision", "recall", "f1", "labels"), expected, strict=True):
        assert [row[name] for row in rows] == pytest.approx(list(values))
    assert all(row["recall_interval"][0] < row["recall"] < row["recall_interval"][1] for row in rows)


def test_a_class_without_labels_or_predictions() -> None:
    rows = class_report(np.eye(3)[[0, 0, 1]], np.array([0, 1, 1]))
    assert rows[2] == {
        "labels": 0,
        "predicted": 0,
        "precision": None,
        "recall": None,
        "recall_interval": None,
        "f1": None,
    }


def test_calibrated_probabilities_have_a_small_error() -> None:
    random = np.random.default_rng(0)
    share = random.uniform(0.5, 1, 20_000)
    labels = (random.random(20_000) > share).astype(np.int64)  # class 0 with this probability
    calibrated = np.log(np.stack([share, 1 - share], axis=1))
    assert reliability(calibrated, labels)["ece"] < 0.01
    found = reliability(5 * calibrated, labels)
    assert found["ece"] > 0.1
    assert sum(one["count"] for one in found["bins"]) == 20_000
    assert all(one["correct"] < one["confidence"] for one in found["bins"][1:])


@pytest.fixture(scope="module")
def graph() -> Graph:
    return with_split(blocks(nodes=600, seed=1), 0)


def test_the_baseline_learns_from_neighbours(graph: Graph) -> None:
    found = linear_baseline(graph, "test")
    rows, train, test = graph.rows(0, graph.nodes), graph.train_mask[0], graph.test_mask[0]
    alone = RidgeClassifier().fit(rows[train], graph.labels[train]).score(rows[test], graph.labels[test])
    assert found.value > alone + 0.05
    assert found.low < found.value < found.high
    assert found.count == test.sum()


def test_sparse_wide_and_unsplit_graphs(graph: Graph) -> None:
    rows = np.zeros((graph.nodes, 900), np.float32)
    rows[:, : graph.width] = graph.rows(0, graph.nodes)
    n, f = rows.shape
    columns = np.tile(np.arange(f), n)
    sparse = SparseRows(np.arange(n + 1) * f, columns, rows.reshape(-1), (n, f))
    dense_wide, sparse_wide = (replace(graph, features=x, target_features=None) for x in (rows, sparse))
    assert linear_baseline(sparse_wide, "test").value == pytest.approx(
        linear_baseline(dense_wide, "test").value, abs=0.02
    )
    assert linear_baseline(replace(graph, train_mask=None, val_mask=None, test_mask=None), "all") is None
