"""Standard errors and 95 % intervals of the metrics: binomial, DeLong, and the delta method for R²."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from adar_runtime.evaluation.metrics import ClassMetrics, pooled_outputs
from adar_runtime.graph import Floats, Graph, Integers, Mask

Z = 1.959964  # a normal variable is within ± Z standard deviations with a probability of 95 %


@dataclass(frozen=True)
class Estimate:
    """A metric with its 95 % interval and the number of labels behind it, beside metrics of the classes."""

    value: float
    low: float
    high: float
    count: int
    classes: ClassMetrics | None = None  # None for regression

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {"interval": [self.low, self.high], "count": self.count}


def pooled_estimates(
    graphs: Sequence[Graph], scores: Sequence[Floats], split: int, parts: Sequence[str]
) -> dict[str, Estimate]:
    """The metric of each part over several graphs together, with its interval."""
    pooled = pooled_outputs(graphs, scores, split, parts)
    found = {
        name: replace(estimate(*outputs), classes=_classes(*outputs)) for name, outputs in pooled.items()
    }
    return {name: one for name, one in found.items() if not math.isnan(one.value)}


def _classes(scores: Floats, labels: Integers | Floats) -> ClassMetrics | None:
    return (
        None if labels.dtype == np.float32 else ClassMetrics.of(scores, labels.astype(np.int64, copy=False))
    )


def mean_class_metrics(found: Sequence[Estimate]) -> ClassMetrics | None:
    """The mean of the class metrics of several graphs; None for regression."""
    known = [one.classes for one in found if one.classes is not None]
    if not known:
        return None
    columns = zip(*(astuple(one) for one in known), strict=True)
    return ClassMetrics(*(sum(column) / len(known) for column in columns))


def mean_estimate(found: Sequence[Estimate]) -> Estimate:
    """The mean of the metrics of several graphs, with its interval."""
    if len(found) == 1:
        return found[0]
    value = sum(one.value for one in found) / len(found)
    below = math.hypot(*(one.value - one.low for one in found)) / len(found)
    above = math.hypot(*(one.high - one.value for one in found)) / len(found)
    return Estimate(value, value - below, value + above, sum(one.count for one in found))


def estimate(scores: Floats, labels: Integers | Floats) -> Estimate:
    """The metric of `adar_runtime.evaluation.metrics.metric`, with its interval."""
    count = len(labels)
    nothing = Estimate(math.nan, math.nan, math.nan, count)
    values = output_values(scores, labels)
    if not count:
        return nothing
    if labels.dtype == np.float32:
        spread = squared_spread(labels)
        if not spread.sum():
            return nothing
        value = 1 - float(values.sum()) / float(spread.sum())
        error = r_squared_error(values, spread)
        return Estimate(value, value - Z * error, min(1.0, value + Z * error), count)
    if scores.shape[1] != 2:
        value = float(values.mean(dtype=np.float64))
        return Estimate(value, *wilson(value, count), count)
    positive = labels == 1
    if positive.all() or not positive.any():
        return nothing
    value = float(auc_components(values, positive)[positive].mean())
    return Estimate(value, *auc_interval(value, auc_error(values, positive), positive), count)


def output_values(scores: Floats, labels: Integers | Floats) -> Floats:
    """What each output contributes to the metric, [k].

    Accuracy: 1 if correct, else 0. ROC-AUC: the margin of class 1. R²: the squared error.
    """
    if labels.dtype == np.float32:
        error: Floats = ((scores - labels.astype(np.float64)) ** 2).sum(axis=1)
        return error
    if scores.shape[1] == 2:
        margin: Floats = scores[:, 1] - scores[:, 0]
        return margin
    return (scores.argmax(axis=1) == labels).astype(np.float32)


def squared_spread(labels: Integers | Floats) -> Floats:
    """The squared distance of each regression target from the mean target, [k]."""
    true = labels.astype(np.float64)
    spread: Floats = ((true - true.mean(axis=0)) ** 2).sum(axis=1)
    return spread


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share among `count` trials.

    Examples:
        >>> [round(bound, 3) for bound in wilson(0.5, 10)]
        [0.237, 0.763]
    """
    centre = share + Z**2 / (2 * count)
    half = Z * math.sqrt(max(0.0, share * (1 - share)) / count + Z**2 / (4 * count**2))
    scale = 1 + Z**2 / count
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def auc_components(margin: Floats, positive: Mask) -> Floats:
    """DeLong's components, [k]: the share of the other class that an output is ranked correctly against.

    The mean over positives, and the mean over negatives, is the ROC-AUC. Ties count half.
    """
    low, high = np.sort(margin[~positive]), np.sort(margin[positive])
    components: Any = np.empty(len(margin))
    below = np.searchsorted(low, margin[positive], "left") + np.searchsorted(low, margin[positive], "right")
    above = np.searchsorted(high, margin[~positive], "left") + np.searchsorted(
        high, margin[~positive], "right"
    )
    components[positive] = below / (2 * max(1, len(low)))
    components[~positive] = 1 - above / (2 * max(1, len(high)))
    shares: Floats = components
    return shares


def grouped_error(components: Floats, positive: Mask) -> float:
    """The standard error of a ROC-AUC, or of a difference of two, from (differences of) components."""
    groups = [components[positive], components[~positive]]
    if min(map(len, groups)) < 2:
        return math.inf
    return math.sqrt(sum(float(np.var(group, ddof=1)) / len(group) for group in groups))


def auc_error(margin: Floats, positive: Mask) -> float:
    """DeLong's standard error of the ROC-AUC; infinite with fewer than two outputs of a class."""
    return grouped_error(auc_components(margin, positive), positive)


def auc_interval(value: float, error: float, positive: Mask) -> tuple[float, float]:
    """DeLong's interval on the logit scale, which stays within 0 and 1.

    A perfect separation has no spread, and a class of one output has none that can be measured. The interval
    is then that of a share among the outputs of the smaller class.
    """
    if not 0 < value < 1 or not 0 < error < math.inf:
        return wilson(value, int(min(positive.sum(), (~positive).sum())))
    logit, half = math.log(value / (1 - value)), Z * error / (value * (1 - value))
    return _logistic(logit - half), _logistic(logit + half)


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(max(x, -700)) / (1 + math.exp(max(x, -700)))


def r_squared_error(squared_errors: Floats, spread: Floats) -> float:
    """The standard error of 1 - mean(errors) / mean(spread), or of a difference of two, by the delta method.

    For a difference, `squared_errors` are the differences of the squared errors.
    """
    count, scale = len(spread), float(spread.mean())
    if count < 2 or not scale:
        return math.inf
    ratio = float(squared_errors.mean()) / scale
    return float(np.std((squared_errors - ratio * spread) / scale, ddof=1)) / math.sqrt(count)
