"""What differs between the steps of a trained and of a pretrained model over shards."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from adar_runtime.bundle.signature import COLLECTING, STATE, STEP
from adar_runtime.phases import in_context_step
from adar_runtime.phases.in_context_step import added
from adar_runtime.phases.shard_worker import Slots
from adar_runtime.phases.sharded_step import FOR_MESSAGE, FOR_UPDATE, SMALL, Arrays, combined
from adar_runtime.phases.workers import Message, Workers

TARGETS = STATE[1]


class StepKind(Protocol):
    """How the phases make a step. Small states are those of targets and proxies."""

    absorbing: ClassVar[tuple[str, ...]]  # small states that `absorb` takes

    def begin(self, workers: Workers) -> Arrays:
        """Bring the shards to the first state, and return the small states."""
        ...

    def combined(self, absorbed: Iterable[Arrays]) -> Arrays:
        """What `small` takes from the shards."""
        ...

    def numbers(self, numbers: Arrays) -> Arrays:
        """What else `small` takes, from the numbers of a move."""
        ...

    def messages(self, slots: Slots, feeds: Arrays, small: Arrays) -> tuple[Message, Message]:
        """The calls of the workers before and after rows are exchanged.

        Args:
            slots: Where the states are.
            feeds: The inputs of `small`.
            small: Its outputs.
        """
        ...


@dataclass(frozen=True)
class TrainedStep:
    """The step of a trained model: rows are exchanged between `message` and `update`."""

    smoothing: int
    absorbing: ClassVar[tuple[str, ...]] = COLLECTING

    def begin(self, workers: Workers) -> Arrays:
        first: Arrays
        first, *_ = workers.each("start")
        for _ in range(self.smoothing):
            workers.exchange(("scale", ()), ("smooth", ()))
        return first

    def combined(self, absorbed: Iterable[Arrays]) -> Arrays:
        return combined(list(absorbed))

    def numbers(self, numbers: Arrays) -> Arrays:
        return numbers

    def messages(self, slots: Slots, feeds: Arrays, small: Arrays) -> tuple[Message, Message]:
        for_message, for_update = (
            {name: small[name] for name in names} for names in (FOR_MESSAGE, FOR_UPDATE)
        )
        for_update |= {name: feeds[name] for name in STEP[:2]}
        collecting = {name: small[f"next_{name}"] for name in COLLECTING}
        return ("message", (slots, for_message)), ("update", (slots, for_update, collecting))


@dataclass(frozen=True)
class InContextStep:
    """The step of a pretrained model: rows of the next state are exchanged after `update`.

    Attributes:
        nodes: The number of nodes.
        first: The small states of the first state. Its nodes are in the folders of the shards.
    """

    nodes: int
    first: Arrays
    absorbing: ClassVar[tuple[str, ...]] = (TARGETS,)

    def begin(self, workers: Workers) -> Arrays:
        list(workers.each("start"))
        targets = {TARGETS: self.first[TARGETS]}
        workers.exchange(("send_rows", (0, targets)), ("receive", (0,)))
        return self.first

    def combined(self, absorbed: Iterable[Arrays]) -> Arrays:
        return added(absorbed)

    def numbers(self, numbers: Arrays) -> Arrays:
        count: Any = np.array(self.nodes, np.float32)
        return {name: numbers[name] for name in STEP[:2]} | {"count": count}

    def messages(self, slots: Slots, feeds: Arrays, small: Arrays) -> tuple[Message, Message]:
        taken = feeds | small
        for_update = {name: taken[name] for name in (*in_context_step.FOR_UPDATE, *STEP[:2])}
        after = {TARGETS: small[f"next_{TARGETS}"]}
        return ("advance", (slots, for_update, after)), ("arrive", (slots, after))


def still_proxies(proxies: int, hidden: int) -> Arrays:
    """The proxies of a pretrained model, which never move."""
    return {name: np.zeros((proxies, hidden), np.float32) for name in SMALL[1:]}
