"""One step of linear discriminant analysis, with predictions instead of labels.

Class means alone treat all directions of the features alike, but features vary much in some directions and
little in others. Linear discriminant analysis divides by the variance inside the classes. It needs the
classes of all nodes; here, these are predictions. The scores are a linear function of the features. The
analysis runs twice: the second time with the predictions of the first.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from adar_runtime.graph import Floats, Integers, Mask
from adar_runtime.in_context.scores import leading_classes, relation, size_bias, spread
from adar_runtime.interruption import interruption_point

SHARES = (0.5, 0.75)  # of the scores of the analysis against those before it, in each turn
SHRINKAGE = 1.0  # of the variance inside the classes: how much of its mean every direction gets


@dataclass(frozen=True)
class Discriminant:
    """Class means in directions with the same variance inside the classes.

    Attributes:
        root: [k, k]; features · root have the variance 1 inside the classes, apart from SHRINKAGE.
        means: [c, k], class means of features · root.
        bias: [c], minus half the square of the length of each mean.
    """

    root: Floats
    means: Floats
    bias: Floats

    @property
    def weights(self) -> Floats:
        """The scores are features · weights + bias, [k, c]."""
        weights: Floats = self.root @ self.means.T
        return weights


@dataclass(frozen=True)
class Analysis:
    """Discriminants of the same features [n, k], whose columns have the mean zero."""

    features: Floats

    def of(self, psi: Floats) -> Discriminant:
        """The discriminant of classes [n, c]; every row has the sum 1."""
        sizes = psi.sum(axis=0, dtype=np.float64)[:, None]
        means = (psi.T @ self.features) / np.maximum(sizes, 1e-9)
        within = self._variance - (means * sizes / len(psi)).T @ means
        mean_variance = float(np.trace(within)) / len(within)
        values, vectors = np.linalg.eigh(within)
        scale = np.maximum(values, 0) + SHRINKAGE * (mean_variance if mean_variance > 0 else 1.0)
        root = (vectors / np.sqrt(scale)) @ vectors.T
        means = means @ root
        bias = -np.square(means).sum(axis=1) / 2
        return Discriminant(*(array.astype(np.float32) for array in (root, means, bias)))

    @cached_property
    def _variance(self) -> NDArray[np.float64]:
        return (self.features.T @ self.features).astype(np.float64) / len(self.features)


@dataclass(frozen=True)
class Joined:
    """Scores that are products of nodes [n, w], whose last column is constant, with targets [c, w]."""

    nodes: Floats
    targets: Floats

    @property
    def scores(self) -> Floats:
        scores: Floats = self.nodes @ self.targets.T
        return scores

    def scores_of(self, chosen: Mask) -> Floats:
        """The scores of some of the nodes, [l, c]."""
        scores: Floats = self.nodes[chosen] @ self.targets.T
        return scores

    def mixed(self, targets: Floats, share: float) -> "Joined":
        """Mix the scores with those of other targets [c, v] of the last v columns, at the same spread."""
        factor = np.float32(share / spread(self.nodes[:, -targets.shape[1] :] @ targets.T))
        mixed = np.float32((1 - share) / spread(self.scores)) * self.targets
        mixed[:, -targets.shape[1] :] += factor * targets
        return Joined(self.nodes, mixed)

    def with_shares(self, shares: Floats) -> "Joined":
        """Add the shares of the classes [n, c] to the scores, multiplied with the spread of the scores."""
        rows, own = self._block(shares)
        blocks = ((rows, self.nodes), (own * np.eye(len(self.targets), dtype=np.float32), self.targets))
        return Joined(*(np.concatenate(pair, axis=1) for pair in blocks))

    def with_projected_shares(self, shares: Floats, columns: int) -> "tuple[Joined, Floats]":
        """The same in at most `columns` columns, for more classes than columns: no array has c² numbers.

        Also returns the columns of the shares, [c, columns].
        """
        rows, own = self._block(shares)
        classes = leading_classes(self.scores + own * rows, columns)
        basis, parts = np.linalg.qr(np.concatenate([own * classes, self.targets.T @ classes]))
        of_shares, others = np.split(basis, [len(classes)])
        # The targets keep nothing outside these directions of the classes: the scores would change.
        return Joined(rows @ of_shares + self.nodes @ others, classes @ parts.T), of_shares

    def _block(self, shares: Floats) -> tuple[Floats, np.float32]:
        """The columns of the shares [n, c], and what each class has in its own column."""
        size = spread(self.scores)
        rows = shares - 1 / shares.shape[1]
        # The cell compares lengths. The squared length of the new columns, relative to that of the columns
        # before, is the spread of the shares, relative to that of scores with the spread 1.
        squares = [float(np.square(part).sum(axis=1).mean()) for part in (self.nodes[:, :-1], rows)]
        scale = (squares[0] * spread(shares) / squares[1]) ** 0.5 if min(squares) > 0 else 1.0
        return np.float32(scale) * rows, np.float32(size / scale)

    def analysed(self, analysis: Analysis, labels: Integers) -> "tuple[Joined, Discriminant]":
        """Mix the scores with those of a discriminant analysis of the predicted or known classes."""
        before = self.scores
        before *= np.float32(1 / spread(before))
        now = before
        for share in SHARES:
            psi = relation(now, labels)
            found = analysis.of(psi)
            own = analysis.features @ found.weights + found.bias
            factor, bias = np.float32(1 / spread(own)), size_bias(psi)
            now = (1 - share) * before + np.float32(share) * (factor * own + bias)
            now *= np.float32(1 / spread(now))
        targets = np.float32((1 - share) / spread(self.scores)) * self.targets
        targets[:, -1] += share * (factor * found.bias + bias) / self.nodes[0, -1]
        interruption_point()
        rows = analysis.features @ found.root
        # The new columns get the length of those before: the cell compares lengths.
        lengths = [float(np.square(part).sum(axis=1).mean()) ** 0.5 for part in (self.nodes[:, :-1], rows)]
        ratio = np.float32(lengths[0] / lengths[1] if min(lengths) > 0 else 1.0)
        interruption_point()
        own_targets = np.float32(share) * factor / ratio * found.means
        joined = Joined(
            np.concatenate([ratio * rows, self.nodes], axis=1),
            np.concatenate([own_targets, targets], axis=1),
        )
        return joined, found
