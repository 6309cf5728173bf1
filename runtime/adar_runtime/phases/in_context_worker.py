"""One shard of a graph that a pretrained model answers: its state, and the phases that run on it."""

from collections.abc import Sequence

import numpy as np

from adar_runtime.backends.onnxruntime.sessions import backend_errors
from adar_runtime.bundle.signature import KNOWN, STATE
from adar_runtime.graph import Floats
from adar_runtime.phases.in_context_step import for_absorb, received_by
from adar_runtime.phases.shard_worker import PLACE, Moved, ShardWorker, Slots
from adar_runtime.phases.sharded_step import Arrays

H = STATE[0]


class InContextWorker(ShardWorker):
    """The state of one part of a store.

    Who starts the inference has written nodes-0, velocity-0 and known to `arrays`. `own` and `received` have
    the number of the state's slot: a step that is made again reads those of its first state.
    """

    def start(self) -> Arrays:
        """Build the neighbour tables, unless they are there already. Returns no small states."""
        if PLACE not in self._arrays:  # it is written last
            self._build_tables()
        return {}

    def send_rows(self, slot: int, targets: Arrays) -> None:
        """Compute what each node sends in this state."""
        arrays = self._arrays
        with backend_errors():
            feeds = {H: arrays[f"nodes-{slot}"], KNOWN: arrays[KNOWN]}
            found = self._models.run("message", targets | feeds)
        arrays[f"own-{slot}"], arrays["sent"] = found["own"], found["sent"]

    def receive(self, slot: int, blocks: Sequence[Floats]) -> None:
        """Sum what the neighbours sent. `blocks` are the rows of other shards, in their order."""
        with backend_errors():
            rows = np.concatenate([self._arrays["sent"], *blocks])
            found = self._models.run("receive", self._tables() | {"sent": rows})
        self._arrays[f"received-{slot}"] = found["received"]

    def absorb(self, slot: int, collecting: Arrays) -> Arrays:
        """The sums over these nodes, in a state whose rows were received."""
        with backend_errors():
            return self._models.run("absorb", for_absorb(self._inputs(slot)) | collecting)

    def advance(self, slots: Slots, for_update: Arrays, targets: Arrays) -> None:
        """Move the nodes, and compute what each one sends in the new state, which has these targets."""
        arrays = self._arrays
        before = {"previous_nodes_velocity": arrays[f"velocity-{slots.velocity}"]}
        with backend_errors():
            found = self._models.run("update", self._inputs(slots.nodes) | before | for_update)
        arrays[f"velocity-{slots.next_velocity}"] = found["nodes_velocity"]
        arrays[f"nodes-{slots.next_nodes}"] = found["next_nodes"]
        self.send_rows(slots.next_nodes, targets)

    def arrive(self, slots: Slots, targets: Arrays, blocks: Sequence[Floats]) -> Moved:
        """Receive the rows of the new state, and add up its sums."""
        self.receive(slots.next_nodes, blocks)
        return self._moved(slots, targets)

    def _inputs(self, slot: int) -> Arrays:
        """What `update` takes of a state, apart from targets and velocity."""
        arrays = self._arrays
        own = arrays[f"own-{slot}"]
        return received_by(arrays[f"received-{slot}"], own.shape[1]) | {
            H: arrays[f"nodes-{slot}"],
            KNOWN: arrays[KNOWN],
            "own": own,
            "share": self._share,
        }
