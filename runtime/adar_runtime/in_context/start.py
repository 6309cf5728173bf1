"""The closed-form start of a pretrained model: where nodes and targets are before the first step.

Targets come from class descriptions, from the known labels of the graph, or from both. Features are smoothed
little, much and not at all. `ensemble.py` scores the classes by linear functions of them, and by the classes
of similar nodes. A model whose gates are all zero predicts what the start does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from adar_runtime.blas_threads import one_blas_thread
from adar_runtime.errors import GraphError
from adar_runtime.graph import NODE, Floats, Graph, Integers
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.smoothing import Smoothing
from adar_runtime.in_context.candidates import SmoothedNodes, candidates
from adar_runtime.in_context.ensemble import Choice, Ensemble
from adar_runtime.in_context.experts import TWICE, UNSMOOTHED
from adar_runtime.in_context.features import UnitRows, leading_directions, unit_rows
from adar_runtime.in_context.scores import ROUNDING, SPREAD, indicators, spread
from adar_runtime.in_context.similar_nodes import ComparedNodes
from adar_runtime.interruption import interruption_point

RESTARTS = (UNSMOOTHED, 0.3, 0.15, 0.05, TWICE)  # shares of a node's own features in a round of smoothing
ROUNDS = 8  # of smoothing


@dataclass(frozen=True)
class Start:
    """The state at t = 0, and the labels that the cell keeps.

    Attributes:
        nodes: [n, d].
        targets: [c, d].
        known: [n, c], 1 where the class of a node is known.
        choice: What hidden labels decided.
        compared: The nodes that all nodes were compared with.
    """

    nodes: Floats
    targets: Floats
    known: Floats
    choice: Choice
    compared: ComparedNodes

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
        if graph.level == NODE and graph.labels is not None and graph.train_mask is None:
            raise GraphError(
                "the graph has labels but no train_mask: a pretrained model uses only labels in train_mask "
                "(in a table, a column train_mask of true and false) and class descriptions (target_x)"
            )
        raise GraphError(
            "a pretrained model classifies nodes, and it needs class descriptions (target_x) or known labels "
            "of at least two classes (y, with train_mask for the known ones): add them, or train a model"
        )


def restarted(
    neighbours: Neighbours, rows: Floats, on_round: Callable[[Floats], None] = lambda _: None
) -> dict[float, Floats]:
    """Rows [n, d] smoothed with each of RESTARTS: every round adds a share of the rows themselves.

    `on_round` receives what the nodes send in each round.
    """

    def rounds() -> Iterator[Floats]:
        yield (now := rows)
        for _ in range(ROUNDS):
            yield (now := Smoothing(neighbours, 1)(now, on_round))

    return mixed(rounds())


def mixed(rounds: Iterable[Floats]) -> dict[float, Floats]:
    """Rows [n, d] smoothed with each of RESTARTS, from the rows before and after every round.

    Rounds of smoothing are computed once: H = Σ_k a (1 - a)^k S^k X for the share a, and 1 - a in the last
    round.
    """
    found: dict[float, Floats] = {}
    for number, rows in enumerate(rounds):
        for share in RESTARTS:
            weight = _weight(share, number)
            if not number:
                found[share] = np.float32(weight) * rows
            elif weight:
                found[share] += np.float32(weight) * rows
    return found


def _weight(share: float, number: int) -> float:
    """The weight of a round in the smoothing with a share."""
    if share == TWICE:
        return float(number == 2)
    return (1 - share) ** number * (1 if number == ROUNDS else share)


@dataclass(frozen=True)
class SmoothedFeatures:
    """The part of a start that does not depend on labels.

    Attributes:
        smoothed: The nodes with each smoothing.
        descriptions: Centred class descriptions of unit length [c, d]; None if the graph has none.
        columns: d.
        basis: The directions of the features, [f, d].
    """

    smoothed: Sequence[SmoothedNodes]
    descriptions: Floats | None
    columns: int
    basis: Floats

    @classmethod
    @one_blas_thread()
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
        features = UnitRows(graph)
        basis = leading_directions(features, Smoothing(neighbours, 2), columns, first)
        found = smooth(neighbours, features.times(basis))
        smoothed = []
        for restart in list(found):
            units = unit_rows(found.pop(restart))
            middle: Floats = units.mean(axis=0)
            rows = units - middle
            if np.ptp(units, axis=0).max() < ROUNDING:  # all nodes have the same features
                rows[:] = 0
            smoothed.append(SmoothedNodes(restart, rows, middle))
        return cls(smoothed, None if described is None else unit_rows(described @ basis), columns, basis)

    @one_blas_thread()
    def start(self, labels: Integers, count: int, choice: Choice | None = None) -> Start:
        """The start for the known labels [n] (-1 where unknown) of `count` classes.

        `choice` was made with more labels; None lets hidden labels decide.
        """
        choice = choice or self._ensemble.choice(labels, count)
        placed, compared = self._ensemble.placed(labels, count, choice, self.columns)
        reduced = _reduced(placed.nodes, placed.targets, self.columns)
        return Start(*_balanced(*reduced), indicators(labels, count), choice, compared)

    @cached_property
    def _ensemble(self) -> Ensemble:
        return Ensemble(self.smoothed, self.descriptions)


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
    features = SmoothedFeatures.of(graph, columns, lambda edges, rows: {TWICE: Smoothing(edges, 2)(rows)})
    [nodes] = features.smoothed
    found = candidates(nodes, known_labels(graph), graph.targets, features.descriptions)
    return [each.scores.of(nodes.rows) for each in found]


def _reduced(nodes: Floats, targets: Floats, columns: int) -> tuple[Floats, Floats]:
    """Nodes and targets in `columns` columns: the span of the targets, then directions of most variance."""
    interruption_point()
    wide, rows = nodes.shape[1], len(nodes) + len(targets)
    if rows < wide // 2:  # a small graph: its rows span few directions, so no large matrix is decomposed
        span = np.linalg.qr(np.concatenate([targets, nodes]).T.astype(np.float64))[0].astype(np.float32)
        return _reduced(nodes @ span, targets @ span, columns)
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
