"""Metrics: ROC-AUC for two classes, accuracy for more, R² for regression. Higher is better."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError
from adar_runtime.graph import ALL, PARTS, Floats, Graph, Integers, Mask


def check_same_classes(graphs: Sequence[Graph]) -> None:
    """Refuse graphs that describe other classes each: class 0 of one would count as class 0 of another."""
    described = {(graph.targets, graph.class_names) for graph in graphs if graph.target_features is not None}
    if len(described) > 1:
        raise GraphError(
            "the graphs describe different classes (target_x, class_names), and graphs with one label each "
            "belong together: give all of them the same classes in the same order"
        )


def scored_part(graphs: Sequence[Graph]) -> str:
    """The part to evaluate on: the test part or, if no graph has a test part, all labelled outputs."""
    return ALL if all(graph.test_mask is None for graph in graphs) else "test"


def split_metrics(
    graph: Graph, scores: Floats, split: int = 0, parts: Sequence[str] = PARTS
) -> dict[str, float]:
    """The metric of scores [k, c] on each part of a split. Parts where it is undefined are left out."""
    return pooled_metrics([graph], [scores], split, parts)


def pooled_metrics(
    graphs: Sequence[Graph], scores: Sequence[Floats], split: int = 0, parts: Sequence[str] = PARTS
) -> dict[str, float]:
    """Like `split_metrics`, over the outputs of several graphs together."""
    pooled = pooled_outputs(graphs, scores, split, parts)
    measured = {name: metric(*outputs) for name, outputs in pooled.items()}
    return {name: value for name, value in measured.items() if not np.isnan(value)}


def pooled_outputs(
    graphs: Sequence[Graph], scores: Sequence[Floats], split: int, parts: Sequence[str]
) -> dict[str, tuple[Floats, Any]]:
    """Scores and known labels of each part over all graphs. Parts without labels are left out."""
    pooled = {}
    for name in parts:
        known = [
            (score[mask], graph.labels[mask])
            for graph, score in zip(graphs, scores, strict=True)
            if (mask := graph.labelled(name, split)) is not None and graph.labels is not None
        ]
        if known:
            some_scores, some_labels = zip(*known, strict=True)
            pooled[name] = np.concatenate(some_scores), np.concatenate(some_labels)
    return pooled


def metric_name(targets: int, *, regression: bool = False) -> str:
    """Name of the metric for this number of targets."""
    if regression:
        return "r2"
    return "roc_auc" if targets == 2 else "accuracy"


def metric(scores: Floats, labels: Integers | Floats) -> float:
    """R² for regression targets [k, c], ROC-AUC for scores [k, 2], accuracy for scores [k, c].

    NaN if the metric is undefined, for example without labels.
    """
    if labels.dtype == np.float32:
        return r_squared(scores, labels.astype(np.float32, copy=False))
    if scores.shape[1] == 2:
        return roc_auc(scores[:, 1] - scores[:, 0], labels == 1)
    return float(np.mean(scores.argmax(axis=1) == labels)) if len(labels) else float("nan")


def r_squared(scores: Floats, values: Floats) -> float:
    """Explained share of the variance, over all columns together.

    Summed in float64: numpy adds float32 rows one after another, and over a million rows the rounding error
    is too large.
    """
    true = values.astype(np.float64)
    spread = float(((true - true.mean(axis=0)) ** 2).sum())
    return 1 - float(((scores - true) ** 2).sum()) / spread if spread else float("nan")


def roc_auc(score: Floats, positive: Mask) -> float:
    """Probability that a positive scores above a negative; ties count half (Mann–Whitney U)."""
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return float("nan")
    _, group, size = np.unique(score, return_inverse=True, return_counts=True)
    rank = np.cumsum(size) - (size - 1) / 2  # mean rank of each group of equal scores, from 1
    wins = rank[group][positive].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))


def roc_points(score: Floats, positive: Mask) -> tuple[Floats, Floats]:
    """The ROC curve: false-positive and true-positive rates at each score."""
    order = np.argsort(-score, kind="stable")
    last_of_equals = np.append(np.diff(score[order]) != 0, True)
    true_positives = np.cumsum(positive[order])[last_of_equals]
    false_positives = np.cumsum(~positive[order])[last_of_equals]
    return _rates(false_positives), _rates(true_positives)


def _rates(counts: Integers) -> Floats:
    return np.append(0.0, counts / max(1, counts[-1])).astype(np.float32)


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics in which every class counts the same, however many labels it has.

    Attributes:
        balanced_accuracy: The mean over classes of the share of the class that was predicted correctly.
        macro_f1: The mean over classes of F1, the harmonic mean of precision and recall.
        imbalance: Labels of the largest class per label of the smallest one.
    """

    balanced_accuracy: float
    macro_f1: float
    imbalance: float

    @classmethod
    def of(cls, scores: Floats, labels: Integers) -> "ClassMetrics":
        """Measure scores [k, c] against labels [k]. Classes without labels and predictions do not count."""
        guesses, classes = scores.argmax(axis=1), max(scores.shape[1], int(labels.max()) + 1)
        groups = labels[guesses == labels], labels, guesses
        hits, of_class, predicted = (np.bincount(group, minlength=classes) for group in groups)
        known, seen = of_class > 0, of_class + predicted > 0
        recall = hits[known] / of_class[known]
        f1 = 2 * hits[seen] / (of_class + predicted)[seen]
        return cls(float(recall.mean()), float(f1.mean()), float(of_class.max() / of_class[known].min()))

    def to_dict(self) -> dict[str, float]:
        """The JSON object."""
        return asdict(self)


def confusion(predicted: Integers, labels: Integers, classes: int) -> Integers:
    """Confusion matrix [c, c]: rows are the labels, columns the predictions."""
    counts: Integers = np.bincount(labels * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes)
