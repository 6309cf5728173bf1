"""The closed-form start of a pretrained model: where nodes and targets are before the first step.

Targets come from class descriptions, from the known labels of the graph, or from both. Candidates are class
means and ridge regression on features that are smoothed 0, 2 or 4 rounds. The leave-one-out loss on the known
labels, also in closed form, gives each candidate a weight, and the start has the weighted sum of their
scores. A model whose gates are all zero predicts what the start does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError
from adar_runtime.graph import NODE, Floats, Graph, Integers
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.smoothing import Smoothing
from adar_runtime.in_context.features import UnitRows, leading_directions, unit_rows

Numbers = NDArray[np.float64]

ROUNDS = (2, 0, 4)  # of smoothing; without labels, the first one is used
PENALTIES = (0.1, 1.0)  # of ridge regression on unit rows
SHARPNESS = 3.0  # of the weights of the candidates: exp(-SHARPNESS · loss)
LOSS_SPREAD = 2.0  # spread of the logits in the leave-one-out loss
LEAST_WEIGHT = 1e-4  # of all candidates of a number of rounds; below it, their columns are left out
SPREAD = 1.0  # mean over nodes of the standard deviation of a node's logits, without known labels
LABELLED_SPREAD = 2.0  # the same with known labels; the gates of each task were trained with its spread


@dataclass(frozen=True)
class Start:
    """The state at t = 0, and the labels that the cell keeps.

    Attributes:
        nodes: [n, d].
        targets: [c, d].
        known: [n, c], 1 where the class of a node is known.
        method: The candidate with the largest weight, in words.
    """

    nodes: Floats
    targets: Floats
    known: Floats
    method: str

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
    """One way to score nodes: (nodes after `rounds` rounds) · targets + bias."""

    method: str
    rounds: int
    targets: Floats  # [c, d]
    bias: Floats  # [c]
    left_out: Floats  # [l, c], scores of the labelled nodes that leave their own label out

    def scores(self, nodes: Floats) -> Floats:
        scores: Floats = nodes @ self.targets.T + self.bias
        return scores

    def loss(self, spread: float, labels: Integers) -> float:
        """The leave-one-out cross-entropy on the known labels."""
        logits = LOSS_SPREAD / spread * self.left_out.astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]))


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


@dataclass(frozen=True)
class SmoothedFeatures:
    """The part of a start that does not depend on labels.

    Attributes:
        nodes: For each number of rounds of smoothing, centred rows of nearly unit length [n, d].
        middles: For each number of rounds, the mean [d] that was subtracted.
        descriptions: Centred class descriptions of unit length [c, d]; None if the graph has none.
        columns: d.
    """

    nodes: dict[int, Floats]
    middles: dict[int, Floats]
    descriptions: Floats | None
    columns: int

    @classmethod
    def of(cls, graph: Graph, columns: int) -> "SmoothedFeatures":
        """Smooth the features of a graph, seen along its `columns` leading directions."""
        neighbours, described = Neighbours.in_graph(graph), graph.target_features
        if described is not None:
            described = described - described.mean(axis=0)
        first = np.zeros((0, graph.width), np.float32) if described is None else described
        rows = UnitRows(graph)
        basis = leading_directions(rows, Smoothing(neighbours, 2), columns, first)
        smoothed = [rows.times(basis)]
        for _ in range(max(ROUNDS)):
            smoothed.append(Smoothing(neighbours, 1)(smoothed[-1]))
        units = {rounds: unit_rows(smoothed[rounds]) for rounds in ROUNDS}
        middles: dict[int, Floats] = {rounds: unit.mean(axis=0) for rounds, unit in units.items()}
        nodes = {rounds: unit - middles[rounds] for rounds, unit in units.items()}
        return cls(nodes, middles, None if described is None else unit_rows(described @ basis), columns)

    def start(self, labels: Integers, count: int) -> Start:
        """The start for the known labels [n] (-1 where unknown) of `count` classes."""
        nodes, candidates = self.nodes, _candidates(self, labels, count)
        labelled = np.flatnonzero(labels >= 0)
        spreads = [float(each.scores(nodes[each.rounds]).std(axis=1).mean()) or 1.0 for each in candidates]
        if len(labelled):
            losses = [
                each.loss(spread, labels[labelled]) for each, spread in zip(candidates, spreads, strict=True)
            ]
            weights = np.exp(-SHARPNESS * (np.array(losses) - min(losses)))
        else:
            weights = np.array([float(each.rounds == ROUNDS[0]) for each in candidates])
        weights /= weights.sum()
        known = np.zeros((len(labels), count), np.float32)
        known[labelled, labels[labelled]] = 1
        placed = _joined(nodes, candidates, weights / spreads, weights)
        best = candidates[int(weights.argmax())]
        method = f"{best.method}, rounds: {best.rounds}"
        spread = LABELLED_SPREAD if len(labelled) else SPREAD
        return Start(*_balanced(*_reduced(*placed, self.columns), spread), known, method)


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
    """The scores [n, c] of every candidate with two rounds of smoothing, as baselines."""
    check_can_start(graph)
    features = SmoothedFeatures.of(graph, columns)
    candidates = _candidates(features, known_labels(graph), graph.targets)
    return [each.scores(features.nodes[2]) for each in candidates if each.rounds == 2]


def _joined(
    nodes: dict[int, Floats], candidates: Sequence[_Candidate], factors: Numbers, weights: Numbers
) -> tuple[Floats, Floats]:
    """Nodes and targets whose products are the weighted scores of all candidates.

    Each number of rounds has a block of columns, which is long where its candidates have large weights. The
    last column is constant and carries the biases.
    """
    blocks_h, blocks_c = [], []
    bias: Floats = np.zeros(len(candidates[0].targets), np.float32)
    for rounds, rows in nodes.items():
        own = [i for i, each in enumerate(candidates) if each.rounds == rounds]
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
    wide = nodes.shape[1]
    if wide <= columns:
        extra = ((0, 0), (0, columns - wide))
        return np.pad(nodes, extra), np.pad(targets, extra)
    every = np.linalg.qr(targets.T.astype(np.float64), mode="complete")[0]  # [w, w]
    kept = min(len(targets), columns)
    basis, rest = every[:, :kept], every[:, kept:]
    # Inside `rest`: with few features, directions without variance could be those of the targets again.
    variance = rest.T @ (nodes.T @ nodes).astype(np.float64) @ rest
    leading = rest @ np.linalg.eigh(variance)[1][:, ::-1][:, : columns - kept]
    basis = np.concatenate([basis, leading], axis=1).astype(np.float32)
    return nodes @ basis, targets @ basis


def _candidates(features: "SmoothedFeatures", labels: Integers, count: int) -> list[_Candidate]:
    """Every way to score the nodes, for the known labels of `count` classes."""
    found: list[_Candidate] = []
    for rounds, nodes in features.nodes.items():
        found += _of_rounds(rounds, nodes, features.middles[rounds], labels, count, features.descriptions)
    return found


def _of_rounds(
    rounds: int, nodes: Floats, middle: Floats, labels: Integers, count: int, descriptions: Floats | None
) -> Iterator[_Candidate]:
    """The candidates that use the nodes of one number of rounds."""
    labelled = np.flatnonzero(labels >= 0)
    rows, own = nodes[labelled], labels[labelled]
    if descriptions is not None:
        no_bias = np.zeros(count, np.float32)
        yield _Candidate("descriptions", rounds, descriptions, no_bias, rows @ descriptions.T)
    if len(labelled):
        yield _means(rounds, rows, own, count, descriptions)
        yield from _ridges(rounds, rows, middle, own, count)


def _means(rounds: int, rows: Floats, own: Integers, count: int, descriptions: Floats | None) -> _Candidate:
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
    return _Candidate(method, rounds, means, np.zeros(count, np.float32), left_out)


def _ridges(rounds: int, centred: Floats, middle: Floats, own: Integers, count: int) -> Iterator[_Candidate]:
    """Ridge regression of the classes' indicators, with the leave-one-out predictions of the hat matrix."""
    rows = (centred + middle).astype(np.float64)
    wanted = np.eye(count)[own] - 1 / count
    for penalty in PENALTIES:
        inverse = np.linalg.inv(rows.T @ rows + penalty * np.eye(rows.shape[1]))
        targets = (inverse @ (rows.T @ wanted)).T  # [c, d]
        leverage = ((rows @ inverse) * rows).sum(axis=1, keepdims=True)
        left_out = wanted - (wanted - rows @ targets.T) / (1 - leverage)
        method = f"ridge regression with penalty {penalty:g}"
        arrays = (targets, targets @ middle, left_out)
        yield _Candidate(method, rounds, *(array.astype(np.float32) for array in arrays))


def _balanced(nodes: Floats, targets: Floats, spread: float) -> tuple[Floats, Floats]:
    """Scale both sides: logits get the spread, and nodes and targets the same mean square length."""
    product = spread / (float((nodes @ targets.T).std(axis=1).mean()) or 1.0) * nodes.shape[1] ** 0.5
    lengths = [float(np.square(side).sum(axis=1).mean()) ** 0.5 or 1.0 for side in (nodes, targets)]
    ratio = (lengths[1] / lengths[0]) ** 0.5
    return nodes * np.float32(product**0.5 * ratio), targets * np.float32(product**0.5 / ratio)
