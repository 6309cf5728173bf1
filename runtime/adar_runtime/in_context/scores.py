"""Scores of classes that are linear in the smoothed features of a graph."""

from dataclasses import dataclass

import numpy as np

from adar_runtime.graph import Floats, Integers
from adar_runtime.interruption import interruption_point

SPREAD = 2.0  # of logits: mean over nodes of the standard deviation of a node's logits
ROUNDING = 1e-6  # a smaller spread of scores is rounding, as in a graph with one node
ITERATIONS = 3  # of the subspace iteration of the classes
LEAST_PART = 1e-6  # of a direction of the classes, by its part in the iteration; a smaller one is rounding
LEAST_SHARE = 0.05  # added to the size of a class, relative to the mean size, before its logarithm


@dataclass(frozen=True)
class LinearScores:
    """Scores (nodes smoothed with `restart`) · targets + bias.

    Attributes:
        restart: The smoothing of the nodes [n, d].
        targets: [c, d].
        bias: [c].
    """

    restart: float
    targets: Floats
    bias: Floats

    def of(self, nodes: Floats) -> Floats:
        """The scores [n, c]."""
        interruption_point()
        scores: Floats = nodes @ self.targets.T + self.bias
        return scores

    def normalised(self, nodes: Floats) -> "LinearScores":
        """The same scores with a spread of 1 on these nodes."""
        return self.scaled(1 / spread(self.of(nodes)))

    def scaled(self, factor: float) -> "LinearScores":
        return LinearScores(self.restart, np.float32(factor) * self.targets, np.float32(factor) * self.bias)

    def plus(self, other: "LinearScores") -> "LinearScores":
        return LinearScores(self.restart, self.targets + other.targets, self.bias + other.bias)


def indicators(labels: Integers, count: int) -> Floats:
    """The known classes of all nodes [n, c]: 1 where a class is known, -1 in `labels` is unknown."""
    known = np.zeros((len(labels), count), np.float32)
    labelled = np.flatnonzero(labels >= 0)
    known[labelled, labels[labelled]] = 1
    return known


def relation(scores: Floats, labels: Integers) -> Floats:
    """The classes of the nodes [n, c]: a softmax of scores that have the spread 1, or the known label."""
    interruption_point()
    psi = np.exp(np.float32(SPREAD) * (scores - scores.max(axis=1, keepdims=True)))
    psi /= psi.sum(axis=1, keepdims=True)
    labelled = np.flatnonzero(labels >= 0)
    psi[labelled] = 0
    psi[labelled, labels[labelled]] = 1
    found: Floats = psi
    return found


def spread(scores: Floats) -> float:
    """The mean over nodes of the standard deviation of a node's scores [n, c]; 1 if all are equal."""
    interruption_point()
    found = float(scores.std(axis=1).mean())
    return found if found > ROUNDING else 1.0


def leading_classes(scores: Floats, columns: int) -> Floats:
    """An orthonormal basis [c, columns] of the directions in which scores [n, c] vary most between classes.

    It has fewer columns where the scores do not vary in more directions.
    """
    scores = scores - scores.mean(axis=1, keepdims=True)
    basis = np.random.default_rng(0).standard_normal((scores.shape[1], columns)).astype(np.float32)
    for _ in range(ITERATIONS):
        interruption_point()
        basis, parts = np.linalg.qr(scores.T @ (scores @ basis))
    size = np.abs(np.diag(parts))
    found: Floats = basis[:, size > LEAST_PART * size.max()]
    return found


def size_bias(psi: Floats) -> Floats:
    """What the sizes of the classes add to scores with a spread of 1, [c], with the mean zero."""
    prior = np.log(psi.shape[1] * psi.mean(axis=0) + LEAST_SHARE) / SPREAD
    found: Floats = (prior - prior.mean()).astype(np.float32)
    return found
