"""Run a graph store part by part, and continue an interrupted inference."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adar_runtime.bundle import memory
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import GraphError, UsageError, warn
from adar_runtime.graph import NODE
from adar_runtime.graph.feature_encoding import adds_reverse_edges, check_same_encoding
from adar_runtime.graph.store import GraphStore, Part
from adar_runtime.graph.store.store import part_folder
from adar_runtime.loop.loop import Loop
from adar_runtime.loop.solvers import Solver
from adar_runtime.loop.stopping import StopRule
from adar_runtime.phases.in_context_start import StoreStart, check_can_place
from adar_runtime.phases.in_context_worker import InContextWorker
from adar_runtime.phases.models import PhaseModels, check_phases
from adar_runtime.phases.run_record import RunRecord
from adar_runtime.phases.shard_arrays import FolderArrays
from adar_runtime.phases.shard_worker import ShardWorker
from adar_runtime.phases.sharded_recurrence import ShardedRecurrence
from adar_runtime.phases.step_kinds import InContextStep, StepKind, TrainedStep
from adar_runtime.phases.workers import InTurn, Progress, Workers

if TYPE_CHECKING:
    from adar_runtime.bundle.bundle import Bundle

Start = Callable[["Bundle", GraphStore, Path, Progress], Workers]
"""Makes the workers of an inference: for a bundle, a store, and the folder of the unfinished inference."""


@dataclass(frozen=True)
class Plan:
    """How the shards of a store run.

    Args:
        work: Folder for the states. An interrupted inference in it continues.
        max_bytes: Most memory of one shard and this process; None for the free memory.
        start: Who runs the shards; by default this process, one after the other.
        on_progress: Receives how many shards are done in this step, how many there are, and which are late.
    """

    work: Path
    max_bytes: int | None = None
    start: Start | None = None
    on_progress: Progress = lambda _done, _all, _late: None


def loop_over_store(
    bundle: "Bundle", store: GraphStore, budget: int, stop: StopRule, solver: Solver, plan: Plan
) -> Loop:
    """Start an inference over a graph store, or continue an interrupted one.

    Args:
        bundle: The bundle.
        store: A store that `open_store` opened and `GraphStore.check` checked.
        budget: Euler steps in the total time.
        stop: The stop rule, such as `bundle.stop_rule()`.
        solver: The solver, such as `bundle.solver()`.
        plan: The folder for the states, the memory, and who runs the parts.

    Returns:
        The loop. The scores of its result are in a mapped file of the plan's folder, ordered by node.

    Raises:
        UsageError: The bundle cannot run by parts, or the folder has an inference with other settings.
        GraphError: The store does not fit the bundle, or a part does not fit the memory.

    Examples:
        >>> store = open_store("store")  # doctest: +SKIP
        >>> store.check()  # doctest: +SKIP
        >>> plan = Plan(Path("work"))  # doctest: +SKIP
        >>> for step in loop_over_store(bundle, store, 300, bundle.stop_rule(), bundle.solver(), plan):
        ...     print(step.time)  # doctest: +SKIP
    """
    started, manifest = time.perf_counter(), bundle.manifest
    check_can_shard(manifest, by_row=bundle.by_row)
    _check_targets(store, manifest)
    check_memory(store, manifest, plan.max_bytes)
    settings = {
        "bundle": manifest.checksum,
        "store": store.checksum,
        "budget": budget,
        "solver": repr(solver),
        "stop rule": repr(stop),
    }
    record = RunRecord(plan.work, settings)
    models = PhaseModels(bundle.path, manifest, bundle.threads, known=bundle.is_made_here)
    if plan.start is None:
        workers: Workers = InTurn(
            [worker_of(store.part(number), models, manifest, plan.work) for number in range(store.parts)],
            plan.on_progress,
        )
    else:
        workers = plan.start(bundle, store, plan.work, plan.on_progress)
    kind: StepKind = TrainedStep(manifest.smoothing)
    if manifest.in_context:
        kind = InContextStep(store.nodes, {})  # of an interrupted inference, which has its first state
        if record.first is None:
            kind, record.check = StoreStart(store, manifest, models, workers, plan.work).place()
    recurrence = ShardedRecurrence(models, store, workers, record, kind)
    names = None if manifest.regression else manifest.class_names
    if manifest.targets is None:
        names = store.class_names
    seconds = time.perf_counter() - started
    return Loop(recurrence, manifest, budget, stop, solver, seconds, names, check=record.check)


def worker_of(part: Part, models: PhaseModels, manifest: Manifest, work: Path) -> ShardWorker:
    """A shard whose arrays are in the folder of the unfinished inference."""
    arrays = FolderArrays(work / part_folder(part.number))
    kind = InContextWorker if manifest.in_context else ShardWorker
    return kind(part, models, manifest, arrays)


def check_can_shard(manifest: Manifest, *, by_row: bool) -> None:
    """Refuse a bundle whose step cannot be computed by parts of a graph."""
    if manifest.level != NODE:
        raise UsageError(
            f"the bundle predicts at the level {manifest.level!r}, and a graph store has predictions for "
            "nodes only"
        )
    if manifest.edge_weights:
        raise UsageError("the bundle uses edge weights, and its phases do not: run the graph in one piece")
    check_phases(manifest)
    if not by_row:
        raise UsageError(
            "the encoder of this bundle places all nodes together (zero-shot): run the graph in one piece"
        )


def _check_targets(store: GraphStore, manifest: Manifest) -> None:
    if manifest.in_context:
        return
    if store.features != manifest.features:
        raise GraphError(f"the store has {store.features} features and the bundle takes {manifest.features}")
    check_same_encoding(manifest.feature_encoding, store.encoding)
    if adds_reverse_edges(manifest.feature_encoding, store.encoding):
        warn(
            "the model was trained with the reverse of every edge, and the store was written without: write "
            "it again with data shard --both-ways, unless its table has both directions"
        )
    if manifest.targets is None and store.target_features is None:
        raise GraphError("the bundle was trained on described targets, and the store has no target_x")


def check_memory(store: GraphStore, manifest: Manifest, max_bytes: int | None) -> None:
    """Refuse a store with a part that does not fit into the memory."""
    limit = memory.limit_bytes() if max_bytes is None else max_bytes
    if manifest.in_context:
        check_can_place(store, manifest, limit)
    needed = [needed_bytes(store.part(number), manifest) for number in range(store.parts)]
    largest = max(range(store.parts), key=needed.__getitem__)
    if limit is None or needed[largest] <= limit:
        return
    parts = store.parts * -(-(needed[largest] - memory.PROCESS) // max(1, limit - memory.PROCESS))
    advice = f"write the store again with more parts (data shard --parts {parts})"
    if parts > store.nodes:
        advice = f"allow more memory (--memory); a process needs {memory.PROCESS:,} without any node"
    raise GraphError(
        f"part {largest} of the store needs about {needed[largest]:,} bytes, and {limit:,} are allowed: "
        f"{advice}"
    )


def needed_bytes(part: Part, manifest: Manifest) -> int:
    """The estimated memory of a process while it runs one part."""
    k, m, r = part.nodes, part.edges, len(part.outside)
    d, p = manifest.hidden, manifest.proxies
    target_features = part.store.target_features
    c = manifest.targets or (0 if target_features is None else len(target_features))
    if manifest.in_context:
        c = max(c, part.store.classes)
        between = int(memory.SPARE * memory.between_bytes(c, p))
        return memory.PROCESS + _in_context_bytes((k, m, r), d, c) + between
    encoding = memory.FLOAT * k * (manifest.features + 2 * d) + memory.INDEX * 8 * m  # and the tables
    messages = memory.FLOAT * k * (p + c + 7 * d)
    rows = memory.FLOAT * 2 * (k + r) * d  # blocks, and one array of them
    gathered = memory.FLOAT * memory.PADDING * m * (d + 1)
    updating = rows + max(gathered + memory.FLOAT * k * d, memory.FLOAT * k * 8 * d)
    small = memory.between_bytes(c, p)
    return memory.PROCESS + int(memory.SPARE * max(encoding, messages, updating, small))


def _in_context_bytes(sizes: tuple[int, int, int], d: int, c: int) -> int:
    """The estimated memory of a part of k nodes, m edges and r rows from outside, for a pretrained model."""
    k, m, r = sizes
    width = d + c + 1  # of a row that is sent
    tables = memory.INDEX * 8 * m
    receiving = memory.FLOAT * (2 * (k + r) * width + memory.PADDING * m * width + k * width)
    updating = memory.FLOAT * k * (10 * d + 10 * c + memory.GATES)
    return int(memory.SPARE * max(tables, receiving, updating))
