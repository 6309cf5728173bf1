"""The loop: a backend for the states, a solver for the times, a rule for the end."""

import math
import time
from array import array
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from adar_runtime.backends import Foresees, Recurrence
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import DivergedError, UsageError, short
from adar_runtime.graph import Floats, Integers
from adar_runtime.graph.labels import fill_names
from adar_runtime.loop.schedule import step_code, time_at
from adar_runtime.loop.solvers import Motion, Move, Moves, Solver
from adar_runtime.loop.stopping import Sight, StopReason, StopRule

MAX_BUDGET = 2**53  # beyond it, one step more is no later time: s / S is a float


@dataclass(frozen=True)
class Step:
    """Where the loop is: after `index` calls of the cell, at `time`."""

    index: int
    time: float
    alignment: float
    motion: Motion
    _loop: "Loop" = field(repr=False)
    _calls: int = field(repr=False)  # that the loop had made when it was here

    def scores(self) -> Floats:
        """The scores [k, c] of this step's state; an error once the loop has gone on."""
        return self._here().scores(kept=False)

    def state(self) -> dict[str, Floats]:
        """A copy of the state itself; an error once the loop has gone on."""
        return self._here().state()

    def _here(self) -> Recurrence:
        """The recurrence, as long as its buffers still hold this step's state."""
        if self._loop.calls != self._calls:
            raise UsageError(
                f"step {self.index} is past: ask for its scores or state before the loop goes on"
            )
        return self._loop.recurrence


@dataclass(frozen=True, eq=False)
class Result:
    """The answer, and how it came about."""

    scores: Floats  # [k, c], before softmax
    alignment: list[float]  # of every state, the input's first
    times: list[float]  # of these states; the last may lie before others, where a peak was gone back to
    budget: int
    best_step: int  # the step that the scores are from
    stop_reason: StopReason
    backend: str
    timings: dict[str, float]  # seconds of each phase: prepare (encode, lay out the edges), loop, head
    regression: bool = False
    class_names: tuple[str, ...] | None = None  # [c], of the model or of the graph that describes them

    @property
    def seconds(self) -> float:
        """Spent on this graph in all; the caller's own time between steps does not count."""
        return sum(self.timings.values())

    @property
    def steps(self) -> int:
        return len(self.alignment) - 1

    @property
    def cell_calls(self) -> int:
        """The same: a step is a call."""
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
    """Refuse a budget that is no number of steps, allows none, or more than there are times for."""
    if isinstance(budget, bool) or not isinstance(budget, int | np.integer):
        raise UsageError(f"the budget is {short(repr(budget))}: it has to be a whole number of steps")
    if budget < 1:
        raise UsageError(f"the budget is {budget}: it has to be at least 1 step")
    if budget > MAX_BUDGET:
        raise UsageError(f"the budget is above {MAX_BUDGET}: choose a smaller one")


