"""One step of an in-context cell over nodes that are split into shards, in one process.

The cell reads sums over all nodes of what their neighbours are, so the shards exchange rows before they add
their sums. With the sums of the current state at hand, a step is: `small`, then `update` and `message` on
each shard, the exchange of rows, `receive` and `absorb` on each shard, and the sums of the next state. These
are two exchanges, as in `sharded_step`.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from adar_runtime.bundle.signature import ABSORBED, KNOWN, RECEIVED, STATE, STEP
from adar_runtime.graph import Floats
from adar_runtime.loop.solvers import Move
from adar_runtime.phases.sharded_step import SMALL, Arrays, RunsPhases, Shard, ShardedState

H, TARGETS = STATE[:2]
FOR_MESSAGE = (TARGETS,)
FOR_UPDATE = (TARGETS, "gathered", "of_graph", "step_code")


class InContextState(ShardedState):
    """The state of a graph in shards. `known` [n, c] has the known classes of the nodes."""

    def __init__(
        self,
        models: RunsPhases,
        shards: Sequence[Shard],
        state: Arrays,
        known: Floats,
        velocities: Arrays | None = None,
    ) -> None:
        self._known = known
        super().__init__(models, shards, state, velocities)

    def step(self, code: Floats, move: Move) -> None:
        """Make one step. `code` [d] is the step encoding of the move's time."""
        run, real = self._models.run, self.state[H].dtype
        numbers: Arrays = {name: np.array(getattr(move, name), real) for name in STEP[:2]}
        before = {f"previous_{name}_velocity": self.velocities[name] for name in SMALL}
        feeds = {name: self.state[name] for name in SMALL} | before | self._sums | numbers
        count = np.array(len(self.state[H]), real)
        small = run("small", feeds | {"count": count, "step_code": code})
        self.sent = self._rows
        self.for_message = {TARGETS: self.state[TARGETS]}
        self.for_update = self.for_message | {"step_code": code}
        self.for_update |= {name: small[name] for name in FOR_UPDATE if name in small}

        nodes, velocity = np.empty_like(self.state[H]), np.empty_like(self.state[H])
        for shard, inputs in zip(self._shards, self._inputs, strict=True):
            previous = {"previous_nodes_velocity": self.velocities[H][shard.members]}
            found = run("update", inputs | self.for_update | previous | numbers)
            nodes[shard.members], velocity[shard.members] = found["next_nodes"], found["nodes_velocity"]

        self.motion = self._motion(velocity)
        self.velocities = {H: velocity} | {name: small[f"{name}_velocity"] for name in SMALL}
        self.state = {H: nodes} | {name: small[f"next_{name}"] for name in SMALL}
        self._absorb()

    def _absorb(self) -> None:
        """Exchange the rows of the state, and add the sums of all shards."""
        run, targets, found = self._models.run, {TARGETS: self.state[TARGETS]}, list[Arrays]()
        self._inputs = [
            {H: self.state[H][shard.members], KNOWN: self._known[shard.members]} for shard in self._shards
        ]
        messages = [run("message", inputs | targets) for inputs in self._inputs]
        self._rows = np.empty((len(self.state[H]), messages[0]["sent"].shape[1]), self.state[H].dtype)
        for shard, message in zip(self._shards, messages, strict=True):
            self._rows[shard.members] = message["sent"]
        for shard, message, inputs in zip(self._shards, messages, self._inputs, strict=True):
            rows = self._rows[np.concatenate([shard.members, shard.outside])]
            received = run("receive", shard.tables | {"sent": rows})["received"]
            inputs |= received_by(received, message["own"].shape[1]) | {
                "own": message["own"],
                "share": (1.0 / (shard.counts + 1.0)).astype(rows.dtype)[:, None],
            }
            found.append(run("absorb", for_absorb(inputs) | targets))
        self._sums = added(found)
        sizes = [len(shard.members) for shard in self._shards]
        self.alignment = float(np.average([float(each["alignment"]) for each in found], weights=sizes))


def state_in_shards(
    models: RunsPhases, shards: Sequence[Shard], state: Arrays, known: Floats | None
) -> ShardedState:
    """The state of a graph in shards; `known` is None unless the cell takes known classes."""
    if known is None:
        return ShardedState(models, shards, state)
    return InContextState(models, shards, state, known)


def received_by(rows: Floats, classes: int) -> Arrays:
    """The parts of received rows [n, d + c + 1]: nodes, their relation to the targets, known labels."""
    return dict(
        zip(RECEIVED, np.split(rows, [rows.shape[1] - classes - 1, rows.shape[1] - 1], 1), strict=True)
    )


def for_absorb(inputs: Arrays) -> Arrays:
    """The inputs of `absorb`, from those of `update`: sums need no nodes and labels of neighbours."""
    return {name: array for name, array in inputs.items() if name not in (RECEIVED[0], RECEIVED[2])}


def added(absorbed: Iterable[Arrays]) -> Arrays:
    """The sums over all nodes, from those of each shard."""
    found = list(absorbed)
    return {
        name: np.sum([each[name] for each in found], axis=0, dtype=np.float64).astype(found[0][name].dtype)
        for name in ABSORBED
    }
