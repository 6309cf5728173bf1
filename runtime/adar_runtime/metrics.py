"""How good the scores are: ROC-AUC for two classes, accuracy for more."""

import numpy as np

from adar_runtime.graph import Floats, Graph, Integers, Mask

SPLITS = ("train", "val", "test")


def split_metrics(graph: Graph, scores: Floats, split: int = 0) -> dict[str, float]:
    """The metric of scores [n, c] on each part of a split that has known labels worth measuring."""
    measured = {}
    for name in SPLITS:
        mask = graph.labelled(name, split)
        if mask is not None and graph.labels is not None:
            measured[name] = metric(scores[mask], graph.labels[mask])
    return {name: value for name, value in measured.items() if not np.isnan(value)}


def metric_name(classes: int) -> str:
    """What `metric` measures for this many classes."""
    return "roc_auc" if classes == 2 else "accuracy"


def metric(scores: Floats, labels: Integers) -> float:
    """ROC-AUC of scores [k, 2], accuracy of scores [k, c]; NaN where there is nothing to measure."""
    if scores.shape[1] == 2:
        return roc_auc(scores[:, 1] - scores[:, 0], labels == 1)
    return float(np.mean(scores.argmax(axis=1) == labels)) if len(labels) else float("nan")


def roc_auc(score: Floats, positive: Mask) -> float:
    """Probability that a positive scores above a negative, ties counting half (Mann–Whitney U)."""
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return float("nan")
    _, group, size = np.unique(score, return_inverse=True, return_counts=True)
    rank = np.cumsum(size) - (size - 1) / 2  # mean rank of each group of equal scores, from 1
    wins = rank[group][positive].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))
