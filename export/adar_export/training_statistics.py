"""The statistics of the training data that a bundle keeps, so that the runtime notices unlike graphs."""

from typing import Any

import numpy as np

from adar_export.samples import part_of
from adar_runtime.bundle.bundle import Bundle
from adar_runtime.errors import AdarError
from adar_runtime.evaluation.drift import alignment_curve
from adar_runtime.evaluation.graph_profile import class_shares, profile
from adar_runtime.evaluation.training_data import KEY, STATISTICS
from adar_runtime.graph import GRAPH, Graph
from adar_runtime.loop.stopping import Final, StopRule
from adar_train.runs import Run

BUDGET = 30  # Euler steps: enough for the shape of the curve
PARTS = 4  # of the graph, which show how much the alignment differs between graphs of one kind
MOST_NODES = 200_000  # on a larger graph, the inference would take long


def training_statistics(run: Run, bundle: Bundle, graph: Graph) -> dict[str, Any]:
    """Return the statistics of the training graphs, and of the bundle's inference on the first of them.

    Runs of older versions recorded no statistics of their graphs; theirs are those of the first graph.
    """
    recorded = run.config.get(KEY, {}).get(STATISTICS)
    return (recorded or profile([graph])) | _inference(bundle, graph)


def _inference(bundle: Bundle, graph: Graph) -> dict[str, Any]:
    """Return the shares of the predicted classes, and the alignment curve.

    Models without classes of their own have neither: predictions and alignment depend on the classes that a
    graph describes. With unit steps, the time depends on the budget.
    """
    manifest = bundle.manifest
    if manifest.targets is None or manifest.unit_step or graph.nodes > MOST_NODES:
        return {}
    try:
        found: dict[str, Any] = {"alignment": _alignment(bundle, graph)}
        if graph.level != GRAPH and not manifest.regression:
            predicted = bundle.run(graph, BUDGET).predictions
            shares = class_shares(predicted, manifest.targets)
            found["predictions"] = {"count": len(predicted), "shares": shares}
    except AdarError:  # too large for this machine, or diverges with so few steps: the export is still valid
        return {}
    return found


def _alignment(bundle: Bundle, graph: Graph) -> dict[str, Any]:
    size = max(2, graph.nodes // PARTS)
    starts = np.linspace(0, graph.nodes, PARTS, endpoint=False).astype(int)
    parts = [part_of(graph, size, int(start)) for start in starts] if graph.pairs is None else []
    rule: StopRule = Final()
    results = [bundle.run(each, BUDGET, rule) for each in (graph, *parts)]
    return alignment_curve([(result.times, result.alignment) for result in results])
