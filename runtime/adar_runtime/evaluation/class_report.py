"""Precision, recall and F1 of each class, and whether probabilities match the correct predictions."""

import math
from typing import Any

import numpy as np

from adar_runtime.evaluation.metrics import confusion
from adar_runtime.evaluation.uncertainty import wilson
from adar_runtime.graph import Floats, Integers

BINS = 10  # of the confidence


def class_report(scores: Floats, labels: Integers) -> list[dict[str, Any]]:
    """A row for each class. A ratio without any cases is None.

    Args:
        scores: [k, c], before softmax.
        labels: [k] classes.

    Examples:
        >>> rows = class_report(np.eye(2)[[0, 0, 1]], np.array([0, 1, 1]))
        >>> [(row["precision"], row["recall"], round(row["f1"], 2), row["labels"]) for row in rows]
        [(0.5, 1.0, 0.67, 1), (1.0, 0.5, 0.67, 2)]
    """
    counts = confusion(scores.argmax(axis=1), labels, scores.shape[1])
    right, of_label, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    return [
        {
            "labels": int(of_label[i]),
            "predicted": int(predicted[i]),
            "precision": _ratio(right[i], predicted[i]),
            "recall": _ratio(right[i], of_label[i]),
            "recall_interval": _interval(right[i], of_label[i]),
            "f1": _ratio(2 * right[i], of_label[i] + predicted[i]),
        }
        for i in range(len(counts))
    ]


def _ratio(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None


def _interval(part: Any, whole: Any) -> list[float] | None:
    return list(wilson(float(part / whole), int(whole))) if whole else None


def reliability(scores: Floats, labels: Integers) -> dict[str, Any]:
    """The share of correct predictions by confidence, and the expected calibration error (ECE).

    Confidence is the largest probability. The ECE is the mean distance between confidence and share of
    correct predictions over the bins, weighted by their counts.

    Examples:
        >>> sure = np.array([[9.0, 0.0]] * 4)
        >>> round(reliability(sure, np.array([0, 0, 1, 1]))["ece"], 2)
        0.5
    """
    powers = np.exp((scores - scores.max(axis=1, keepdims=True)).astype(np.float64))
    confidence = powers.max(axis=1) / powers.sum(axis=1)
    right = scores.argmax(axis=1) == labels
    bin_of = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    bins: list[dict[str, Any]] = []
    for index in range(BINS):
        inside = bin_of == index
        count = int(inside.sum())
        if count:
            share = float(right[inside].mean())
            bins.append(
                {
                    "confidence": float(confidence[inside].mean()),
                    "correct": share,
                    "interval": list(wilson(share, count)),
                    "count": count,
                }
            )
    gaps = [one["count"] * abs(one["confidence"] - one["correct"]) for one in bins]
    return {"bins": bins, "ece": math.fsum(gaps) / max(1, len(labels))}
