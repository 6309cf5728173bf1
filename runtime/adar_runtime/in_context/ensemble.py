"""The scores of a start: experts, a discriminant analysis of their sum, a plain guess, and similar nodes.

The analysis and the experts that estimate the classes again follow the clusters of the nodes. On most graphs
this is worth several points, and on some it costs as much. So a plain guess from the known labels alone is
mixed with the result. Labels that are hidden in turn decide about both: about the weights of the experts, and
about the share of the plain guess.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from adar_runtime.graph import Floats, Integers, Mask
from adar_runtime.in_context.candidates import SmoothedNodes, plain_guess
from adar_runtime.in_context.discriminant import Analysis, Discriminant, Joined
from adar_runtime.in_context.experts import analysed_features, expert_weights, experts
from adar_runtime.in_context.label_check import folds, losses_of
from adar_runtime.in_context.scores import LinearScores, relation, spread
from adar_runtime.in_context.similar_nodes import ComparedNodes
from adar_runtime.interruption import interruption_point

PLAIN_SHARPNESS = 30.0  # of the share of the plain guess, by the difference of the losses on hidden labels
LEAST_PLAIN = 1e-3  # a smaller share of the plain guess is none
LEAST_WEIGHT = 1e-4  # of all scores with the same smoothing; below it, their columns are left out


@dataclass(frozen=True)
class Choice:
    """What hidden labels decide.

    Attributes:
        weights: Of the experts, [k]; [1] if all count alike.
        plain: The share of the plain guess in the scores, from 0 to 1.
    """

    weights: NDArray[np.float64]
    plain: float


EQUAL = Choice(np.ones(1), 0.0)
"""Without hidden labels, all experts count alike."""


@dataclass(frozen=True)
class Ensemble:
    """All scores of the classes: linear functions of the smoothed features of a graph, and similar nodes.

    Attributes:
        smoothed: The nodes with each smoothing.
        descriptions: Centred class descriptions of unit length [c, d]; None if the graph has none.
    """

    smoothed: Sequence[SmoothedNodes]
    descriptions: Floats | None

    def choice(self, labels: Integers, count: int) -> Choice:
        """What hidden labels decide for the known labels [n] (-1 where unknown) of `count` classes.

        With descriptions, there is no plain guess: on validation graphs it did not help.
        """
        parts = [(hidden, np.where(hidden, -1, labels)) for hidden in folds(labels)]
        if not parts:
            return EQUAL
        found = [experts(self.smoothed, known, count, self.descriptions) for _, known in parts]
        weights = expert_weights(self.smoothed, found, [hidden for hidden, _ in parts], labels)
        if self.descriptions is not None:
            return Choice(weights, 0.0)
        own, refined, plain = [], [], []
        for (hidden, known), each in zip(parts, found, strict=True):
            own.append(labels[hidden])
            refined.append(self._refined(each, weights, known)[0].scores_of(hidden))
            plain.append(self._sum(plain_guess(self.smoothed, known, count), hidden))
        losses = (losses_of(np.concatenate(each), np.concatenate(own)).mean() for each in (refined, plain))
        refined_loss, plain_loss = losses
        share = 1 / (1 + np.exp(PLAIN_SHARPNESS * (plain_loss - refined_loss)))
        return Choice(weights, float(share) if share > LEAST_PLAIN else 0.0)

    def placed(
        self, labels: Integers, count: int, choice: Choice, columns: int
    ) -> tuple[Joined, ComparedNodes]:
        """Nodes and targets whose products are the scores, for the known labels [n].

        With more classes than `columns`, the scores are projected on so many directions of the classes. Also
        returns the nodes that all nodes were compared with.
        """
        linear, discriminant = self.linear(labels, count, choice)
        scores = linear.scores
        psi = relation(scores / np.float32(spread(scores)), labels)
        features = self._analysis.features
        compared = ComparedNodes.of(features, discriminant.root, psi)
        shares = compared.shares(features, np.arange(len(features)))
        if count <= columns:
            return linear.with_shares(shares), compared
        joined, of_shares = linear.with_projected_shares(shares, columns)
        return joined, replace(compared, psi=psi[compared.numbers] @ of_shares)

    def linear(self, labels: Integers, count: int, choice: Choice) -> tuple[Joined, Discriminant]:
        """The same without similar nodes: scores that are linear in the smoothed features."""
        found = experts(self.smoothed, labels, count, self.descriptions)
        plain = plain_guess(self.smoothed, labels, count) if choice.plain else []
        return self._refined(found, choice.weights, labels, (plain, choice.plain))

    def _refined(
        self,
        found: Sequence[LinearScores],
        weights: NDArray[np.float64],
        labels: Integers,
        plain: tuple[Sequence[LinearScores], float] = ((), 0.0),
    ) -> tuple[Joined, Discriminant]:
        """The weighted experts with a discriminant analysis, and a share of the plain guess."""
        shares = np.broadcast_to(weights, len(found))
        shares = shares / shares.sum()
        added, share = plain
        columns = Columns.of(self.smoothed, [*found, *added], [*shares, *(share / len(added) for _ in added)])
        first = Joined(columns.nodes, columns.targets(found, shares))
        placed, discriminant = first.analysed(self._analysis, labels)
        if share:
            placed = placed.mixed(columns.targets(added, np.ones(len(added))), share)
        return placed, discriminant

    def _sum(self, found: Sequence[LinearScores], chosen: Mask) -> Floats:
        """The sum of scores of some of the nodes [l, c]."""
        rows = {nodes.restart: nodes.rows for nodes in self.smoothed}
        total: Floats = sum(each.of(rows[each.restart][chosen]) for each in found)  # type: ignore[assignment]
        return total

    @cached_property
    def _analysis(self) -> Analysis:
        return Analysis(analysed_features({nodes.restart: nodes.rows for nodes in self.smoothed}))


@dataclass(frozen=True)
class Columns:
    """Nodes [n, w] with a block of columns for each smoothing; the last column is constant.

    Attributes:
        scales: The factor of the rows of each smoothing; a block is long where its scores have large weights.
        nodes: [n, w].
    """

    scales: Mapping[float, float]
    nodes: Floats

    @classmethod
    def of(
        cls, smoothed: Sequence[SmoothedNodes], found: Sequence[LinearScores], weights: Sequence[float]
    ) -> "Columns":
        """The columns for scores with these weights."""
        scales, blocks = {}, []
        for nodes in smoothed:
            pairs = zip(found, weights, strict=True)
            total = sum(weight for each, weight in pairs if each.restart == nodes.restart)
            if total >= LEAST_WEIGHT:
                scales[nodes.restart] = total**0.5
                blocks.append(nodes.rows * np.float32(total**0.5))
        length = float(np.mean([np.linalg.norm(rows, axis=1).mean() for rows in blocks])) or 1.0
        constant = np.full((len(blocks[0]), 1), length, np.float32)
        interruption_point()
        return cls(scales, np.concatenate([*blocks, constant], axis=1))

    def targets(self, found: Sequence[LinearScores], weights: NDArray[np.float64]) -> Floats:
        """Targets [c, w] whose products with the nodes are the weighted sum of scores."""
        bias: Floats = np.zeros(len(found[0].bias), np.float32)
        blocks = {restart: np.zeros_like(found[0].targets) for restart in self.scales}
        for each, weight in zip(found, weights.tolist(), strict=True):
            if each.restart in blocks:
                blocks[each.restart] += np.float32(weight / self.scales[each.restart]) * each.targets
                bias += np.float32(weight) * each.bias
        return np.concatenate([*blocks.values(), bias[:, None] / self.nodes[0, -1]], axis=1)
