"""Classifiers in closed form on features of one smoothing, from known labels, from descriptions or from both.

Each one that uses labels also gives its leave-one-out scores of the labelled nodes, in closed form.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adar_runtime.graph import Floats, Integers
from adar_runtime.in_context.features import unit_rows
from adar_runtime.in_context.label_check import losses_of
from adar_runtime.in_context.scores import LinearScores, indicators, spread
from adar_runtime.interruption import interruption_point

PENALTIES = (0.1, 1.0)  # of ridge regression on unit rows
PLAIN_PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0)  # of the plain guess, which no later stage corrects
SHARPNESS = 3.0  # of the weights of the candidates: exp(-SHARPNESS · loss)
PLAIN_SHARPNESS = 10.0  # the same for the plain guess
LOSS_SPREAD = 2.0  # spread of the logits in the leave-one-out loss
WHITENING, SHRINKAGE = 0.5, 1.0  # power of the covariance, and how much of its mean every direction gets


@dataclass(frozen=True)
class SmoothedNodes:
    """The nodes of a graph with one smoothing.

    Attributes:
        restart: The share of a node's own features in every round.
        rows: Centred rows of nearly unit length [n, d].
        middle: The mean [d] that was subtracted.
    """

    restart: float
    rows: Floats
    middle: Floats


@dataclass(frozen=True)
class Candidate:
    """Scores of the classes, and those of the labelled nodes that leave their own label out [l, c]."""

    scores: LinearScores
    left_out: Floats

    def loss(self, spread_of_all: float, labels: Integers) -> float:
        """The leave-one-out cross-entropy on the known labels [l]."""
        logits = LOSS_SPREAD / spread_of_all * self.left_out.astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]))


def guess(nodes: SmoothedNodes, labels: Integers, count: int, descriptions: Floats | None) -> LinearScores:
    """The weighted sum of all candidates; those with a low leave-one-out loss have large weights."""
    own = labels[labels >= 0]
    found = list(candidates(nodes, labels, count, descriptions))
    spreads = [spread(each.scores.of(nodes.rows)) for each in found]
    losses = np.array([each.loss(size, own) for each, size in zip(found, spreads, strict=True)])
    weights = np.exp(-SHARPNESS * (losses - losses.min()))
    factors = weights / weights.sum() / spreads
    first, *others = (each.scores.scaled(by) for each, by in zip(found, factors.tolist(), strict=True))
    for other in others:
        first = first.plus(other)
    return first


def plain_guess(smoothed: Sequence[SmoothedNodes], labels: Integers, count: int) -> list[LinearScores]:
    """Class means and ridge regressions of all smoothings: their sum has a spread of nearly 1.

    Nothing is estimated from nodes without labels. It is right where the classes are no clusters.
    """
    own, found, losses = labels[labels >= 0], [], []
    for nodes in smoothed:
        for each in candidates(nodes, labels, count, None, PLAIN_PENALTIES):
            size = spread(each.scores.of(nodes.rows))
            found.append(each.scores.scaled(1 / size))
            losses.append(float(losses_of(each.left_out / np.float32(size), own).mean()))
    weights = np.exp(-PLAIN_SHARPNESS * (np.array(losses) - min(losses)))
    return [each.scaled(by) for each, by in zip(found, (weights / weights.sum()).tolist(), strict=True)]


def candidates(
    nodes: SmoothedNodes,
    labels: Integers,
    count: int,
    descriptions: Floats | None,
    penalties: Sequence[float] = PENALTIES,
) -> Iterator[Candidate]:
    """Every classifier on the nodes, for the known labels [n] (-1 is unknown) of `count` classes."""
    labelled = np.flatnonzero(labels >= 0)
    rows, own = nodes.rows[labelled], labels[labelled]
    if descriptions is not None:
        plain = LinearScores(nodes.restart, descriptions, np.zeros(count, np.float32))
        yield Candidate(plain, rows @ descriptions.T)
    if len(labelled):
        yield _means(nodes.restart, rows, own, count, descriptions)
        yield from _ridges(nodes, rows, own, count, penalties)


def described(nodes: SmoothedNodes, descriptions: Floats) -> LinearScores:
    """Cosines with the descriptions, plus the same in directions that are partly whitened.

    Features vary much in a few directions, which say little about the classes.
    """
    no_bias = np.zeros(len(descriptions), np.float32)
    covariance = (nodes.rows.T @ nodes.rows).astype(np.float64) / max(1, len(nodes.rows))
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 0)
    scale = (values + SHRINKAGE * (values.mean() or 1.0)) ** -WHITENING
    whitened = (descriptions @ ((vectors * scale) @ vectors.T)).astype(np.float32)
    parts = (LinearScores(nodes.restart, targets, no_bias) for targets in (descriptions, whitened))
    plain, white = (part.normalised(nodes.rows) for part in parts)
    return plain.plus(white)


def _means(restart: float, rows: Floats, own: Integers, count: int, descriptions: Floats | None) -> Candidate:
    """Class means of unit length, plus the descriptions of unit length where there are any."""
    members = indicators(own, count)  # [l, c]
    sums, sizes = members.T @ rows, members.sum(axis=0)
    means = unit_rows(sums)
    without = unit_rows(sums[own] - rows)  # the mean of each labelled node's class without the node
    if descriptions is None:
        means[sizes == 0] = -means.sum(axis=0) / max(1, int((sizes > 0).sum()))
    else:
        means, without = means + descriptions, without + descriptions[own]
    left_out = rows @ means.T
    left_out[np.arange(len(own)), own] = (rows * without).sum(axis=1)
    return Candidate(LinearScores(restart, means, np.zeros(count, np.float32)), left_out)


def _ridges(
    nodes: SmoothedNodes, centred: Floats, own: Integers, count: int, penalties: Sequence[float]
) -> Iterator[Candidate]:
    """Ridge regression of the classes' indicators, with the leave-one-out predictions of the hat matrix."""
    rows: NDArray[np.float64] = (centred + nodes.middle).astype(np.float64)
    wanted = indicators(own, count).astype(np.float64) - 1 / count
    for penalty in penalties:
        interruption_point()
        inverse = np.linalg.inv(rows.T @ rows + penalty * np.eye(rows.shape[1]))
        targets = (inverse @ (rows.T @ wanted)).T  # [c, d]
        leverage = ((rows @ inverse) * rows).sum(axis=1, keepdims=True)
        left_out = wanted - (wanted - rows @ targets.T) / (1 - leverage)
        arrays = (each.astype(np.float32) for each in (targets, targets @ nodes.middle))
        yield Candidate(LinearScores(nodes.restart, *arrays), left_out.astype(np.float32))
