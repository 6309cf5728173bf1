"""The loop: a backend for the states, a solver for the times, a rule for the end."""

import time
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from adar_runtime.backends import Recurrence
from adar_runtime.errors import DivergedError, UsageError
from adar_runtime.graph import Floats, Integers
from adar_runtime.manifest import Manifest
from adar_runtime.schedule import step_code, time_at
from adar_runtime.solvers import Motion, Move, Moves, Solver
from adar_runtime.stopping import Sight, StopReason, StopRule

MAX_BUDGET = 2**53  # beyond it, one step more is no later time: s / S is a float


@dataclass(frozen=True)
class Step:
    """Where the loop is: after `index` calls of the cell, at `time`."""

    index: int
    time: float
    alignment: float
    motion: Motion
    _recurrence: Recurrence = field(repr=False)

    def scores(self) -> Floats:
        """The scores [k, c] of this step's state, as long as the loop has not gone on."""
        return self._recurrence.scores(kept=False)

    def state(self) -> dict[str, Floats]:
        """A copy of the state itself, as long as the loop has not gone on."""
        return self._recurrence.state()


@dataclass(frozen=True, eq=False)
class Result:
    """The answer, and how it came about."""

    scores: Floats  # [k, c], before softmax
    alignment: list[float]  # of every state, the input's first
    times: list[float]  # of these states
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
    def best_time(self) -> float:
        return self.times[self.best_step]

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
    """Refuse a budget that allows no step, or more than there are times for."""
    if budget < 1:
        raise UsageError(f"the budget is {budget}: it has to be at least 1 step")
    if budget > MAX_BUDGET:
        raise UsageError(f"the budget is above {MAX_BUDGET}: choose a smaller one")


@dataclass
class Loop:
    """Iterate over it to go step by step; ask for `result()` at any time.

    It is an iterator: a second `for` goes on where the first one was left, and `resume` lets it go on with
    another budget. Nothing in it grows with the budget, only with the steps that were taken.
    """

    recurrence: Recurrence
    manifest: Manifest
    budget: int
    stop: StopRule
    solver: Solver
    started: float = field(default_factory=time.perf_counter)  # when the work on this graph began
    _trace: list[float] = field(default_factory=list, init=False)
    _times: list[float] = field(default_factory=list, init=False)
    _best: int | None = field(default=None, init=False)  # the step that is kept, if one is
    _reason: StopReason = field(default=StopReason.CANCELLED, init=False)
    _moves: Moves = field(init=False)
    _next: Move | None = field(init=False)  # None when the last time has been reached

    def __post_init__(self) -> None:
        self.stop = deepcopy(self.stop)  # what it remembers is of this run, and of no other
        self._plan(0.0)

    def resume(self, budget: int) -> None:
        """Go on from the present time with the steps of another budget."""
        if self._reason is not StopReason.CANCELLED:
            raise UsageError("the loop has come to its end: start a new one")
        self.budget = budget
        self._plan(self._times[-1] if self._times else 0.0)

    def _plan(self, start: float) -> None:
        check_budget(self.budget)
        end = self.stop.end(self.budget) * self._whole
        self._moves = self.solver.moves(
            start, end, time_at(1, self.budget, unit_step=self.manifest.unit_step)
        )
        self._next = next(self._moves) if start < end else None

    @property
    def _whole(self) -> float:
        return time_at(self.budget, self.budget, unit_step=self.manifest.unit_step)

    def __iter__(self) -> "Loop":
        return self

    def __next__(self) -> Step:
        if self._reason is not StopReason.CANCELLED:
            raise StopIteration
        return self._look(self._advance() if self._trace else 0.0)

    def _advance(self) -> float:
        """Make the next move, ask for the one after it, and say what time it is."""
        move = self._next
        assert move is not None
        self.recurrence.step(step_code(move.time, self.manifest.hidden), move)
        try:
            self._next = self._moves.send(self.recurrence.motion)
        except StopIteration:
            self._next = None
        return move.time + move.size

    def _look(self, now: float) -> Step:
        """Let the rule see the state that has been reached."""
        index, alignment, motion = len(self._trace), self.recurrence.alignment, self.recurrence.motion
        if not np.isfinite(alignment) or not np.isfinite(motion.speed):
            raise DivergedError(f"the state is no longer finite at step {index} of {self.budget}")
        self._trace.append(alignment)
        self._times.append(now)
        sight = Sight(now / self._whole, self.budget, alignment, motion.speed, last=self._next is None)
        verdict = self.stop.watch(sight)
        if verdict.keep:
            self.recurrence.keep()
            self._best = index
        self._reason = verdict.stop or StopReason.CANCELLED
        return Step(index, now, alignment, motion, self.recurrence)

    def result(self) -> Result:
        """The scores of the state that the rule chose."""
        if not self._trace:
            raise UsageError("the loop has not been started: iterate over it first")
        scores = self.recurrence.scores(kept=True)
        return Result(
            scores=scores,
            alignment=list(self._trace),
            times=list(self._times),
            budget=self.budget,
            best_step=len(self._trace) - 1 if self._best is None else self._best,
            stop_reason=self._reason,
            backend=self.recurrence.name,
            seconds=time.perf_counter() - self.started,
            regression=self.manifest.regression,
        )
