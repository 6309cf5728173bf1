"""Run a graph once and keep what new nodes need: the work of `Bundle.remember`."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from adar_runtime.graph import Graph
from adar_runtime.loop.loop import Loop, Step
from adar_runtime.loop.schedule import time_at
from adar_runtime.loop.solvers import Solver
from adar_runtime.loop.stopping import StopRule
from adar_runtime.phases.context import Context, Kept, check_can_remember
from adar_runtime.phases.kept_calls import KeptCalls, Storage, bytes_beside, estimated_bytes
from adar_runtime.phases.kept_edges import KeptEdges
from adar_runtime.phases.models import PhaseModels
from adar_runtime.phases.phased_recurrence import PhasedRecurrence

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
    bundle.check(graph)
    h = time_at(1, budget, unit_step=manifest.unit_step)
    moves = solver, stop.end(budget) * time_at(budget, budget, unit_step=manifest.unit_step), h
    prepared = bundle.prepare(graph)
    edges = KeptEdges.of(prepared.neighbours)
    estimated_bytes(manifest, edges, manifest.targets or graph.targets, storage, moves)
    models = PhaseModels(bundle.path, manifest, bundle.threads, known=bundle.is_made_here)
    kept = KeptCalls(storage, graph.nodes, manifest.hidden, bytes_beside(manifest, edges))
    recurrence = PhasedRecurrence(models, prepared, kept)
    seconds, names = time.perf_counter() - started, manifest.class_names_for(graph)
    loop = Loop(recurrence, manifest, budget, stop, solver, seconds, names, graph.output_ids)
    for step in loop:
        on_step(step)
    result = loop.result()
    targets = recurrence.finish()
    return Context(
        models,
        manifest,
        Kept(
            calls=kept,
            edges=edges,
            encoded=recurrence.encoded,
            smoothed=recurrence.smoothed,
            targets=targets,
            target_features=prepared.target_features,
            result=result,
            ids=graph.ids,
        ),
    )
