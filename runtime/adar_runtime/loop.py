"""The loop: a backend for the states, a budget for the times, a rule for the end."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from adar_runtime.backends import Recurrence
from adar_runtime.errors import DivergedError, UsageError
from adar_runtime.graph import Floats, Integers
from adar_runtime.manifest import Manifest
from adar_runtime.schedule import step_code, times
from adar_runtime.stopping import StopReason, StopRule


@dataclass(frozen=True)
class Step:
    """Where the loop is: after `index` steps, at `time`."""

    index: int
    time: float
    alignment: float
    _recurrence: Recurrence = field(repr=False)

    def scores(self) -> Floats:
        """The scores [k, c] of this step's state, as long as the loop has not gone on."""
        return self._recurrence.scores(kept=False)


@dataclass(frozen=True, eq=False)
class Result:
    """The answer, and how it came about."""

    scores: Floats  # [k, c], before softmax
    alignment: list[float]  # of every state, the input's first
    budget: int
    best_step: int  # the step that the scores are from
    stop_reason: StopReason
    backend: str
    seconds: float
    regression: bool = False

    @property
    def steps(self) -> int:
        return len(self.alignment) - 1

    @property
    def cell_calls(self) -> int:
        return self.steps

    @property
    def predictions(self) -> Integers | Floats:
        """The class of each output [k], or its numbers [k, c]."""
        return self.scores if self.regression else self.scores.argmax(axis=1)

    @property
    def probabilities(self) -> Floats | None:
        """Softmax of the scores; None where they are numbers."""
        if self.regression:
            return None
        powers = np.exp(self.scores - self.scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)


def check_budget(budget: int) -> None:
    """Refuse a budget that allows no step."""
    if budget < 1:
        raise UsageError(f"the budget is {budget}: it has to be at least 1 step")


@dataclass
class Loop:
    """Iterate over it to go step by step; ask for `result()` at any time."""

    recurrence: Recurrence
    manifest: Manifest
    budget: int
    stop: StopRule
    started: float = field(default_factory=time.perf_counter)  # when the work on this graph began
    _trace: list[float] = field(default_factory=list, init=False)
    _best: int = field(default=0, init=False)
    _reason: StopReason = field(default=StopReason.CANCELLED, init=False)

    def __post_init__(self) -> None:
        check_budget(self.budget)

    def __iter__(self) -> Iterator[Step]:
        clock = times(self.budget, unit_step=self.manifest.unit_step)
        while True:
            index = len(self._trace)
            alignment = self.recurrence.alignment
            if not np.isfinite(alignment):
                raise DivergedError(f"the state is no longer finite at step {index} of {self.budget}")
            self._trace.append(alignment)
            verdict = self.stop.watch(index, self.budget, alignment)
            if verdict.keep:
                self.recurrence.keep()
                self._best = index
            yield Step(index, float(clock[index]), alignment, self.recurrence)
            if verdict.stop is not None:
                self._reason = verdict.stop
                return
            self.recurrence.step(
                step_code(clock[index], self.manifest.hidden), clock[index + 1] - clock[index]
            )

    def result(self) -> Result:
        """The scores of the state that the rule chose."""
        if not self._trace:
            raise UsageError("the loop has not been started: iterate over it first")
        scores = self.recurrence.scores(kept=True)
        return Result(
            scores=scores,
            alignment=list(self._trace),
            budget=self.budget,
            best_step=self._best,
            stop_reason=self._reason,
            backend=self.recurrence.name,
            seconds=time.perf_counter() - self.started,
            regression=self.manifest.regression,
        )
