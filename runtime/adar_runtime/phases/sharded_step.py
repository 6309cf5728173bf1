"""One step over nodes that are split into shards, in one process: the reference of every other distribution.

Two exchanges make a step of the shards equal to a step of the whole graph, up to rounding: the shards combine
their softmax sums after `absorb`, and fetch the rows that outside neighbours sent after `message`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from adar_runtime.bundle.signature import COLLECTING, STATE, STEP
from adar_runtime.graph import Floats, Integers
from adar_runtime.graph.neighbour_tables import Tables, sample_of
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.loop.solvers import Motion, Move

Arrays = dict[str, np.ndarray[Any, Any]]
H, SMALL = STATE[0], STATE[1:]
FOR_MESSAGE = (*(f"led_{name}" for name in COLLECTING), "factors")
FOR_UPDATE = ("relation_kernel", "relation_row")


class RunsPhases(Protocol):
    """What runs the models of the phases."""

    def run(self, name: str, feeds: Mapping[str, Any]) -> Arrays:
        """Run one model, and return its outputs by name."""
        ...


@dataclass
class Shard:
    """Some nodes of a graph, and the edges that end at them."""

    members: Integers  # [k], the nodes of the shard, ascending
    outside: Integers  # [r], nodes of other shards that send to nodes of this shard, ascending
    tables: Arrays  # over the rows of `members` and `outside`
    counts: Integers  # [k], the number of neighbours of each node
    sample: Integers  # rows whose movement is measured

    @classmethod
    def of(cls, members: Integers, neighbours: Neighbours) -> "Shard":
        """Cut a shard from a graph."""
        counts = neighbours.counts[members]
        starts = np.concatenate([[0], np.cumsum(counts)])
        inside = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
        sources = neighbours.sources[np.repeat(neighbours.starts[members], counts) + inside]
        outside = np.setdiff1d(sources, members)
        row = np.full(neighbours.nodes, -1)
        row[members], row[outside] = np.arange(len(members)), len(members) + np.arange(len(outside))
        tables = Tables.of(Neighbours(starts, row[sources])).arrays()
        del tables["sample"]
        sample = np.flatnonzero(np.isin(members, sample_of(neighbours.nodes)))
        return cls(members, outside, tables, counts, sample)

    @classmethod
    def whole(cls, neighbours: Neighbours) -> "Shard":
        """All nodes of a graph."""
        return cls.of(np.arange(neighbours.nodes), neighbours)


def shards_of(neighbours: Neighbours, shard_of_node: Integers) -> list[Shard]:
    """Split a graph: `shard_of_node` [n] has a number for each node."""
    return [Shard.of(np.flatnonzero(shard_of_node == one), neighbours) for one in np.unique(shard_of_node)]


class ShardedState:
    """The state of a graph in shards. `step` moves it.

    Attributes:
        state: The four arrays of the state, by name.
        velocities: The four arrays of the last velocity, by name.
        alignment: Alignment of the state.
        motion: How the nodes moved in the last step.
        sent: What each node sent in the last step, [n, d].
        for_message: What `message` got beside the nodes in the last step.
        for_update: What `update` got beside the nodes in the last step, without the weights of the solver.
    """

    def __init__(
        self, models: RunsPhases, shards: Sequence[Shard], state: Arrays, velocities: Arrays | None = None
    ) -> None:
        self._models = models
        self._shards = shards
        self.state = state
        self.velocities = velocities or {name: np.zeros_like(array) for name, array in state.items()}
        self.motion = Motion(0.0, 0.0)
        self.sent = np.zeros_like(state[H])
        self.for_message: Arrays = {}
        self.for_update: Arrays = {}
        self._absorb()

    def step(self, code: Floats, move: Move) -> None:
        """Make one step. `code` [d] is the step encoding of the move's time."""
        run, real = self._models.run, self.state[H].dtype
        numbers = {name: np.array(getattr(move, name), real) for name in STEP}
        before = {f"previous_{name}_velocity": self.velocities[name] for name in SMALL}
        feeds = {name: self.state[name] for name in SMALL} | before | self._diffused | numbers
        small = run("small", feeds | {"step_code": code})
        self.for_message, self.for_update = (
            {name: small[name] for name in names} for names in (FOR_MESSAGE, FOR_UPDATE)
        )
        for_update = self.for_update | {name: numbers[name] for name in STEP[:2]}

        sent, own = np.empty_like(self.state[H]), []
        for shard in self._shards:
            found = run("message", self.for_message | {H: self.state[H][shard.members]})
            sent[shard.members] = found["sent"]
            own.append(found["own"])

        nodes, velocity = np.empty_like(sent), np.empty_like(sent)
        for shard, of_shard in zip(self._shards, own, strict=True):
            rows = sent[np.concatenate([shard.members, shard.outside])]
            inputs = for_update | {
                H: self.state[H][shard.members],
                "previous_nodes_velocity": self.velocities[H][shard.members],
                "own": of_shard,
                "received": run("receive", shard.tables | {"sent": rows})["received"],
                "share": (1.0 / (shard.counts + 1.0)).astype(real)[:, None],
            }
            found = run("update", inputs)
            nodes[shard.members], velocity[shard.members] = found["next_nodes"], found["nodes_velocity"]

        self.motion = self._motion(velocity)
        self.sent = sent
        self.velocities = {H: velocity} | {name: small[f"{name}_velocity"] for name in SMALL}
        self.state = {H: nodes} | {name: small[f"next_{name}"] for name in SMALL}
        self._absorb()

    def restart(self, state: Arrays) -> None:
        """Continue from another state. The velocities stay: the move back gives them no weight."""
        self.state = state
        self._absorb()

    def _absorb(self) -> None:
        """Run `absorb` on all shards, and combine what they return."""
        targets_and_proxies = {name: self.state[name] for name in COLLECTING}
        found = [
            self._models.run("absorb", targets_and_proxies | {H: self.state[H][shard.members]})
            for shard in self._shards
        ]
        self._diffused = combined(found)
        sizes = [len(shard.members) for shard in self._shards]
        self.alignment = float(np.average([float(each["alignment"]) for each in found], weights=sizes))

    def _motion(self, velocity: Floats) -> Motion:
        rows = np.concatenate([shard.members[shard.sample] for shard in self._shards])
        turn = velocity[rows] - self.velocities[H][rows]
        return Motion(_root_mean_square(velocity[rows]), _root_mean_square(turn))


def combined(absorbed: Sequence[Arrays]) -> Arrays:
    """What targets and proxies collect from all nodes, from what they collect from each shard."""
    if len(absorbed) == 1:
        return {f"{name}_diffused": absorbed[0][f"{name}_diffused"] for name in COLLECTING}
    found: Arrays = {}
    for name in COLLECTING:
        largest = np.max([each[f"{name}_maximum"] for each in absorbed], axis=0)  # [k, 1]
        weights = [
            each[f"{name}_total"] * np.exp(each[f"{name}_maximum"] - largest) for each in absorbed
        ]  # [k, 1] each
        total = sum(weight * each[f"{name}_diffused"] for weight, each in zip(weights, absorbed, strict=True))
        found[f"{name}_diffused"] = total / sum(weights)
    return found


def _root_mean_square(rows: Floats) -> float:
    return math.sqrt(float(np.square(rows, dtype=np.float64).mean()))
