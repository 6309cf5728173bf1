"""Run a graph once and keep what new nodes need: the work of `Bundle.remember`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle.label_checks import PlacedGraph, check_moves
from adar_runtime.errors import UsageError
from adar_runtime.graph import Floats, Graph
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.in_context.placement import Placement
from adar_runtime.in_context.start import SmoothedFeatures, check_can_start, restarted
from adar_runtime.loop.checks import check_budget
from adar_runtime.loop.loop import Loop, Step
from adar_runtime.loop.schedule import time_at
from adar_runtime.loop.solvers import Solver
from adar_runtime.loop.stopping import StopRule
from adar_runtime.phases.context import Context, Kept, check_can_remember
from adar_runtime.phases.kept_calls import KeptCalls, Storage, bytes_beside, estimated_bytes, row_width
from adar_runtime.phases.kept_edges import KeptEdges
from adar_runtime.phases.models import PhaseModels
from adar_runtime.phases.phased_recurrence import PhasedRecurrence
from adar_runtime.phases.pretrained_context import context_of

if TYPE_CHECKING:
    from adar_runtime.bundle.bundle import Bundle


def remember(
    bundle: "Bundle",
    graph: Graph,
    budget: int,
    stop: StopRule,
    solver: Solver,
    storage: Storage,
    on_step: Callable[[Step], None] = lambda _: None,
) -> Context:
    """Run a graph by the phases of a step. `on_step` is called after each one and may raise an exception."""
    started, manifest = time.perf_counter(), bundle.manifest
    check_can_remember(manifest, by_row=bundle.by_row)
    budget = check_budget(budget)
    bundle.check(graph)
    h = time_at(1, budget, unit_step=manifest.unit_step)
    moves = solver, stop.end(budget) * time_at(budget, budget, unit_step=manifest.unit_step), h
    start = KeptStart.of(bundle, graph) if manifest.in_context else None
    prepared = bundle.prepare(graph) if start is None else start.prepared
    edges = KeptEdges.of(prepared.neighbours)
    estimated_bytes(manifest, edges, prepared.targets, storage, moves)
    models = PhaseModels(bundle.path, manifest, bundle.threads, known=bundle.is_made_here)
    width = row_width(manifest, prepared.targets)
    kept = KeptCalls(storage, graph.nodes, width, bytes_beside(manifest, edges))
    recurrence = PhasedRecurrence(models, prepared, kept)
    seconds, names = time.perf_counter() - started, manifest.class_names_for(graph)
    loop = Loop(
        recurrence, manifest, budget, stop, solver, seconds, names, graph.output_ids, check=prepared.check
    )
    for step in loop:
        on_step(step)
    result = loop.result()
    targets = recurrence.finish()
    if prepared.check is not None and not prepared.check.strength:
        kept.cut(0)  # nothing moved
    return context_of(
        models,
        manifest,
        Kept(
            calls=kept,
            edges=edges,
            encoded=recurrence.encoded if start is None else start.encoded,
            smoothed=recurrence.smoothed if start is None else start.smoothed,
            targets=targets,
            target_features=prepared.target_features if start is None else None,
            result=result,
            ids=graph.ids,
            placement=None if start is None else start.placement,
            encoding=graph.feature_encoding,
        ),
    )


@dataclass(frozen=True)
class KeptStart:
    """The closed-form start of a pretrained model, with what new nodes need of it."""

    prepared: PreparedGraph
    placement: Placement
    encoded: Floats
    smoothed: list[Floats]

    @classmethod
    def of(cls, bundle: "Bundle", graph: Graph) -> "KeptStart":
        """Place a graph, and keep what the nodes send in each round of smoothing."""
        check_can_start(graph)
        if graph.edge_weight is not None:
            raise UsageError(
                "the graph has edge weights, and a context has none: run the grown graph instead"
            )
        first, sent = list[Floats](), list[Floats]()

        def smooth(neighbours: Neighbours, rows: Floats) -> dict[float, Floats]:
            first.append(rows)
            return restarted(neighbours, rows, sent.append)

        features = SmoothedFeatures.of(graph, bundle.manifest.features, smooth)
        placed = PlacedGraph.of(graph, bundle.manifest, by_row=bundle.by_row, features=features)
        prepared = check_moves(bundle, placed, placed.parts())
        nodes = prepared.graph.rows(0, graph.nodes)
        placement = Placement.of(features, nodes, placed.compared, placed.labels, prepared.targets)
        return cls(prepared, placement, first[0], sent)
