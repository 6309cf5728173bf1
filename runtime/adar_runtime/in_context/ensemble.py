"""The scores of a start: experts, a discriminant analysis of their sum, a plain guess, and similar nodes.

The analysis and the experts that estimate the classes again follow the clusters of the nodes. On most graphs
this is worth several points, and on some it costs as much. So a plain guess from the known labels alone is
mixed with the result. Labels that are hidden in turn decide about both: about the weights of the experts, and
about the share of the plain guess. If they are predicted no better than by chance, a free baseline answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from adar_runtime.graph import Floats, Integers, Mask
from adar_runtime.in_context.candidates import SmoothedNodes, candidates, plain_guess
from adar_runtime.in_context.discriminant import Analysis, Discriminant, Joined
from adar_runtime.in_context.experts import TWICE, UNSMOOTHED, analysed_features, expert_weights, experts
from adar_runtime.in_context.label_check import folds, losses_of
from adar_runtime.in_context.scores import LinearScores, relation, spread
from adar_runtime.in_context.similar_nodes import ComparedNodes
from adar_runtime.interruption import interruption_point

PLAIN_SHARPNESS = 30.0  # of the share of the plain guess, by the difference of the losses on hidden labels
BASELINE_PENALTY = 0.03  # of the ridge regression of the free baseline
# The weights of the smoothings with one label of each class.
LONG_SMOOTHING_FIRST = {UNSMOOTHED: 0.5, 0.3: 1.0, 0.15: 1.4, 0.05: 2.0}
LEAST_PLAIN = 1e-3  # a smaller share of the plain guess is none
LEAST_WEIGHT = 1e-4  # of all scores with the same smoothing; below it, their columns are left out


@dataclass(frozen=True)
class Choice:
    """What hidden labels decide.

    Attributes:
        weights: Of the experts, [k]; [1] if all count alike.
        plain: The share of the plain guess in the scores, from 0 to 1.
        is_chance: Whether the free baseline answers, because the rest was no better than chance.
    """

    weights: NDArray[np.float64]
    plain: float
    is_chance: bool = False


EQUAL = Choice(np.ones(1), 0.0)
"""All experts count alike."""


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
            return self._unchecked(labels)
        found = [experts(self.smoothed, known, count, self.descriptions) for _, known in parts]
        weights = expert_weights(self.smoothed, found, [hidden for hidden, _ in parts], labels)
        if self.descriptions is not None:
            return Choice(weights, 0.0)
        own, refined, plain, baseline = [], [], [], []
        for (hidden, known), each in zip(parts, found, strict=True):
            own.append(labels[hidden])
            refined.append(self._refined(each, weights, known)[0].scores_of(hidden))
            plain.append(self._sum(plain_guess(self.smoothed, known, count), hidden))
            baseline.append(self._sum(self._baseline(known, count), hidden))
        every = (losses_of(np.concatenate(each), np.concatenate(own)) for each in (refined, plain, baseline))
        refined_losses, plain_losses, baseline_losses = every
        share = 1 / (1 + np.exp(PLAIN_SHARPNESS * (plain_losses.mean() - refined_losses.mean())))
        better_than = (np.log(count), baseline_losses)
        fits = count <= self.smoothed[0].rows.shape[1]  # the state has a direction for each class
        is_chance = fits and not any(_is_lower(refined_losses - losses) for losses in better_than)
        return Choice(weights, float(share) if share > LEAST_PLAIN else 0.0, is_chance)

    def placed(
        self, labels: Integers, count: int, choice: Choice, columns: int
    ) -> tuple[Joined, ComparedNodes]:
        """Nodes and targets whose products are the scores, for the known labels [n].

        With more classes than `columns`, the scores are projected on so many directions of the classes. Also
        returns the nodes that all nodes were compared with.
        """
        if choice.is_chance:
            found = self._baseline(labels, count)
            both = Columns.of(self.smoothed, found, np.ones(len(found)).tolist())
            nothing = ComparedNodes.nothing(self._analysis.features.shape[1], count)
            return Joined(both.nodes, both.targets(found, np.ones(len(found)))), nothing
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

    def _unchecked(self, labels: Integers) -> Choice:
        """Without hidden labels: all experts count alike, or those with much smoothing count more.

        One label of each class says little about its other nodes, unless their neighbours do.
        """
        if self.descriptions is not None or not (labels >= 0).any():
            return EQUAL
        found = (each.restart for each in self.smoothed if each.restart in LONG_SMOOTHING_FIRST)
        return Choice(np.repeat([LONG_SMOOTHING_FIRST[restart] for restart in found], 2), 0.0)

    def _baseline(self, labels: Integers, count: int) -> list[LinearScores]:
        """The free baseline: class means and ridge regression on features smoothed twice."""
        [nodes] = (each for each in self.smoothed if each.restart == TWICE)
        found = candidates(nodes, labels, count, None, [BASELINE_PENALTY])
        return [each.scores.normalised(nodes.rows) for each in found]

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


def _is_lower(differences: NDArray[np.float64]) -> bool:
    """Whether losses are lower by more than a standard error."""
    return bool(differences.mean() < -differences.std() / len(differences) ** 0.5)


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
