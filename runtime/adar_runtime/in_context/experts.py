"""Experts: several starts in closed form, and how much each of them counts.

With a few labels, no single smoothing is best on all graphs, and estimating the classes again helps on most
graphs but not on all. So each smoothing has its own experts: the first guess from labels, the same after the
classes are estimated again, and the estimate that begins at the descriptions. Known labels are hidden in
turn; an expert that predicts them well gets a large weight.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from adar_runtime.graph import Floats, Integers, Mask
from adar_runtime.in_context.candidates import SmoothedNodes, described, guess
from adar_runtime.in_context.features import unit_rows
from adar_runtime.in_context.label_check import losses_of
from adar_runtime.in_context.scores import LinearScores, relation, size_bias
from adar_runtime.interruption import interruption_point

ESTIMATES = 3  # how often the classes are estimated again
ESTIMATED = 0.5  # weight of the estimated means of the classes against the first guess
SHARPNESS = 10.0  # of the weights of the experts: exp(-SHARPNESS · loss on hidden labels)
UNSMOOTHED = 1.0  # the restart of the features themselves; without labels, no expert uses them alone
ANALYSED = (0.15, UNSMOOTHED)  # restarts of the features of the discriminant analysis
TWICE = 0.0  # no restart: two rounds of smoothing, for the plain guess only


def analysed_features(rows: Mapping[float, Floats]) -> Floats:
    """The features of the discriminant analysis [n, k], from the rows [n, d] of each smoothing."""
    return np.concatenate([rows[restart] for restart in rows if restart in ANALYSED], axis=1)


def experts(
    smoothed: Sequence[SmoothedNodes], labels: Integers, count: int, descriptions: Floats | None
) -> list[LinearScores]:
    """All experts for the known labels [n] (-1 is unknown) of `count` classes. Scores have the spread 1."""
    found, has_labels = [], bool((labels >= 0).any())
    for nodes in smoothed:
        if nodes.restart == TWICE:
            continue
        if has_labels:
            first = guess(nodes, labels, count, descriptions).normalised(nodes.rows)
            found += [first, estimated(first, nodes.rows, labels)]
        if descriptions is not None and (has_labels or nodes.restart != UNSMOOTHED):
            found.append(estimated(described(nodes, descriptions), nodes.rows, labels))
    return found


def estimated(first: LinearScores, nodes: Floats, labels: Integers) -> LinearScores:
    """Estimate the classes again, from the nodes [n, d] that each class has now.

    The class of a node is a softmax of its scores, or its known label. The scores become a mixture of the
    first ones and of those by the mean direction of each class, and large classes become more likely. It is
    like expectation-maximisation that stays near the first guess.
    """
    first = first.normalised(nodes)
    now, no_bias = first, np.zeros(len(first.bias), np.float32)
    for _ in range(ESTIMATES):
        interruption_point()
        psi = relation(now.of(nodes), labels)
        means = LinearScores(first.restart, unit_rows(psi.T @ nodes), no_bias).normalised(nodes)
        now = first.scaled(1 - ESTIMATED).plus(means.scaled(ESTIMATED)).normalised(nodes)
        now = LinearScores(now.restart, now.targets, now.bias + size_bias(psi))
    return now.normalised(nodes)


def expert_weights(
    smoothed: Sequence[SmoothedNodes],
    found: Sequence[Sequence[LinearScores]],
    parts: Sequence[Mask],
    labels: Integers,
) -> NDArray[np.float64]:
    """The weight of each expert, by its loss on the known labels [n] that are hidden in turn.

    `found` are the experts without each of the hidden parts.
    """
    rows = {nodes.restart: nodes.rows for nodes in smoothed}
    own, losses = np.concatenate([labels[hidden] for hidden in parts]), []
    for same in zip(*found, strict=True):
        pairs = zip(same, parts, strict=True)
        scores = np.concatenate([each.of(rows[each.restart][hidden]) for each, hidden in pairs])
        losses.append(float(losses_of(scores, own).mean()))
    weights: NDArray[np.float64] = np.exp(-SHARPNESS * (np.array(losses) - min(losses)))
    return weights