def _check_kind(name: str, value: object, kind: type, wanted: str) -> None:
    """Refuse a name, a class or a number where an object is needed: it would fail far from here."""
    if isinstance(value, type) or not isinstance(value, kind):
        raise UsageError(f"{name} is {short(repr(value))}: give {wanted}")


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
    prepared: float = 0.0  # seconds that it took to get here
    class_names: Sequence[str] | None = None  # as far as they are known
    _trace: "array[float]" = field(default_factory=lambda: array("d"), init=False)  # 16 bytes a step, with
    _times: "array[float]" = field(default_factory=lambda: array("d"), init=False)
    _best: int | None = field(default=None, init=False)  # the step that is kept, if one is
    _reason: StopReason = field(default=StopReason.CANCELLED, init=False)
    _moves: Moves = field(init=False)
    _next: Move | None = field(init=False)  # None when the last time has been reached
    _back: Move | None = field(default=None, init=False)  # from the kept state to the peak beside it
    _seconds: float = field(default=0.0, init=False)
    calls: int = field(default=0, init=False)  # of the cell, so far

    def __post_init__(self) -> None:
        _check_kind("stop", self.stop, StopRule, "a rule, such as bundle.stop_rule('peak')")
        _check_kind("solver", self.solver, Solver, "a solver, such as bundle.solver('ab2')")
        self.stop = deepcopy(self.stop)  # what it remembers is of this run, and of no other
        self._plan(0.0)

    def resume(self, budget: int) -> None:
        """Go on from the present time with the steps of another budget."""
        if self._reason is not StopReason.CANCELLED:
            raise UsageError("the loop has come to its end: start a new one")
        before, self.budget = self.budget, budget
        try:
            self._plan(self._times[-1] if self._times else 0.0)
        except UsageError:
            self.budget = before
            raise

    def _plan(self, start: float) -> None:
        check_budget(self.budget)
        end = self.stop.end(self.budget) * self._whole
        if start >= end:
            raise UsageError(f"the loop is beyond the end of a budget of {self.budget}: choose a larger one")
        self._moves = self.solver.moves(start, end, self._step_size)
        self._next = next(self._moves)
        if isinstance(self.recurrence, Foresees):
            self.recurrence.foresee(self._foreseen(start, end))

    def _foreseen(self, start: float, end: float) -> Iterator[tuple[Floats, Move]]:
        """What the cell will be told by a solver that does not listen to it; one that does may differ."""
        moves = self.solver.moves(start, end, self._step_size)
        move: Move | None = next(moves)
        while move is not None:
            yield step_code(move.time, self.manifest.hidden), move
            try:
                move = moves.send(Motion(0.0, 0.0))
            except StopIteration:
                move = None

    @property
    def _whole(self) -> float:
        return time_at(self.budget, self.budget, unit_step=self.manifest.unit_step)

    @property
    def _step_size(self) -> float:
        """h, of the budget's steps."""
        return time_at(1, self.budget, unit_step=self.manifest.unit_step)

    def __iter__(self) -> "Loop":
        return self

    def __next__(self) -> Step:
        if self._reason is not StopReason.CANCELLED and self._back is None:
            raise StopIteration
        started = time.perf_counter()
        step = self._go_back(self._back) if self._back else self._go_on()
        self._seconds += time.perf_counter() - started
        return step

    def _go_on(self) -> Step:
        """The next state, as the rule sees it; the first one is the untouched input."""
        step = self._reached(self._advance() if self._trace else 0.0)
        speed, last = step.motion.speed, self._next is None
        verdict = self.stop.watch(Sight(step.time / self._whole, self.budget, step.alignment, speed, last))
        if verdict.keep:
            self._keep()
        if verdict.stop is not None:
            self._reason = verdict.stop
            self._back = self._way_back(verdict.time)
        return step

    def _advance(self) -> float:
        """Make the next move, ask for the one after it, and say what time it is."""
        move = self._next
        assert move is not None
        self._call(move)
        try:
            self._next = self._moves.send(self.recurrence.motion)
        except StopIteration:
            self._next = None
        return move.time + move.size

    def _way_back(self, time: float | None) -> Move | None:
        """A call from the kept state to the time beside it that the rule would rather answer from."""
        if time is None or self._best is None:
            return None
        kept = self._times[self._best]
        size = time * self._whole - kept
        return Move(kept, size, size, 0.0, self._step_size)

    def _go_back(self, move: Move) -> Step:
        self._back = None
        self.recurrence.recall()
        self._call(move)
        step = self._reached(move.time + move.size)
        self._keep()
        return step

    def _call(self, move: Move) -> None:
        self.calls += 1
        self.recurrence.step(step_code(move.time, self.manifest.hidden), move)

    def _reached(self, now: float) -> Step:
        """Write down the state that has been reached."""
        index, alignment, motion = len(self._trace), self.recurrence.alignment, self.recurrence.motion
        if not math.isfinite(alignment) or not math.isfinite(motion.speed):
            raise DivergedError(
                f"the state is no longer finite at step {index} of {self.budget}{self._cure()}"
            )
        self._trace.append(alignment)
        self._times.append(now)
        return Step(index, now, alignment, motion, self, self.calls)

    def _cure(self) -> str:
        """What may help against numbers that are too large."""
        if self.manifest.precision == "fp16":
            return ": numbers of fp16 end at 65,504, so export with --precision fp32 or bf16"
        return ": look for features far larger than those that it was trained on"

    def _keep(self) -> None:
        self.recurrence.keep()
        self._best = len(self._trace) - 1

    def result(self) -> Result:
        """The scores of the state that the rule chose."""
        if not self._trace:
            raise UsageError("the loop has not been started: iterate over it first")
        started = time.perf_counter()
        scores = self.recurrence.scores(kept=True)
        best = len(self._trace) - 1 if self._best is None else self._best
        if not np.isfinite(scores).all():
            raise DivergedError(f"the scores of step {best} of {self.budget} are not finite{self._cure()}")
        head = time.perf_counter() - started
        return Result(
            scores=scores,
            alignment=list(self._trace),
            times=list(self._times),
            budget=self.budget,
            best_step=best,
            stop_reason=self._reason,
            backend=self.recurrence.name,
            timings={"prepare": self.prepared, "loop": self._seconds, "head": head},
            regression=self.manifest.regression,
            class_names=tuple(fill_names(self.class_names, scores.shape[1])) if self.class_names else None,
        )
