"""Drive the loops of several graphs together: one call of the batched cell makes a step of every loop."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from adar_runtime.backends import Recurrence
from adar_runtime.errors import AdarError
from adar_runtime.graph import Floats
from adar_runtime.loop.loop import Loop
from adar_runtime.loop.result import Result
from adar_runtime.loop.solvers import Move


class Call(NamedTuple):
    """The next step of one graph."""

    code: Floats  # [d], the step encoding of the move's time
    move: Move
    recall: bool  # the step starts from the kept state


class Batch(Protocol):
    """The states of the graphs of a batch."""

    @property
    def graphs(self) -> Sequence[Recurrence]:
        """One recurrence per graph. Its `step` and `recall` do nothing: `Batch.step` makes the steps."""
        ...

    def step(self, calls: Sequence[Call | None]) -> None:
        """Make one step of every graph that has a call."""
        ...


def run_together(
    batch: Batch, loops: Sequence[Loop], problem: Callable[[int], AdarError | None] = lambda _: None
) -> list[Result | AdarError]:
    """Run every loop to its end. A graph whose numbers stop being finite gets an error, not a result.

    Args:
        batch: The states of the graphs.
        loops: The loop of each graph. Its recurrence is that of the batch.
        problem: Called before each step with the index of a graph: why to stop it, or None.

    Returns:
        The result of each graph, as if its loop had run alone.
    """
    found: list[Result | AdarError | None] = [None] * len(loops)
    started = time.perf_counter()
    calls: list[Call | None] = [None] * len(loops)
    running = list(range(len(loops)))  # first, every loop looks at its untouched input
    while running:
        for index in running:
            found[index] = problem(index) or _advanced(loops[index])
        running = [index for index in running if found[index] is None]
        calls = [None] * len(loops)
        for index in running:
            calls[index] = Call(*loops[index].upcoming)
        if running:
            batch.step(calls)
    share = (time.perf_counter() - started) / max(1, len(loops))
    return [_with_seconds(each, share) for each in found if each is not None]


def _advanced(loop: Loop) -> Result | AdarError | None:
    """Let the loop look at its new state. Return its result if this was the last one."""
    try:
        next(loop)
        return loop.result() if loop.ended else None
    except AdarError as error:
        return error


def _with_seconds(found: Result | AdarError, share: float) -> Result | AdarError:
    """A graph's time is its share of the time of all."""
    return found if isinstance(found, AdarError) else replace(found, timings=found.timings | {"loop": share})
