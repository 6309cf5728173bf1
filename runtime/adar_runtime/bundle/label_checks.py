"""Prepare graphs for a bundle. A pretrained model checks its moves with hidden labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adar_runtime.backends.prepared_batch import LARGEST
from adar_runtime.backends.prepared_graph import PreparedGraph, prepare
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import AdarError
from adar_runtime.graph import Floats, Graph, Integers, Mask
from adar_runtime.in_context.label_check import STEPS, STRENGTHS, LabelCheck, chosen, folds
from adar_runtime.in_context.start import SmoothedFeatures, known_labels
from adar_runtime.interruption import interruptible, interruption_point
from adar_runtime.loop.loop import Loop
from adar_runtime.loop.solvers import Euler
from adar_runtime.loop.stopping import Final

if TYPE_CHECKING:
    from adar_runtime.bundle.bundle import Bundle

Scores = dict[float, Floats]
"""The scores of all nodes [n, c] after STEPS steps with each of STRENGTHS."""

Problem = Callable[[int], AdarError | None]


@dataclass(frozen=True, eq=False)
class HiddenPart:
    """A graph with a part of its known labels hidden."""

    prepared: PreparedGraph
    hidden: Mask  # [n]
    labels: Integers  # the hidden labels [l]


@dataclass(frozen=True, eq=False)
class PlacedGraph:
    """A graph at the closed-form start of a pretrained model, and what its label check has to predict."""

    prepared: PreparedGraph
    parts: Sequence[HiddenPart]

    @classmethod
    def of(cls, graph: Graph, manifest: Manifest, *, by_row: bool) -> "PlacedGraph":
        """Place a graph once with all known labels, and once for each part of the labels that is hidden."""
        labels = known_labels(graph)
        features = SmoothedFeatures.of(graph, manifest.features)
        first = features.start(labels, graph.targets)
        prepared = prepare(graph, manifest, by_row=by_row, first=first)
        parts = []
        for hidden in folds(labels):
            known = np.where(hidden, -1, labels)
            start = features.start(known, graph.targets, estimate=first.estimated)
            parts.append(HiddenPart(prepared.with_start(start), hidden, labels[hidden]))
        return cls(prepared, parts)

    def checked(self, scores: Sequence[Scores]) -> PreparedGraph:
        """The graph with the strength that the scores of its parts choose."""
        if not self.parts:
            return self.prepared
        joined = {
            strength: np.concatenate(
                [each[strength][part.hidden] for each, part in zip(scores, self.parts, strict=True)]
            )
            for strength in STRENGTHS
        }
        labels = np.concatenate([part.labels for part in self.parts])
        return replace(self.prepared, check=chosen(joined, labels))


def prepare_for(bundle: "Bundle", graph: Graph) -> PreparedGraph:
    """Prepare a graph. A pretrained model checks its moves with parts of the known labels hidden."""
    manifest = bundle.manifest
    if not manifest.in_context:
        return prepare(graph, manifest, by_row=bundle.by_row)
    placed = PlacedGraph.of(graph, manifest, by_row=bundle.by_row)
    parts = [part.prepared for part in placed.parts]
    if bundle.small_graphs is None or graph.nodes > LARGEST or not parts:
        return placed.checked([_scores(bundle, part) for part in parts])
    found = _checked(placed, bundle.small_graphs.scores_of_parts(parts, _interruption))
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
    parts = [
        (index, part.prepared)
        for index, each in enumerate(placed)
        if isinstance(each, PlacedGraph)
        for part in each.parts
    ]
    asking = None if problem is None else lambda position: problem(parts[position][0])
    scores: list[list[Scores | AdarError]] = [[] for _ in graphs]
    for (index, _), found in zip(parts, scores_of_parts([part for _, part in parts], asking), strict=True):
        scores[index].append(found)
    return [_checked(each, own) for each, own in zip(placed, scores, strict=True)]


def _checked(
    placed: PlacedGraph | AdarError, scores: Sequence[Scores | AdarError]
) -> PreparedGraph | AdarError:
    """The graph with its strength, or the error that stopped it or one of its parts."""
    if isinstance(placed, AdarError):
        return placed
    failed = [each for each in scores if isinstance(each, AdarError)]
    return failed[0] if failed else placed.checked([each for each in scores if isinstance(each, dict)])


def _placed(
    graph: Graph, manifest: Manifest, problem: Problem | None, index: int, *, by_row: bool
) -> PlacedGraph | AdarError:
    """Place one of several graphs, as long as nothing speaks against it."""

    def check() -> None:
        reason = None if problem is None else problem(index)
        if reason is not None:
            raise reason

    try:
        if problem is None:
            return PlacedGraph.of(graph, manifest, by_row=by_row)
        with interruptible(check):
            return PlacedGraph.of(graph, manifest, by_row=by_row)
    except AdarError as error:
        return error


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
