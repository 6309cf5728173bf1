"""The closed-form start of a pretrained model: where nodes and targets are before the first step.

Targets come from class descriptions, from the known labels of the graph, or from both. Candidates are class
means and ridge regression on features that are smoothed little, much or not at all. The leave-one-out loss on
the known labels, also in closed form, gives each candidate a weight, and the weighted sum of their scores is
the first guess. Then each class is estimated again from the nodes that the guess gives it, unless hidden
labels show that this does not help. Last, a step of linear discriminant analysis gives half of the scores. A
model whose gates are all zero predicts what the start does.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError
from adar_runtime.graph import NODE, Floats, Graph, Integers
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.smoothing import Smoothing
from adar_runtime.in_context.discriminant import Analysis
from adar_runtime.in_context.features import UnitRows, leading_directions, unit_rows
from adar_runtime.in_context.label_check import folds, losses_of
from adar_runtime.interruption import interruption_point

Numbers = NDArray[np.float64]

RESTARTS = (0.15, 1.0, 0.05)  # shares of a node's own features in smoothing; without labels, the first one
ANALYSED = (0.15, 1.0)  # restarts of the features of the discriminant analysis
ROUNDS = 8  # of smoothing
PENALTIES = (0.1, 1.0)  # of ridge regression on unit rows
SHARPNESS = 3.0  # of the weights of the candidates: exp(-SHARPNESS · loss)
LOSS_SPREAD = 2.0  # spread of the logits in the leave-one-out loss
LEAST_WEIGHT = 1e-4  # of all candidates with the same smoothing; below it, their columns are left out
SPREAD = 2.0  # mean over nodes of the standard deviation of a node's logits
ESTIMATES = 3  # how often the classes are estimated again
ESTIMATED = 0.5  # weight of the estimated means of the classes against the first guess
ROUNDING = 1e-6  # a smaller spread of scores is rounding, as in a graph with one node
LEAST_SHARE = 0.05  # added to the size of a class, relative to the mean size, before its logarithm


@dataclass(frozen=True)
class Start:
    """The state at t = 0, and the labels that the cell keeps.

    Attributes:
        nodes: [n, d].
        targets: [c, d].
        known: [n, c], 1 where the class of a node is known.
        method: The candidate with the largest weight, in words.
        estimated: Whether the classes were estimated again from their nodes.
    """

    nodes: Floats
    targets: Floats
    known: Floats
    method: str
    estimated: bool

    def as_graph(self, graph: Graph) -> Graph:
        """The graph with the placed nodes as features and the placed targets as class descriptions."""
        return replace(graph, features=self.nodes, target_features=self.targets, feature_encoding=None)

    @property
    def scores(self) -> Floats:
        """The scores of the start [n, c], before softmax."""
        scores: Floats = self.nodes @ self.targets.T / np.float32(self.nodes.shape[1] ** 0.5)
        return scores


@dataclass(frozen=True)
class _Candidate:
    """One way to score nodes: (nodes smoothed with `restart`) · targets + bias."""

    method: str
    restart: float
    targets: Floats  # [c, d]
    bias: Floats  # [c]
    left_out: Floats  # [l, c], scores of the labelled nodes that leave their own label out

    def scores(self, nodes: Floats) -> Floats:
        interruption_point()
        scores: Floats = nodes @ self.targets.T + self.bias
        return scores

    def loss(self, spread: float, labels: Integers) -> float:
        """The leave-one-out cross-entropy on the known labels."""
        logits = LOSS_SPREAD / spread * self.left_out.astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]))


@dataclass(frozen=True)
class _Guess:
    """The first guess: the scores of joined nodes [n, w] are their products with the targets [c, w].

    The last column of the nodes is constant. `known` is that of a Start, and so is `method`.
    """

    nodes: Floats
    targets: Floats
    known: Floats
    method: str

    def estimated(self) -> Floats:
        """Estimate the targets [c, w] again, from the nodes that each class has now.

        The class of a node is a softmax of its scores, or its known label. A class becomes a mixture of its
        first target and of the mean direction of its nodes, and large classes become more likely. It is like
        expectation-maximisation that stays near the first guess.
        """
        nodes = self.nodes
        first = self.targets / np.float32(_spread(nodes @ self.targets.T))
        now = first
        for _ in range(ESTIMATES):
            interruption_point()
            psi = self.relation(nodes @ now.T)
            interruption_point()
            means = psi.T @ nodes
            means[:, -1] = 0
            means = unit_rows(means)
            means /= np.float32(_spread(nodes @ means.T))
            now = (1 - ESTIMATED) * first + ESTIMATED * means
            now[:, :-1] *= ((1 - ESTIMATED) * _lengths(first) + ESTIMATED * _lengths(means)) / _lengths(now)
            now /= np.float32(_spread(nodes @ now.T))
            now[:, -1] += _prior(psi) / (SPREAD * nodes[:, -1].mean())
        return now.astype(np.float32)

    def relation(self, scores: Floats) -> Floats:
        """The classes of the nodes [n, c]: a softmax of scores that have the spread 1, or the known label."""
        logits = np.float32(SPREAD) * (scores - scores.max(axis=1, keepdims=True))
        psi = np.exp(logits)
        is_known = self.known.sum(axis=1, keepdims=True)
        found: Floats = (1 - is_known) * psi / psi.sum(axis=1, keepdims=True) + self.known
        return found

    def analysed(self, targets: Floats, analysis: Analysis) -> "_Analysed":
        """Mix the scores of targets [c, w] with those of a discriminant analysis of the predicted classes."""
        scores = self.nodes @ targets.T
        factor = np.float32(1 / _spread(scores))
        psi = self.relation(factor * scores)
        interruption_point()
        found = analysis.of(psi)
        weights, first = found.weights, (1 - ESTIMATED) * factor * targets
        own = np.float32(ESTIMATED / _spread(analysis.features @ weights + found.bias))
        first[:, -1] += (own * found.bias + ESTIMATED / SPREAD * _prior(psi)) / self.nodes[:, -1].mean()
        return _Analysed(self.nodes, first, analysis.features, found.root, own * found.means)


@dataclass(frozen=True)
class _Analysed:
    """A guess after the discriminant analysis: nodes · targets + features · root · means."""

    nodes: Floats  # [n, w]
    targets: Floats  # [c, w]
    features: Floats  # [n, k]
    root: Floats  # [k, k]
    means: Floats  # [c, k]

    @property
    def scores(self) -> Floats:
        interruption_point()
        scores: Floats = self.nodes @ self.targets.T + self.features @ (self.root @ self.means.T)
        return scores

    def joined(self) -> tuple[Floats, Floats]:
        """Nodes and targets whose products are the scores. Both parts of the nodes have the same length."""
        interruption_point()
        rows = self.features @ self.root
        interruption_point()
        lengths = [float(np.square(part).sum(axis=1).mean()) ** 0.5 for part in (self.nodes[:, :-1], rows)]
        ratio = np.float32(lengths[0] / lengths[1] if min(lengths) > 0 else 1.0)
        interruption_point()
        nodes = np.concatenate([self.nodes, ratio * rows], axis=1)
        return nodes, np.concatenate([self.targets, self.means / ratio], axis=1)


def known_labels(graph: Graph) -> Integers:
    """The labels that a model may use, [n]: those of train_mask (of the first split), -1 elsewhere."""
    mask = None if graph.regression or graph.level != NODE else graph.labelled("train")
    if mask is None or graph.labels is None:
        return np.full(graph.nodes, -1)
    known: Integers = np.where(mask, graph.labels, -1)
    return known


def of_split(graph: Graph, split: int) -> Graph:
    """The graph with one of its splits. Without a test mask, all labels that are not known are tested."""
    if graph.train_mask is None or graph.labels is None:
        return graph
    graph.labelled("train", split)  # raises an error if there is no such split
    test = ~graph.train_mask[split] if graph.test_mask is None else graph.test_mask[split]
    val = None if graph.val_mask is None else graph.val_mask[split]
    return replace(graph, train_mask=graph.train_mask[split], val_mask=val, test_mask=test)


def can_start(graph: Graph) -> bool:
    """Whether a graph has class descriptions, or known labels of at least two classes."""
    is_described = graph.target_features is not None
    is_classified = graph.level == NODE and not graph.regression
    return is_classified and (is_described or len(set(known_labels(graph).tolist()) - {-1}) > 1)


def check_can_start(graph: Graph) -> None:
    """Raise a GraphError if a pretrained model cannot answer for a graph."""
    if not can_start(graph):
        raise GraphError(
            "a pretrained model classifies nodes, and it needs class descriptions (target_x) or known labels "
            "of at least two classes (y, with train_mask for the known ones): add them, or train a model"
        )


def restarted(neighbours: Neighbours, rows: Floats) -> dict[float, Floats]:
    """Rows [n, d] smoothed with each of RESTARTS: every round adds a share of the rows themselves.

    Rounds of smoothing are computed once: H = Σ_k a (1 - a)^k S^k X for the share a, and 1 - a in the last
    round.
    """
    found = {share: np.float32(share) * rows for share in RESTARTS}
    for number in range(1, ROUNDS + 1):
        rows = Smoothing(neighbours, 1)(rows)
        for share in RESTARTS:
            weight = (1 - share) ** number * (1 if number == ROUNDS else share)
            if weight:
                found[share] += np.float32(weight) * rows
    return found


@dataclass(frozen=True)
class SmoothedFeatures:
    """The part of a start that does not depend on labels.

    Attributes:
        nodes: For each smoothing, centred rows of nearly unit length [n, d].
        middles: For each smoothing, the mean [d] that was subtracted.
        descriptions: Centred class descriptions of unit length [c, d]; None if the graph has none.
        columns: d.
    """

    nodes: dict[float, Floats]
    middles: dict[float, Floats]
    descriptions: Floats | None
    columns: int

    @classmethod
    def of(
        cls,
        graph: Graph,
        columns: int,
        smoothed: Callable[[Neighbours, Floats], dict[float, Floats]] = restarted,
    ) -> "SmoothedFeatures":
        """Smooth the features of a graph, seen along its `columns` leading directions."""
        neighbours, described = Neighbours.in_graph(graph), graph.target_features
        if described is not None:
            described = unit_rows(described)  # a longer description would decide the centre
            described = described - described.mean(axis=0)
        first = np.zeros((0, graph.width), np.float32) if described is None else described
        rows = UnitRows(graph)
        basis = leading_directions(rows, Smoothing(neighbours, 2), columns, first)
        found = smoothed(neighbours, rows.times(basis))
        units = {restart: unit_rows(each) for restart, each in found.items()}
        middles: dict[float, Floats] = {restart: unit.mean(axis=0) for restart, unit in units.items()}
        nodes = {restart: unit - middles[restart] for restart, unit in units.items()}
        return cls(nodes, middles, None if described is None else unit_rows(described @ basis), columns)

    def start(self, labels: Integers, count: int, *, estimate: bool | None = None) -> Start:
        """The start for the known labels [n] (-1 where unknown) of `count` classes.

        `estimate` says whether the classes are estimated again; None lets hidden labels decide.
        """
        guess = self._guess(labels, count)
        estimate = self._estimate_helps(labels, count) if estimate is None else estimate
        analysed = guess.analysed(guess.estimated() if estimate else guess.targets, self._analysis)
        placed = _reduced(*analysed.joined(), self.columns)
        return Start(*_balanced(*placed), guess.known, guess.method, estimate)

    def _guess(self, labels: Integers, count: int) -> "_Guess":
        """The weighted sum of all candidates."""
        nodes, candidates = self.nodes, _candidates(self, labels, count)
        labelled = np.flatnonzero(labels >= 0)
        spreads = [_spread(each.scores(nodes[each.restart])) for each in candidates]
        if len(labelled):
            losses = [
                each.loss(spread, labels[labelled]) for each, spread in zip(candidates, spreads, strict=True)
            ]
            weights = np.exp(-SHARPNESS * (np.array(losses) - min(losses)))
        else:
            weights = np.array([float(each.restart == RESTARTS[0]) for each in candidates])
        weights /= weights.sum()
        known = np.zeros((len(labels), count), np.float32)
        known[labelled, labels[labelled]] = 1
        best = candidates[int(weights.argmax())]
        method = f"{best.method}, restart: {best.restart:g}"
        return _Guess(*_joined(nodes, candidates, weights / spreads, weights), known, method)

    def _estimate_helps(self, labels: Integers, count: int) -> bool:
        """Whether hidden labels are predicted better after the classes are estimated again.

        Without labels to hide, the answer is yes, as chosen on validation graphs with descriptions.
        """
        gain = 0.0
        for hidden in folds(labels):
            guess = self._guess(np.where(hidden, -1, labels), count)
            before, after = (
                losses_of(guess.analysed(targets, self._analysis).scores[hidden], labels[hidden])
                for targets in (guess.targets, guess.estimated())
            )
            gain += float((before - after).sum())
        return gain >= 0

    @cached_property
    def _analysis(self) -> Analysis:
        return Analysis(np.concatenate([self.nodes[restart] for restart in ANALYSED], axis=1))


def start(graph: Graph, columns: int) -> Start:
    """Place the nodes and the targets of a graph in `columns` columns.

    Args:
        graph: A graph with class descriptions, with known labels, or with both.
        columns: d, the number of columns of a state.

    Returns:
        The state at t = 0.

    Raises:
        GraphError: The graph has neither class descriptions nor known labels of at least two classes.
    """
    check_can_start(graph)
    return SmoothedFeatures.of(graph, columns).start(known_labels(graph), graph.targets)


def free_scores(graph: Graph, columns: int) -> list[Floats]:
    """The scores [n, c] of every candidate with two rounds of smoothing without restart, as baselines."""
    check_can_start(graph)
    features = SmoothedFeatures.of(graph, columns, lambda edges, rows: {0.0: Smoothing(edges, 2)(rows)})
    candidates = _candidates(features, known_labels(graph), graph.targets)
    return [each.scores(features.nodes[each.restart]) for each in candidates]


def _joined(
    nodes: dict[float, Floats], candidates: Sequence[_Candidate], factors: Numbers, weights: Numbers
) -> tuple[Floats, Floats]:
    """Nodes and targets whose products are the weighted scores of all candidates.

    Each smoothing has a block of columns, which is long where its candidates have large weights. The
    last column is constant and carries the biases.
    """
    blocks_h, blocks_c = [], []
    bias: Floats = np.zeros(len(candidates[0].targets), np.float32)
    for restart, rows in nodes.items():
        own = [i for i, each in enumerate(candidates) if each.restart == restart]
        total = float(weights[own].sum())
        if total < LEAST_WEIGHT:
            continue
        blocks_h.append(rows * np.float32(total**0.5))
        blocks_c.append(sum(np.float32(factors[i] / total**0.5) * candidates[i].targets for i in own))
        bias = bias + sum(np.float32(factors[i]) * candidates[i].bias for i in own)
    length = float(np.mean([np.linalg.norm(rows, axis=1).mean() for rows in blocks_h])) or 1.0
    constant = np.full((len(blocks_h[0]), 1), length, np.float32)
    joined_c = np.concatenate([*blocks_c, bias[:, None] / np.float32(length)], axis=1)
    return np.concatenate([*blocks_h, constant], axis=1), joined_c.astype(np.float32)


def _reduced(nodes: Floats, targets: Floats, columns: int) -> tuple[Floats, Floats]:
    """Nodes and targets in `columns` columns: the span of the targets, then directions of most variance."""
    interruption_point()
    wide = nodes.shape[1]
    if wide <= columns:
        extra = ((0, 0), (0, columns - wide))
        return np.pad(nodes, extra), np.pad(targets, extra)
    every = np.linalg.qr(targets.T.astype(np.float64), mode="complete")[0]  # [w, w]
    kept = min(len(targets), columns)
    basis, rest = every[:, :kept], every[:, kept:]
    # Inside `rest`: with few features, directions without variance could be those of the targets again.
    variance = rest.T @ (nodes.T @ nodes).astype(np.float64) @ rest
    interruption_point()
    leading = rest @ np.linalg.eigh(variance)[1][:, ::-1][:, : columns - kept]
    basis = np.concatenate([basis, leading], axis=1).astype(np.float32)
    return nodes @ basis, targets @ basis


def _candidates(features: "SmoothedFeatures", labels: Integers, count: int) -> list[_Candidate]:
    """Every way to score the nodes, for the known labels of `count` classes."""
    found: list[_Candidate] = []
    for restart, nodes in features.nodes.items():
        found += _of_smoothing(
            restart, nodes, features.middles[restart], labels, count, features.descriptions
        )
    return found


def _of_smoothing(
    restart: float, nodes: Floats, middle: Floats, labels: Integers, count: int, descriptions: Floats | None
) -> Iterator[_Candidate]:
    """The candidates that use the nodes of one smoothing."""
    labelled = np.flatnonzero(labels >= 0)
    rows, own = nodes[labelled], labels[labelled]
    if descriptions is not None:
        no_bias = np.zeros(count, np.float32)
        yield _Candidate("descriptions", restart, descriptions, no_bias, rows @ descriptions.T)
    if len(labelled):
        yield _means(restart, rows, own, count, descriptions)
        yield from _ridges(restart, rows, middle, own, count)


def _means(
    restart: float, rows: Floats, own: Integers, count: int, descriptions: Floats | None
) -> _Candidate:
    """Class means of unit length, plus the descriptions of unit length where there are any."""
    members = np.eye(count, dtype=np.float32)[own]  # [l, c]
    sums, sizes = members.T @ rows, members.sum(axis=0)
    means = unit_rows(sums)
    without = unit_rows(sums[own] - rows)  # the mean of each labelled node's class without the node
    if descriptions is None:
        means[sizes == 0] = -means.sum(axis=0) / max(1, int((sizes > 0).sum()))
    else:
        means, without = means + descriptions, without + descriptions[own]
    left_out = rows @ means.T
    left_out[np.arange(len(own)), own] = (rows * without).sum(axis=1)
    method = "class means" if descriptions is None else "class means and descriptions"
    return _Candidate(method, restart, means, np.zeros(count, np.float32), left_out)


def _ridges(
    restart: float, centred: Floats, middle: Floats, own: Integers, count: int
) -> Iterator[_Candidate]:
    """Ridge regression of the classes' indicators, with the leave-one-out predictions of the hat matrix."""
    rows = (centred + middle).astype(np.float64)
    wanted = np.eye(count)[own] - 1 / count
    for penalty in PENALTIES:
        interruption_point()
        inverse = np.linalg.inv(rows.T @ rows + penalty * np.eye(rows.shape[1]))
        targets = (inverse @ (rows.T @ wanted)).T  # [c, d]
        leverage = ((rows @ inverse) * rows).sum(axis=1, keepdims=True)
        left_out = wanted - (wanted - rows @ targets.T) / (1 - leverage)
        method = f"ridge regression with penalty {penalty:g}"
        arrays = (targets, targets @ middle, left_out)
        yield _Candidate(method, restart, *(array.astype(np.float32) for array in arrays))


