"""Where a new node starts in a graph whose closed-form start is kept.

The start places nodes by a linear function of their smoothed features, whose coefficients depend on all
nodes and labels. A new node keeps the directions, the centres and the function of the kept graph.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import AdarError
from adar_runtime.graph import Floats, Integers
from adar_runtime.in_context.features import unit_rows
from adar_runtime.in_context.scores import indicators
from adar_runtime.in_context.start import SmoothedFeatures, mixed

SMALLEST = 1e-11  # relative variance of a direction of the smoothed features; a smaller one is rounding
ROWS = 2**14  # nodes that are added up at once
LARGEST_ERROR = 1e-3  # of a node's place, relative to the largest number


@dataclass(frozen=True)
class Placement:
    """The kept part of a closed-form start.

    Attributes:
        basis: [f, d], the directions of the features.
        middles: [s, d], what is subtracted from the unit rows of each smoothing.
        matrix: [s · d + 1, d], the place of a node from its rows of all smoothings and 1.
        labels: [n], the known classes of the kept nodes, -1 elsewhere.
        classes: c.
    """

    basis: Floats
    middles: Floats
    matrix: Floats
    labels: Integers
    classes: int

    @classmethod
    def of(cls, features: SmoothedFeatures, nodes: Floats, labels: Integers, classes: int) -> "Placement":
        """Find the linear function that places the nodes [n, d] of a start.

        Raises:
            AdarError: The places are not a linear function of the smoothed features.
        """
        middles = np.stack([each.middle for each in features.smoothed])
        matrix = _solved(features, nodes)
        error = max(
            float(np.abs(_inputs(features, span) @ matrix - nodes[span]).max()) for span in _spans(len(nodes))
        )
        if error > LARGEST_ERROR * max(1.0, float(np.abs(nodes).max())):
            raise AdarError(
                "new nodes cannot be placed: the places of the nodes are not a linear function of their "
                "smoothed features (are most features equal?): run the grown graph instead"
            )
        return cls(features.basis, middles, matrix.astype(np.float32), labels, classes)

    def encoded(self, features: Floats) -> Floats:
        """New nodes along the kept directions, before smoothing: [k, d]."""
        return unit_rows(features) @ self.basis

    def nodes(self, rounds: Iterable[Floats]) -> Floats:
        """The places of nodes at t = 0 [k, d], from their rows before and after every round of smoothing."""
        centred = [
            unit_rows(rows) - middle
            for rows, middle in zip(mixed(rounds).values(), self.middles, strict=True)
        ]
        ones = np.ones((len(centred[0]), 1), np.float32)
        placed: Floats = np.concatenate([*centred, ones], axis=1) @ self.matrix
        return placed

    def known(self, numbers: Integers) -> Floats:
        """The known classes [k, c] of nodes [k]. New nodes have numbers after the kept ones, and no class."""
        labels = np.full(len(numbers), -1)
        is_kept = numbers < len(self.labels)
        labels[is_kept] = self.labels[numbers[is_kept]]
        return indicators(labels, self.classes)

    @property
    def bytes(self) -> int:
        return self.basis.nbytes + self.middles.nbytes + self.matrix.nbytes + self.labels.nbytes


def _spans(nodes: int) -> list[slice]:
    return [slice(start, start + ROWS) for start in range(0, nodes, ROWS)]


def _inputs(features: SmoothedFeatures, span: slice) -> NDArray[np.float64]:
    """Rows of all smoothings, and 1."""
    rows = [each.rows[span] for each in features.smoothed]
    return np.concatenate([*rows, np.ones((len(rows[0]), 1))], axis=1, dtype=np.float64)


def _solved(features: SmoothedFeatures, nodes: Floats) -> NDArray[np.float64]:
    """The least-squares solution; directions that no node has count as zero."""
    square, product = np.zeros(()), np.zeros(())
    for span in _spans(len(nodes)):
        inputs = _inputs(features, span)
        square, product = square + inputs.T @ inputs, product + inputs.T @ nodes[span]
    values, vectors = np.linalg.eigh(square)
    kept = values > SMALLEST * values[-1]
    vectors = vectors[:, kept]
    found: NDArray[np.float64] = (vectors / values[kept]) @ (vectors.T @ product)
    return found
