"""What an inference over shards has done, on disk: an interrupted inference continues after its last step."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from adar_runtime.bundle.signature import STATE
from adar_runtime.errors import GraphError, UsageError, short
from adar_runtime.files import open_regular
from adar_runtime.in_context.label_check import LabelCheck
from adar_runtime.json_files import parse_json
from adar_runtime.loop.registry import is_count
from adar_runtime.loop.solvers import Motion, Move
from adar_runtime.phases.shard_arrays import FolderArrays
from adar_runtime.phases.sharded_step import Arrays

FILE_NAME = "state.json"
MAX_BYTES = 2**28
SMALL = STATE[1:]
SLOTS, VELOCITY_SLOTS = range(3), range(2)  # of states: the current, the next and the kept one


class Call(NamedTuple):
    """One finished cell call."""

    move: Move
    alignment: float
    motion: Motion


@dataclass
class Position:
    """Where the states are: numbers of slots (see `shard_worker.Slots`)."""

    current: int = 0
    kept: int | None = None
    velocity: int = 0

    def __post_init__(self) -> None:
        slots = [(self.current, SLOTS), (self.velocity, VELOCITY_SLOTS)]
        slots += [] if self.kept is None else [(self.kept, SLOTS)]
        if not all(is_count(slot, 0) and slot in known for slot, known in slots):
            raise ValueError("there is no such slot")


@dataclass
class RunRecord:
    """The calls of an inference, its position, and its small states.

    Attributes:
        folder: The folder of the unfinished inference.
        settings: What the inference depends on: bundle, store, budget, solver and stop rule.
        position: The position after the last call.
        first: The alignment of the first state; None before the nodes are encoded.
        calls: The finished calls.
        check: How strongly a pretrained model moves; None for full moves.
    """

    folder: Path
    settings: Mapping[str, Any]
    position: Position = field(default_factory=Position)
    first: float | None = None
    calls: list[Call] = field(default_factory=list)
    check: LabelCheck | None = None

    def __post_init__(self) -> None:
        self._small = FolderArrays(self.folder / "small")
        path = self.folder / FILE_NAME
        if not path.exists():
            return
        try:
            with open_regular(path) as file:
                raw = parse_json(file.read(MAX_BYTES).decode())
            settings = dict(raw["settings"])
            self.position, self.first = Position(**raw["position"]), float(raw["first"])
            self.calls = [
                Call(Move(*map(float, move)), float(alignment), Motion(*map(float, motion)))
                for move, alignment, motion in raw["calls"]
            ]
            self.check = check_from(raw.get("check"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise GraphError(f"{path} is damaged ({short(error)}): remove {self.folder}") from error
        for name, value in self.settings.items():
            if settings.get(name) != value:
                raise UsageError(
                    f"{self.folder} has an unfinished inference with another {name} "
                    f"({short(settings.get(name))}, not {short(value)}): finish it, or remove the folder"
                )

    def save(self) -> None:
        """Write the record. The arrays of this position are written already.

        Nothing waits for the disk: the record is for an ended process, not for a power failure.
        """
        fields = {
            "settings": dict(self.settings),
            "position": asdict(self.position),
            "first": self.first,
            "calls": self.calls,
            "check": None if self.check is None else asdict(self.check),
        }
        new = self.folder / f"{FILE_NAME}.new"
        new.write_text(json.dumps(fields))
        new.replace(self.folder / FILE_NAME)

    def keep_small(self, slot: int, state: Arrays) -> None:
        """Store the small states of a slot."""
        for name in SMALL:
            self._small[f"{name}-{slot}"] = state[name]

    def small(self, slot: int) -> Arrays:
        """The small states of a slot."""
        return {name: self._small[f"{name}-{slot}"] for name in SMALL}

    def keep_velocities(self, slot: int, velocities: Arrays) -> None:
        """Store the velocities of the small states."""
        for name in SMALL:
            self._small[f"{name}_velocity-{slot}"] = velocities[name]

    def velocities(self, slot: int) -> Arrays:
        """The velocities of the small states."""
        return {name: self._small[f"{name}_velocity-{slot}"] for name in SMALL}


def check_from(raw: Any) -> LabelCheck | None:
    """The label check of a record; raises what its types raise."""
    if raw is None:
        return None
    labels, right, at_start = (int(raw[name]) for name in ("labels", "right", "right_at_start"))
    return LabelCheck(float(raw["strength"]), labels, right, at_start, raw.get("is_chance") is True)
