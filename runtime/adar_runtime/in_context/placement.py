"""Where a new node starts in a graph whose closed-form start is kept.

The start places nodes by a linear function of their smoothed features and of the classes of similar nodes.
The coefficients depend on all nodes and labels. A new node keeps the directions, the centres and the function
of the kept graph, and is compared with nodes of this graph.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import AdarError
from adar_runtime.graph import Floats, Graph, Integers
from adar_runtime.in_context.experts import analysed_features
from adar_runtime.in_context.features import UnitRows, unit_rows
from adar_runtime.in_context.scores import indicators
from adar_runtime.in_context.similar_nodes import ComparedNodes
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
        matrix: [s · d + 1 + k, d], the place of a node from its rows of all smoothings, 1, and the shares of
            the classes, or of k directions of them, among similar nodes.
        compared: The nodes that others are compared with.
        labels: [n], the known classes of the kept nodes, -1 elsewhere.
        classes: c.
    """

    basis: Floats
    middles: Floats
    matrix: Floats
    compared: ComparedNodes
    labels: Integers
    classes: int

    @classmethod
    def of(
        cls,
        features: SmoothedFeatures,
        nodes: Floats,
        compared: ComparedNodes,
        labels: Integers,
        classes: int,
    ) -> "Placement":
        """Find the linear function that places the nodes [n, d] of a start.

        Raises:
            AdarError: The places are not such a function.
        """
        middles = np.stack([each.middle for each in features.smoothed])
        matrix = _solved(features, nodes, compared)
        error = max(
            float(np.abs(_inputs(features, span, compared) @ matrix - nodes[span]).max())
            for span in _spans(len(nodes))
        )
        if error > LARGEST_ERROR * max(1.0, float(np.abs(nodes).max())):
            raise AdarError(
                "new nodes cannot be placed: the places of the nodes are not a linear function of their "
                "smoothed features (are most features equal?): run the grown graph instead"
            )
        return cls(features.basis, middles, matrix.astype(np.float32), compared, labels, classes)

    def encoded(self, new: Graph) -> Floats:
        """New nodes along the kept directions, before smoothing: [k, d]."""
        return UnitRows(new).times(self.basis)

    def nodes(self, rounds: Iterable[Floats], numbers: Integers) -> Floats:
        """The places of the nodes `numbers` at t = 0 [k, d], from their rows in all rounds of smoothing.

        The first rows are those before smoothing. New nodes have numbers after the kept ones.
        """
        pairs = zip(mixed(rounds).items(), self.middles, strict=True)
        centred = {restart: unit_rows(rows) - middle for (restart, rows), middle in pairs}
        placed: Floats = _joined(centred, self.compared, numbers) @ self.matrix
        return placed

    def known(self, numbers: Integers) -> Floats:
        """The known classes [k, c] of nodes [k]. New nodes have numbers after the kept ones, and no class."""
        labels = np.full(len(numbers), -1)
        is_kept = numbers < len(self.labels)
        labels[is_kept] = self.labels[numbers[is_kept]]
        return indicators(labels, self.classes)

    @property
    def bytes(self) -> int:
        arrays = (self.basis, self.middles, self.matrix, self.labels, *vars(self.compared).values())
        return sum(array.nbytes for array in arrays)


def _spans(nodes: int) -> list[slice]:
    return [slice(start, start + ROWS) for start in range(0, nodes, ROWS)]


def _inputs(features: SmoothedFeatures, span: slice, compared: ComparedNodes) -> NDArray[np.float64]:
    rows = {each.restart: each.rows[span] for each in features.smoothed}
    numbers = np.arange(len(features.smoothed[0].rows))[span]
    return _joined(rows, compared, numbers).astype(np.float64)


def _joined(rows: Mapping[float, Floats], compared: ComparedNodes, numbers: Integers) -> Floats:
    """Rows of all smoothings, 1, and the shares of the classes among similar nodes."""
    shares = compared.shares(analysed_features(rows), numbers)
    return np.concatenate([*rows.values(), np.ones((len(numbers), 1), np.float32), shares], axis=1)


def _solved(features: SmoothedFeatures, nodes: Floats, compared: ComparedNodes) -> NDArray[np.float64]:
    """The least-squares solution; directions that no node has count as zero."""
    square, product = np.zeros(()), np.zeros(())
    for span in _spans(len(nodes)):
        inputs = _inputs(features, span, compared)
        square, product = square + inputs.T @ inputs, product + inputs.T @ nodes[span]
    values, vectors = np.linalg.eigh(square)
    kept = values > SMALLEST * values[-1]
    vectors = vectors[:, kept]
    found: NDArray[np.float64] = (vectors / values[kept]) @ (vectors.T @ product)
    return found
