"""Prepare a graph for a bundle. A pretrained model checks its moves with hidden labels."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adar_runtime.backends.prepared_graph import PreparedGraph, prepare
from adar_runtime.graph import Floats, Graph
from adar_runtime.in_context.label_check import STEPS, STRENGTHS, LabelCheck, chosen, folds
from adar_runtime.in_context.start import SmoothedFeatures, known_labels
from adar_runtime.interruption import interruption_point
from adar_runtime.loop.loop import Loop
from adar_runtime.loop.solvers import Euler
from adar_runtime.loop.stopping import Final

if TYPE_CHECKING:
    from adar_runtime.bundle.bundle import Bundle


def prepare_for(bundle: "Bundle", graph: Graph) -> PreparedGraph:
    """Prepare a graph. A pretrained model checks its moves with parts of the known labels hidden."""
    manifest = bundle.manifest
    if not manifest.in_context:
        return prepare(graph, manifest, by_row=bundle.by_row)
    labels = known_labels(graph)
    features = SmoothedFeatures.of(graph, manifest.features)
    first = features.start(labels, graph.targets)
    prepared = prepare(graph, manifest, by_row=bundle.by_row, first=first)
    found: dict[float, list[Floats]] = {strength: [] for strength in STRENGTHS}
    wanted = []
    for hidden in folds(labels):
        part = prepared.with_start(features.start(np.where(hidden, -1, labels), graph.targets, first.weights))
        wanted.append(labels[hidden])
        for strength, scores in _scores(bundle, part):
            found[strength].append(scores[hidden])
    if not wanted:
        return prepared
    joined = {strength: np.concatenate(parts) for strength, parts in found.items()}
    return replace(prepared, check=chosen(joined, np.concatenate(wanted)))


def _scores(bundle: "Bundle", part: PreparedGraph) -> Iterator[tuple[float, Floats]]:
    """The scores of all nodes [n, c] after STEPS steps with each strength."""
    for strength in STRENGTHS:
        interruption_point()
        tried = replace(part, check=LabelCheck(strength, 0, 0, 0))
        recurrence = bundle.backend.start(tried)
        interruption_point()
        if strength:
            loop = Loop(recurrence, bundle.manifest, STEPS, Final(), Euler(), check=tried.check)
            for _ in loop:
                interruption_point()
        yield strength, recurrence.scores(kept=False)
