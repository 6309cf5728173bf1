"""The closed-form start of a pretrained model: where nodes and targets are before the first step.

Targets come from class descriptions, from the known labels of the graph, or from both. Features are smoothed
little, much and not at all. Each smoothing has experts (`experts.py`), and labels that are hidden in turn
give the experts their weights. The weighted sum of their scores is mixed with a linear discriminant analysis
(`discriminant.py`). A model whose gates are all zero predicts what the start does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError
from adar_runtime.graph import NODE, Floats, Graph, Integers
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.smoothing import Smoothing
from adar_runtime.in_context.candidates import SmoothedNodes, candidates
from adar_runtime.in_context.discriminant import Analysis, Joined
from adar_runtime.in_context.experts import UNSMOOTHED, expert_weights, experts
from adar_runtime.in_context.features import UnitRows, leading_directions, unit_rows
from adar_runtime.in_context.scores import SPREAD, LinearScores, indicators, spread
from adar_runtime.interruption import interruption_point

RESTARTS = (UNSMOOTHED, 0.3, 0.15, 0.05)  # shares of a node's own features in every round of smoothing
ANALYSED = (0.15, UNSMOOTHED)  # restarts of the features of the discriminant analysis
ROUNDS = 8  # of smoothing
LEAST_WEIGHT = 1e-4  # of all experts with the same smoothing; below it, their columns are left out


@dataclass(frozen=True)
class Start:
    """The state at t = 0, and the labels that the cell keeps.

    Attributes:
        nodes: [n, d].
        targets: [c, d].
        known: [n, c], 1 where the class of a node is known.
        weights: The weights of the experts, [k].
    """

    nodes: Floats
    targets: Floats
    known: Floats
    weights: NDArray[np.float64]

    def as_graph(self, graph: Graph) -> Graph:
        """The graph with the placed nodes as features and the placed targets as class descriptions."""
        return replace(graph, features=self.nodes, target_features=self.targets, feature_encoding=None)

    @property
    def scores(self) -> Floats:
        """The scores of the start [n, c], before softmax."""
        scores: Floats = self.nodes @ self.targets.T / np.float32(self.nodes.shape[1] ** 0.5)
        return scores


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
        smoothed: The nodes with each smoothing.
        descriptions: Centred class descriptions of unit length [c, d]; None if the graph has none.
        columns: d.
    """

    smoothed: Sequence[SmoothedNodes]
    descriptions: Floats | None
    columns: int

    @classmethod
    def of(
        cls,
        graph: Graph,
        columns: int,
        smooth: Callable[[Neighbours, Floats], dict[float, Floats]] = restarted,
    ) -> "SmoothedFeatures":
        """Smooth the features of a graph, seen along its `columns` leading directions."""
        neighbours, described = Neighbours.in_graph(graph), graph.target_features
        if described is not None:
            described = unit_rows(described)  # a longer description would decide the centre
            described = described - described.mean(axis=0)
        first = np.zeros((0, graph.width), np.float32) if described is None else described
        rows = UnitRows(graph)
        basis = leading_directions(rows, Smoothing(neighbours, 2), columns, first)
        found = smooth(neighbours, rows.times(basis))
        smoothed = []
        for restart in list(found):
            units = unit_rows(found.pop(restart))
            middle: Floats = units.mean(axis=0)
            smoothed.append(SmoothedNodes(restart, units - middle, middle))
        return cls(smoothed, None if described is None else unit_rows(described @ basis), columns)

    def start(self, labels: Integers, count: int, weights: NDArray[np.float64] | None = None) -> Start:
        """The start for the known labels [n] (-1 where unknown) of `count` classes.

        `weights` are those of the experts; None lets hidden labels decide.
        """
        if weights is None:
            weights = expert_weights(self.smoothed, labels, count, self.descriptions)
        found = experts(self.smoothed, labels, count, self.descriptions)
        shares = np.broadcast_to(weights, len(found))
        placed = joined(self.smoothed, found, shares / shares.sum()).analysed(self._analysis, labels)
        reduced = _reduced(placed.nodes, placed.targets, self.columns)
        return Start(*_balanced(*reduced), indicators(labels, count), weights)

    @cached_property
    def _analysis(self) -> Analysis:
        rows = [nodes.rows for nodes in self.smoothed if nodes.restart in ANALYSED]
        return Analysis(np.concatenate(rows, axis=1))


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
    [nodes] = features.smoothed
    found = candidates(nodes, known_labels(graph), graph.targets, features.descriptions)
    return [each.scores.of(nodes.rows) for each in found]


def joined(
    smoothed: Sequence[SmoothedNodes], found: Sequence[LinearScores], weights: NDArray[np.float64]
) -> Joined:
    """Nodes and targets whose products are the weighted scores of all experts.

    Each smoothing has a block of columns, which is long where its experts have large weights. The last column
    is constant and carries the biases.
    """
    blocks_h, blocks_c = [], []
    bias: Floats = np.zeros(len(found[0].bias), np.float32)
    for nodes in smoothed:
        own = [i for i, each in enumerate(found) if each.restart == nodes.restart]
        total = float(weights[own].sum())
        if total < LEAST_WEIGHT:
            continue
        blocks_h.append(nodes.rows * np.float32(total**0.5))
        blocks_c.append(sum(np.float32(weights[i] / total**0.5) * found[i].targets for i in own))
        bias = bias + sum(np.float32(weights[i]) * found[i].bias for i in own)
    length = float(np.mean([np.linalg.norm(rows, axis=1).mean() for rows in blocks_h])) or 1.0
    constant = np.full((len(blocks_h[0]), 1), length, np.float32)
    targets = np.concatenate([*blocks_c, bias[:, None] / np.float32(length)], axis=1)
    return Joined(np.concatenate([*blocks_h, constant], axis=1), targets.astype(np.float32))


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


def _balanced(nodes: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """Scale both sides: logits get the SPREAD, and nodes and targets the same mean square length."""
    product = SPREAD / spread(nodes @ targets.T) * nodes.shape[1] ** 0.5
    lengths = [float(np.square(side).sum(axis=1).mean()) ** 0.5 or 1.0 for side in (nodes, targets)]
    ratio = (lengths[1] / lengths[0]) ** 0.5
    return nodes * np.float32(product**0.5 * ratio), targets * np.float32(product**0.5 / ratio)