def _spread(scores: Floats) -> float:
    """The mean over nodes of the standard deviation of a node's scores [n, c]; 1 if all are equal."""
    interruption_point()
    spread = float(scores.std(axis=1).mean())
    return spread if spread > ROUNDING else 1.0


def _prior(psi: Floats) -> Floats:
    """The logarithm of the size of each class [c], with the mean zero."""
    prior = np.log(psi.shape[1] * psi.mean(axis=0) + LEAST_SHARE)
    found: Floats = prior - prior.mean()
    return found


def _balanced(nodes: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """Scale both sides: logits get the SPREAD, and nodes and targets the same mean square length."""
    product = SPREAD / _spread(nodes @ targets.T) * nodes.shape[1] ** 0.5
    lengths = [float(np.square(side).sum(axis=1).mean()) ** 0.5 or 1.0 for side in (nodes, targets)]
    ratio = (lengths[1] / lengths[0]) ** 0.5
    return nodes * np.float32(product**0.5 * ratio), targets * np.float32(product**0.5 / ratio)


def _lengths(rows: Floats) -> Floats:
    """The length of each row without its last column, [k, 1]; not zero."""
    lengths: Floats = np.linalg.norm(rows[:, :-1], axis=1, keepdims=True)
    return np.maximum(lengths, np.float32(1e-12))
