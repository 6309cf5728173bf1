"""An inference over the parts of a graph store: what all shards share, and who runs them.

Two exchanges make a step: what the shards absorbed is combined, and rows go to the shards that receive them.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from adar_runtime.backends.onnxruntime.sessions import backend_errors
from adar_runtime.bundle.signature import STATE, STEP
from adar_runtime.errors import DivergedError, GraphError, UsageError
from adar_runtime.graph import Floats
from adar_runtime.graph.store import GraphStore
from adar_runtime.loop.solvers import Motion, Move
from adar_runtime.phases.models import PhaseModels
from adar_runtime.phases.run_record import SLOTS, Call, RunRecord
from adar_runtime.phases.shard_worker import Moved, Slots
from adar_runtime.phases.sharded_step import SMALL, Arrays
from adar_runtime.phases.step_kinds import StepKind
from adar_runtime.phases.workers import Workers

H, TARGETS = STATE[:2]


class ShardedRecurrence:
    """The states of a graph in shards; see `adar_runtime.backends.Recurrence`.

    After each step, the record is on disk. With the record of an interrupted inference, the calls in it are
    not computed again: the loop gets their alignment and motion, and goes on after the last one.
    """

    def __init__(
        self, models: PhaseModels, store: GraphStore, workers: Workers, record: RunRecord, kind: StepKind
    ) -> None:
        self._models, self._store, self._workers, self._record = models, store, workers, record
        self._kind = kind
        self.name = workers.name
        self._done = 0  # calls of the loop so far
        self.motion, self.alignment = Motion(0.0, 0.0), 0.0
        if record.first is None:
            self._begin()
            return
        absorbed = workers.each("absorb", record.position.current, self._collecting())
        self._absorb(absorbed)
        recorded = record.calls[-1].alignment if record.calls else record.first
        if not math.isclose(self.alignment, recorded, rel_tol=1e-5, abs_tol=1e-6):
            raise GraphError(
                f"{record.folder} was damaged: its state has the alignment {self.alignment:.6g}, and "
                f"{recorded:.6g} was recorded; remove the folder to start again"
            )
        self.alignment = record.first

    @np.errstate(over="ignore", invalid="ignore")  # the loop and `_check_finite` report such numbers
    def _begin(self) -> None:
        """Bring all nodes to the first state, and record it."""
        record = self._record
        first = self._kind.begin(self._workers)
        record.keep_small(0, first)
        record.keep_velocities(0, {name: np.zeros_like(array) for name, array in first.items()})
        self._absorb(self._workers.each("absorb", 0, self._collecting()))
        record.first = self.alignment
        record.save()

    @property
    def _is_replaying(self) -> bool:
        return self._done < len(self._record.calls)

    @np.errstate(over="ignore", invalid="ignore")  # the loop and `_check_finite` report such numbers
    def step(self, code: Floats, move: Move) -> None:
        if self._is_replaying:
            self._replay(move)
            return
        place = self._record.position
        free = next(slot for slot in SLOTS if slot not in (place.current, place.kept))
        slots = Slots(place.current, free, place.velocity, 1 - place.velocity)
        feeds = self._feeds(code, move)
        with backend_errors():
            small = self._models.run("small", feeds)
        moved: list[Moved] = self._workers.exchange(*self._kind.messages(slots, feeds, small))
        self._check_finite(moved)
        entries = sum(one.entries for one in moved)
        self.motion = Motion(
            math.sqrt(sum(one.speed for one in moved) / entries),
            math.sqrt(sum(one.turn for one in moved) / entries),
        )
        self._absorb([one.absorbed for one in moved])
        record = self._record
        record.keep_small(slots.next_nodes, {name: small[f"next_{name}"] for name in SMALL})
        record.keep_velocities(slots.next_velocity, {name: small[f"{name}_velocity"] for name in SMALL})
        place.current, place.velocity = slots.next_nodes, slots.next_velocity
        record.calls.append(Call(move, self.alignment, self.motion))
        record.save()
        self._done += 1

    def _feeds(self, code: Floats, move: Move) -> Arrays:
        """The inputs of the phase `small`."""
        record, place = self._record, self._record.position
        numbers: Arrays = {name: np.array(getattr(move, name), np.float32) for name in STEP}
        before = {
            f"previous_{name}_velocity": array for name, array in record.velocities(place.velocity).items()
        }
        of_step = self._kind.numbers(numbers) | {"step_code": code}
        return record.small(place.current) | before | self._absorbed | of_step

    def _replay(self, move: Move) -> None:
        """A call of the interrupted inference: its state is on disk if it was the last one."""
        call = self._record.calls[self._done]
        if call.move != move:
            raise UsageError(
                f"the unfinished inference in {self._record.folder} made other steps: remove the folder"
            )
        self.alignment, self.motion = call.alignment, call.motion
        self._done += 1

    def _collecting(self) -> Arrays:
        small = self._record.small(self._record.position.current)
        return {name: small[name] for name in self._kind.absorbing}

    def _absorb(self, absorbed: Iterable[Arrays]) -> None:
        """Combine what targets and proxies collected from the shards."""
        found, sizes = list(absorbed), np.diff(self._store.bounds)
        self._absorbed = self._kind.combined(found)
        self.alignment = float(np.average([float(each["alignment"]) for each in found], weights=sizes))

    def _check_finite(self, moved: Sequence[Moved]) -> None:
        """Name the first shard that sent such numbers: others received them."""
        sent = [shard for shard, one in enumerate(moved) if not one.sent_finite]
        reached = [
            shard
            for shard, one in enumerate(moved)
            if not all(map(math.isfinite, (float(one.absorbed["alignment"]), one.speed)))
        ]
        if sent or reached:
            raise DivergedError(
                f"the state of shard {(sent or reached)[0]} is no longer finite in cell call "
                f"{self._done + 1}: check its nodes for features far larger than those of the training data"
            )

    def keep(self) -> None:
        if not self._is_replaying:  # the record of the last call has what was kept before it
            self._record.position.kept = self._record.position.current

    def recall(self) -> None:
        place = self._record.position
        if not self._is_replaying and place.kept is not None:
            place.current = place.kept
            self._absorb(self._workers.each("absorb", place.current, self._collecting()))

    def scores(self, *, kept: bool) -> Floats:
        """The scores in a mapped file, [n, c], in the order of the graph's nodes."""
        place = self._record.position
        slot = place.kept if kept and place.kept is not None else place.current
        targets = np.array(self._record.small(slot)[TARGETS])
        return self._gathered("scores", len(targets), self._workers.each("scores", slot, targets))

    def state(self) -> dict[str, Floats]:
        slot = self._record.position.current
        small = {name: np.array(array) for name, array in self._record.small(slot).items()}
        width = small[TARGETS].shape[1]
        return {H: np.array(self._gathered("nodes", width, self._workers.each("nodes", slot)))} | small

    def _gathered(self, name: str, width: int, found: Iterable[Floats]) -> Floats:
        """Rows by part -> a mapped file in the order of the graph's nodes."""
        path = self._record.folder / f"{name}.raw"
        whole: Floats = np.memmap(path, np.float32, "w+", shape=(self._store.nodes, width))
        for number, rows in enumerate(found):
            whole[self._store.part(number).numbers] = rows
        return whole
