"""Prepare graphs for a bundle. A pretrained model checks its moves with hidden labels."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adar_runtime.backends.prepared_batch import LARGEST
from adar_runtime.backends.prepared_graph import PreparedGraph, prepare
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import AdarError
from adar_runtime.graph import Floats, Graph, Integers, Mask
from adar_runtime.in_context.ensemble import Choice
from adar_runtime.in_context.label_check import STEPS, STRENGTHS, LabelCheck, chosen, folds
from adar_runtime.in_context.similar_nodes import ComparedNodes
from adar_runtime.in_context.start import SmoothedFeatures, known_labels
from adar_runtime.interruption import interruptible, interruption_point
from adar_runtime.loop.loop import Loop
from adar_runtime.loop.solvers import Euler
from adar_runtime.loop.stopping import Final
from adar_runtime.loop.together import Problem

if TYPE_CHECKING:
    from adar_runtime.bundle.bundle import Bundle

Scores = dict[float, Floats]
"""Scores [k, c] after STEPS steps with each of STRENGTHS."""


@dataclass(frozen=True, eq=False)
class HiddenPart:
    """A graph with a part of its known labels hidden."""

    prepared: PreparedGraph
    hidden: Mask  # [n]
    labels: Integers  # the hidden labels [l]

    def predicted(self, scores: Scores) -> "Predicted":
        """The scores of the hidden labels, from those of all nodes."""
        return Predicted(self.labels, {strength: each[self.hidden] for strength, each in scores.items()})


class Predicted(NamedTuple):
    """Hidden labels [l], and their scores [l, c]."""

    labels: Integers
    scores: Scores


@dataclass(frozen=True, eq=False)
class PlacedGraph:
    """A graph at the closed-form start of a pretrained model, before its label check."""

    prepared: PreparedGraph
    features: SmoothedFeatures
    labels: Integers  # the known labels [n], -1 elsewhere
    choice: Choice  # of the hidden labels, as in `Start`
    compared: ComparedNodes

    @classmethod
    def of(
        cls, graph: Graph, manifest: Manifest, *, by_row: bool, features: SmoothedFeatures | None = None
    ) -> "PlacedGraph":
        """Place a graph with all known labels. `features` are its own, if they are smoothed already."""
        labels = known_labels(graph)
        features = features or SmoothedFeatures.of(graph, manifest.features)
        first = features.start(labels, graph.targets)
        prepared = prepare(graph, manifest, by_row=by_row, first=first)
        return cls(prepared, features, labels, first.choice, first.compared)

    def parts(self) -> Iterator[HiddenPart]:
        """Place the graph once for each hidden part of the labels. One part is in memory at a time."""
        for hidden in folds(self.labels):
            known = np.where(hidden, -1, self.labels)
            start = self.features.start(known, self.prepared.targets, self.choice)
            yield HiddenPart(self.prepared.with_start(start), hidden, self.labels[hidden])

    def checked(self, predicted: Sequence[Predicted]) -> PreparedGraph:
        """The graph with the strength that its hidden labels choose."""
        check = choose(predicted, is_chance=self.choice.is_chance)
        return replace(self.prepared, check=check) if predicted else self.prepared


def choose(predicted: Sequence[Predicted], *, is_chance: bool) -> LabelCheck | None:
    """What all hidden labels say; None if there are none."""
    if not predicted:
        return None
    scores = {
        strength: np.concatenate([each.scores[strength] for each in predicted]) for strength in STRENGTHS
    }
    labels = np.concatenate([each.labels for each in predicted])
    return chosen(scores, labels, is_chance=is_chance)


def prepare_for(bundle: "Bundle", graph: Graph) -> PreparedGraph:
    """Prepare a graph. A pretrained model checks its moves with parts of the known labels hidden."""
    manifest = bundle.manifest
    if not manifest.in_context:
        return prepare(graph, manifest, by_row=bundle.by_row)
    placed = PlacedGraph.of(graph, manifest, by_row=bundle.by_row)
    return check_moves(bundle, placed, placed.parts())


def check_moves(bundle: "Bundle", placed: PlacedGraph, parts: Iterable[HiddenPart]) -> PreparedGraph:
    """Choose the strength of the moves for a placed graph, with its hidden parts."""
    if bundle.small_graphs is None or placed.prepared.graph.nodes > LARGEST:
        return placed.checked([part.predicted(_scores(bundle, part.prepared)) for part in parts])
    parts = list(parts)
    scores = bundle.small_graphs.scores_of_parts([part.prepared for part in parts], _interruption)
    found = _checked(placed, parts, scores)
    if isinstance(found, AdarError):
        raise found
    return found


def prepare_many(
    graphs: Sequence[Graph],
    manifest: Manifest,
    scores_of_parts: Callable[[Sequence[PreparedGraph], Problem | None], list[Scores | AdarError]],
    problem: Problem | None,
    *,
    by_row: bool,
) -> list[PreparedGraph | AdarError]:
    """Prepare small graphs for a pretrained model. The label checks of all graphs run together.

    Args:
        graphs: The graphs.
        manifest: The manifest of the bundle.
        scores_of_parts: Runs graphs with hidden labels.
        problem: Called with the index of a graph: why to stop it, or None.
        by_row: Whether the encoder treats each node alone.

    Returns:
        Each graph, or the error that stopped it.
    """
    placed = [_placed(graph, manifest, problem, i, by_row=by_row) for i, graph in enumerate(graphs)]
    parts = [(index, part.prepared) for index, (_, parts) in enumerate(placed) for part in parts]
    asking = None if problem is None else lambda position: problem(parts[position][0])
    scores: list[list[Scores | AdarError]] = [[] for _ in graphs]
    for (index, _), found in zip(parts, scores_of_parts([part for _, part in parts], asking), strict=True):
        scores[index].append(found)
    return [_checked(*each, own) for each, own in zip(placed, scores, strict=True)]


def _checked(
    placed: PlacedGraph | AdarError, parts: Sequence[HiddenPart], scores: Sequence[Scores | AdarError]
) -> PreparedGraph | AdarError:
    """The graph with its strength, or the error that stopped it or one of its parts."""
    if isinstance(placed, AdarError):
        return placed
    predicted = []
    for part, found in zip(parts, scores, strict=True):
        if isinstance(found, AdarError):
            return found
        predicted.append(part.predicted(found))
    return placed.checked(predicted)


def _placed(
    graph: Graph, manifest: Manifest, problem: Problem | None, index: int, *, by_row: bool
) -> tuple[PlacedGraph | AdarError, list[HiddenPart]]:
    """Place one of several graphs and its hidden parts, as long as there is no problem with it."""

    def check() -> None:
        reason = None if problem is None else problem(index)
        if reason is not None:
            raise reason

    try:
        with nullcontext() if problem is None else interruptible(check):
            placed = PlacedGraph.of(graph, manifest, by_row=by_row)
            return placed, list(placed.parts())
    except AdarError as error:
        return error, []


def _interruption(_index: int) -> None:
    interruption_point()


def _scores(bundle: "Bundle", part: PreparedGraph) -> Scores:
    """The scores of one graph with hidden labels."""
    found = {}
    for strength in STRENGTHS:
        interruption_point()
        tried = replace(part, check=LabelCheck(strength, 0, 0, 0))
        recurrence = bundle.backend.start(tried)
        interruption_point()
        if strength:
            loop = Loop(recurrence, bundle.manifest, STEPS, Final(), Euler(), check=tried.check)
            for _ in loop:
                interruption_point()
        found[strength] = recurrence.scores(kept=False)
    return found
