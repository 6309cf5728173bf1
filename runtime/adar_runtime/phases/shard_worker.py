"""One shard of a graph: its state, and the phases that run on it. Any process can hold one."""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adar_runtime.backends.onnxruntime.recurrence import encode
from adar_runtime.backends.onnxruntime.sessions import backend_errors
from adar_runtime.backends.prepared_graph import prepare
from adar_runtime.bundle.fit import check_fits
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.signature import STATE
from adar_runtime.graph import Floats
from adar_runtime.graph.neighbour_tables import Tables, sample_of
from adar_runtime.graph.smoothing import neighbour_sums
from adar_runtime.graph.store import Part
from adar_runtime.phases.models import PhaseModels
from adar_runtime.phases.sharded_step import Arrays

H = STATE[0]
PLACE = "place"  # the last of the neighbour tables


class Slots(NamedTuple):
    """Which of the stored states a step reads, and which it writes."""

    nodes: int
    next_nodes: int
    velocity: int
    next_velocity: int


class Moved(NamedTuple):
    """What a shard tells the others after a step."""

    absorbed: Arrays
    speed: float  # sum of squares, over the entries of the nodes whose movement is measured
    turn: float
    entries: int
    sent_finite: bool  # what its own nodes sent is finite, whatever they received


class ShardWorker:
    """The state of one part of a store.

    `arrays` holds it by name: nodes-0 … nodes-2 and velocity-0, velocity-1 (see `Slots`), the neighbour
    tables, and what the phases of one step pass on.
    """

    def __init__(
        self,
        part: Part,
        models: PhaseModels,
        manifest: Manifest,
        arrays: MutableMapping[str, NDArray[Any]],
    ) -> None:
        self._part, self._models, self._manifest, self._arrays = part, models, manifest, arrays
        self._sample = np.flatnonzero(np.isin(part.numbers, sample_of(part.store.nodes)))
        counts = np.diff(part.array("starts"))
        self._share: Floats = (1.0 / (counts + 1.0)).astype(np.float32)[:, None]

    def start(self) -> Arrays:
        """Encode the nodes and build the neighbour tables. Returns the small states, equal in all shards."""
        graph = self._part.graph()
        check_fits(graph, self._manifest)
        prepared = prepare(graph, self._manifest, by_row=True).without_smoothing()
        with backend_errors():
            first = dict(zip(STATE, encode(self._models.sessions["encoder"], prepared), strict=True))
        self._arrays["nodes-0"] = first[H]
        self._arrays["velocity-0"] = np.zeros_like(first.pop(H))
        self._build_tables()
        return first

    def _build_tables(self) -> None:
        tables = Tables.of(self._part.neighbours).arrays()
        del tables["sample"]
        for name in sorted(tables, key=lambda name: name == PLACE):
            self._arrays[name] = tables[name]

    def scale(self) -> None:
        """Before a round of smoothing: send the scaled nodes."""
        self._arrays["sent"] = np.sqrt(self._share) * self._arrays["nodes-0"]

    def smooth(self, blocks: Sequence[Floats]) -> None:
        """Smooth the nodes once. `blocks` are the rows of other shards, in their order."""
        scaled = self._arrays["sent"]
        sums = neighbour_sums(self._part.neighbours, np.concatenate([scaled, *blocks]))
        self._arrays["nodes-0"] = np.sqrt(self._share) * (sums + scaled)

    def absorb(self, slot: int, collecting: Arrays) -> Arrays:
        """What targets and proxies collect from these nodes."""
        with backend_errors():
            return self._models.run("absorb", collecting | {H: self._arrays[f"nodes-{slot}"]})

    def message(self, slots: Slots, for_message: Arrays) -> None:
        """Compute what each node sends."""
        with backend_errors():
            found = self._models.run("message", for_message | {H: self._arrays[f"nodes-{slots.nodes}"]})
        self._arrays["own"], self._arrays["sent"] = found["own"], found["sent"]

    def rows_for(self, receiver: int) -> Floats:
        """The rows that another shard receives from this one."""
        rows = self._part.store.part(receiver).received_from(self._part.number)
        sent: Floats = self._arrays["sent"][rows]
        return sent

    def update(self, slots: Slots, for_update: Arrays, collecting: Arrays, blocks: Sequence[Floats]) -> Moved:
        """Move the nodes, and absorb from the new state. `blocks` are the rows of other shards."""
        arrays, run = self._arrays, self._models.run
        with backend_errors():
            rows = np.concatenate([arrays["sent"], *blocks])
            received = run("receive", self._tables() | {"sent": rows})["received"]
            del rows
            before = arrays[f"velocity-{slots.velocity}"]
            found = run(
                "update",
                for_update
                | {
                    H: arrays[f"nodes-{slots.nodes}"],
                    "previous_nodes_velocity": before,
                    "own": arrays["own"],
                    "received": received,
                    "share": self._share,
                },
            )
        arrays[f"velocity-{slots.next_velocity}"] = found["nodes_velocity"]
        arrays[f"nodes-{slots.next_nodes}"] = found["next_nodes"]
        return self._moved(slots, collecting)

    def _moved(self, slots: Slots, collecting: Arrays) -> Moved:
        """Measure the movement, and absorb from the new state."""
        after, before = (
            self._arrays[f"velocity-{slot}"][self._sample] for slot in (slots.next_velocity, slots.velocity)
        )
        return Moved(
            absorbed=self.absorb(slots.next_nodes, collecting),
            speed=float(np.square(after, dtype=np.float64).sum()),
            turn=float(np.square(after - before, dtype=np.float64).sum()),
            entries=after.size,
            sent_finite=bool(np.isfinite(self._arrays["sent"].sum())),
        )

    def scores(self, slot: int, targets: Floats) -> Floats:
        """The scores of the nodes, [k, c]."""
        with backend_errors():
            feeds: Mapping[str, Floats] = {H: self._arrays[f"nodes-{slot}"], STATE[1]: targets}
            return self._models.run("head", feeds)["scores"]

    def nodes(self, slot: int) -> Floats:
        """The state of the nodes, [k, d]."""
        return self._arrays[f"nodes-{slot}"]

    def _tables(self) -> Arrays:
        return {
            name: self._arrays[name] for name in self._arrays if name.startswith(("leaf_", "join_", PLACE))
        }
