"""The closed-form start of a pretrained model: where nodes and targets are before the first step.

Targets come from class descriptions, from the known labels of the graph, or from both. Candidates are class
means and ridge regression on features that are smoothed 0 to 3 rounds. The leave-one-out error on the known
labels, also in closed form, chooses one. The scores of the start are the predictions of a model whose gates
are all zero: a trained cell starts from them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from adar_runtime.errors import GraphError
from adar_runtime.graph import MASKS, NODE, Floats, Graph, Integers
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.smoothing import Smoothing
from adar_runtime.in_context.features import UnitRows, leading_directions, unit_rows

ROUNDS = (2, 1, 3, 0)  # of smoothing; with equal leave-one-out errors, the earlier candidate is chosen
PENALTIES = (0.1, 1.0)  # of ridge regression on unit rows
SPREAD = 1.0  # mean over nodes of the standard deviation of a node's logits


@dataclass(frozen=True)
class Start:
    """The state at t = 0, and the labels that the cell keeps.

    Attributes:
        nodes: [n, d].
        targets: [c, d].
        known: [n, c], 1 where the class of a node is known.
        method: How the targets were chosen, in words.
        error: The leave-one-out error on the known labels; None without labels.
    """

    nodes: Floats
    targets: Floats
    known: Floats
    method: str
    error: float | None = None

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
    """One way to place nodes and targets, with its scores for labelled nodes that leave their label out."""

    method: str
    nodes: Floats  # [n, d]
    targets: Floats  # [c, d]
    left_out: Floats | None = None  # [l, c]

    def error(self, labels: Integers) -> float:
        assert self.left_out is not None
        return float((self.left_out.argmax(axis=1) != labels).mean())


def known_labels(graph: Graph) -> Integers:
    """The labels that a model may use, [n]: those of train_mask (of the first split), -1 elsewhere."""
    mask = None if graph.regression or graph.level != NODE else graph.labelled("train")
    if mask is None or graph.labels is None:
        return np.full(graph.nodes, -1)
    known: Integers = np.where(mask, graph.labels, -1)
    return known


def of_split(graph: Graph, split: int) -> Graph:
    """The graph with one of its splits. Without a test mask, the labels that a model does not see are tested."""
    if graph.train_mask is None:
        return graph
    graph.labelled("train", split)  # raises an error if there is no such split
    masks = {name: getattr(graph, name) for name in MASKS}
    chosen = {name: None if mask is None else mask[split] for name, mask in masks.items()}
    if chosen["test_mask"] is None:
        chosen["test_mask"] = ~graph.train_mask[split]
    return replace(graph, **chosen)


def can_start(graph: Graph) -> bool:
    """Whether a graph has class descriptions, or known labels of at least two classes."""
    is_described = graph.target_features is not None
    is_classified = graph.level == NODE and not graph.regression
    return is_classified and (is_described or len(set(known_labels(graph).tolist()) - {-1}) > 1)


def check_can_start(graph: Graph) -> None:
    """Raise a GraphError if a pretrained model cannot answer for a graph."""
    if not can_start(graph):
        raise GraphError(
            "a pretrained model classifies nodes, and it needs class descriptions (target_x) or known labels of "
            "at least two classes (y, with train_mask for the known ones): add them, or train a model"
        )


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
    labels = known_labels(graph)
    labelled = np.flatnonzero(labels >= 0)
    candidates = list(_candidates(graph, columns, labels, labelled))
    chosen, error = candidates[0], None
    if len(labelled):
        errors = [each.error(labels[labelled]) for each in candidates]
        chosen, error = candidates[int(np.argmin(errors))], min(errors)
    known = np.zeros((graph.nodes, graph.targets), np.float32)
    known[labelled, labels[labelled]] = 1
    return Start(*_balanced(chosen.nodes, chosen.targets), known, chosen.method, error)


def _candidates(graph: Graph, columns: int, labels: Integers, labelled: Integers) -> Iterator[_Candidate]:
    neighbours = Neighbours.in_graph(graph)
    described = graph.target_features
    if described is not None:
        described = described - described.mean(axis=0)
    first = np.zeros((0, graph.width), np.float32) if described is None else described
    rows = UnitRows(graph)
    basis = leading_directions(rows, Smoothing(neighbours, 2), columns, first)
    smoothed = [rows.times(basis)]
    for _ in range(max(ROUNDS)):
        smoothed.append(Smoothing(neighbours, 1)(smoothed[-1]))
    descriptions = None if described is None else unit_rows(described @ basis)
    for rounds in ROUNDS:
        nodes = unit_rows(smoothed[rounds])
        centred = nodes - nodes.mean(axis=0)
        if descriptions is not None:
            left_out = centred[labelled] @ descriptions.T
            yield _Candidate(f"descriptions, {rounds} rounds", centred, descriptions, left_out)
        if len(labelled):
            yield _means(centred, labels, labelled, graph.targets, descriptions, rounds)
            if descriptions is None:
                yield from _ridges(nodes, labels, labelled, graph.targets, rounds)


def _means(
    nodes: Floats, labels: Integers, labelled: Integers, count: int, descriptions: Floats | None, rounds: int
) -> _Candidate:
    """Class means of unit length, plus the descriptions of unit length where there are any."""
    own, rows = labels[labelled], nodes[labelled]
    members = np.eye(count, dtype=np.float32)[own]  # [l, c]
    sums, sizes = members.T @ rows, members.sum(axis=0)
    others = unit_rows(sums)
    if descriptions is None:
        others[sizes == 0] = -others.sum(axis=0) / max(1, int((sizes > 0).sum()))
    extra = 0 if descriptions is None else descriptions
    left_out = rows @ (others + extra).T
    without = unit_rows(sums[own] - rows)  # the mean of each labelled node's class without the node
    alone = without + (0 if descriptions is None else descriptions[own])
    left_out[np.arange(len(own)), own] = (rows * alone).sum(axis=1)
    left_out[np.arange(len(own))[sizes[own] == 1], own[sizes[own] == 1]] -= 0 if descriptions is not None else 1
    what = "class means" if descriptions is None else "class means and descriptions"
    return _Candidate(f"{what}, {rounds} rounds", nodes, (others + extra).astype(np.float32), left_out)


def _ridges(
    nodes: Floats, labels: Integers, labelled: Integers, count: int, rounds: int
) -> Iterator[_Candidate]:
    """Ridge regression of the classes' indicators, with the leave-one-out predictions of the hat matrix."""
    rows = nodes[labelled].astype(np.float64)
    wanted = np.eye(count)[labels[labelled]] - 1 / count
    for penalty in PENALTIES:
        inverse = np.linalg.inv(rows.T @ rows + penalty * np.eye(rows.shape[1]))
        kernel = inverse @ (rows.T @ wanted)  # [d, c]
        leverage = ((rows @ inverse) * rows).sum(axis=1, keepdims=True)
        left_out = wanted - (wanted - rows @ kernel) / (1 - leverage)
        yield _Candidate(
            f"ridge {penalty:g}, {rounds} rounds",
            nodes,
            kernel.T.astype(np.float32),
            left_out.astype(np.float32),
        )


def _balanced(nodes: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """Scale both sides: logits get the spread SPREAD, and nodes and targets the same mean square length."""
    logits = nodes @ targets.T
    spread = float(logits.std(axis=1).mean()) or 1.0
    product = SPREAD / spread * nodes.shape[1] ** 0.5
    lengths = [float(np.square(side).sum(axis=1).mean()) ** 0.5 or 1.0 for side in (nodes, targets)]
    ratio = (lengths[1] / lengths[0]) ** 0.5
    factors = product**0.5 * ratio, product**0.5 / ratio
    return (nodes * np.float32(factors[0])).astype(np.float32), (targets * np.float32(factors[1])).astype(
        np.float32
    )
