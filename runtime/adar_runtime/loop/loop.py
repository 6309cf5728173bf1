"""The loop: a backend holds the states, a solver chooses the times, a stop rule chooses the end."""

import math
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np

from adar_runtime.backends import Capturing, Lookahead, Recurrence
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.proven_solver import solver_facts
from adar_runtime.errors import DivergedError, UsageError
from adar_runtime.graph import Floats, Graph, Ids
from adar_runtime.graph.labels import fill_names
from adar_runtime.in_context.label_check import LabelCheck
from adar_runtime.loop.checks import check_budget, check_kind
from adar_runtime.loop.result import Result
from adar_runtime.loop.schedule import shared_step_code, time_at
from adar_runtime.loop.solvers import Motion, Move, Moves, Solver
from adar_runtime.loop.stopping import Observation, StopReason, StopRule


@dataclass(frozen=True)
class Step:
    """One state of a running loop.

    Attributes:
        index: Cell calls made so far; 0 is the untouched input.
        time: Time of the state, from 0 to 1 (to the budget in a model with unit steps).
        alignment: The scalar that stop rules watch.
        motion: Speed of the nodes in the last cell call.

    Examples:
        >>> for step in bundle.loop(graph, budget=300):  # doctest: +SKIP
        ...     print(step.index, step.time, step.alignment)
    """

    index: int
    time: float
    alignment: float
    motion: Motion
    _loop: "Loop" = field(repr=False)
    _calls: int = field(repr=False)  # cell calls that the loop had made at this step

    def scores(self) -> Floats:
        """Compute the scores of this state.

        Returns:
            Scores before softmax, [k, c].

        Raises:
            UsageError: The loop has moved on, or another thread is using it.
            DivergedError: The scores are not finite.
        """
        with self._loop._alone():
            scores = self._recurrence().scores(kept=False)
        check_scores(scores, self.time, self.index, self._loop.manifest)
        return scores

    def state(self) -> dict[str, Floats]:
        """Copy this state.

        Returns:
            The arrays by name: nodes, targets, node_proxies and target_proxies.

        Raises:
            UsageError: The loop has moved on, or another thread is using it.
        """
        with self._loop._alone():
            return self._recurrence().state()

    def _recurrence(self) -> Recurrence:
        """The recurrence, while its buffers still hold this step's state."""
        if self._loop.calls != self._calls:
            raise UsageError(f"step {self.index} is past: read its scores or state before the loop continues")
        return self._loop.recurrence


@dataclass
class Loop:
    """A run that the caller drives: iterate to take steps, and call `result` at any time.

    A loop is an iterator: a second `for` continues where the first one stopped, and `resume` continues with
    another budget. Memory grows with the steps taken (16 bytes each), not with the budget. `Bundle.loop`
    makes one. A loop belongs to one thread at a time; threads share a `Bundle` and make a loop each.

    Attributes:
        recurrence: The states of the graph on a backend.
        manifest: The bundle's manifest.
        budget: Euler steps in the total time.
        stop: The stop rule. The loop uses a copy.
        solver: The solver that chooses the cell calls.
        prepared: Seconds spent on preparing the graph.
        class_names: Names of the classes, as far as they are known.
        ids: Ids of the outputs, if the graph has ids.
        graph: The graph, which the result compares with the training data.
        check: How strongly a pretrained model moves; None for full moves.
        calls: Cell calls made so far.

    Examples:
        >>> loop = bundle.loop(graph, budget=300)  # doctest: +SKIP
        >>> for step in loop:  # doctest: +SKIP
        ...     if step.index == 20:
        ...         break
        >>> loop.result().stop_reason  # doctest: +SKIP
        <StopReason.CANCELLED: 'the caller stopped the loop'>
    """

    recurrence: Recurrence
    manifest: Manifest
    budget: int
    stop: StopRule
    solver: Solver
    prepared: float = 0.0
    class_names: Sequence[str] | None = None
    ids: Ids | None = None
    graph: Graph | None = None
    check: LabelCheck | None = None
    _trace: "array[float]" = field(default_factory=lambda: array("d"), init=False)  # alignment of each state
    _times: "array[float]" = field(default_factory=lambda: array("d"), init=False)
    _best: int | None = field(default=None, init=False)  # index of the kept state
    _reason: StopReason = field(default=StopReason.CANCELLED, init=False)
    _moves: Moves = field(init=False)
    _next: Move | None = field(init=False)  # None at the last time
    _back: Move | None = field(default=None, init=False)  # from the kept state to the peak near it
    _seconds: float = field(default=0.0, init=False)
    calls: int = field(default=0, init=False)
    _lock: Any = field(default_factory=RLock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_kind("stop", self.stop, StopRule, "a rule, such as bundle.stop_rule('peak')")
        check_kind("solver", self.solver, Solver, "a solver, such as bundle.solver('ab2')")
        self.stop = deepcopy(self.stop)  # a rule stores what it has seen of one run
        self._plan(0.0)

    def resume(self, budget: int) -> None:
        """Continue from the current time with the steps of another budget.

        Args:
            budget: Euler steps in the total time.

        Raises:
            UsageError: The loop has ended, the new budget ends before the current time, or another thread is
                using the loop.
        """
        with self._alone():
            if self._reason is not StopReason.CANCELLED:
                raise UsageError("the loop has ended: start a new one")
            before, self.budget = self.budget, budget
            try:
                self._plan(self._times[-1] if self._times else 0.0)
            except UsageError:
                self.budget = before
                raise

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second thread: the states of two interleaved steps would be wrong without an error."""
        if not self._lock.acquire(blocking=False):
            raise UsageError(
                "another thread is using this loop: make one loop per thread with bundle.loop; "
                "the bundle itself can be shared"
            )
        try:
            yield
        finally:
            self._lock.release()

    def _plan(self, start: float) -> None:
        self.budget = check_budget(self.budget)
        end = self.stop.end(self.budget) * self._whole
        if start >= end:
            raise UsageError(f"the loop is past the end of a budget of {self.budget}: choose a larger one")
        self._moves, first = first_move(self.solver, start, end, self._step_size)
        self._next = self._scaled(first)
        if isinstance(self.recurrence, Lookahead):
            self.recurrence.plan_ahead(self._expected_moves(start, end))

    def _expected_moves(self, start: float, end: float) -> Iterator[tuple[Floats, Move]]:
        """The moves of a solver that ignores the motion. A solver that uses the motion may choose others."""
        moves = self.solver.moves(start, end, self._step_size)
        move: Move | None = next(moves)
        while move is not None:
            yield shared_step_code(move.time, self.manifest.hidden), self._scaled(move)
            try:
                move = moves.send(Motion(0.0, 0.0))
            except StopIteration:
                move = None

    def _scaled(self, move: Move) -> Move:
        """The move of a solver with the strength of the label check."""
        return move if self.check is None else move.scaled(self.check.strength)

    @property
    def _whole(self) -> float:
        """The total time."""
        return total_time(self.manifest, self.budget)

    @property
    def _step_size(self) -> float:
        """h, the budget's step size."""
        return step_size(self.manifest, self.budget)

    def __iter__(self) -> "Loop":
        return self

    def __next__(self) -> Step:
        with self._alone():
            if self.ended:
                raise StopIteration
            started = time.perf_counter()
            step = self._go_back(self._back) if self._back else self._go_on()
            self._seconds += time.perf_counter() - started
            return step

    @property
    def ended(self) -> bool:
        """Whether the loop has made its last step."""
        return self._reason is not StopReason.CANCELLED and self._back is None

    @property
    def upcoming(self) -> tuple[Floats, Move, bool]:
        """The next cell call: step encoding, move, and whether it starts from the kept state."""
        move = self._back or self._next
        if move is None:
            raise UsageError(no_end(self.stop))
        return shared_step_code(move.time, self.manifest.hidden), move, self._back is not None

    def _go_on(self) -> Step:
        """Move to the next state and ask the rule about it. The first state is the untouched input."""
        step = self._record(self._advance() if self._trace else 0.0)
        now, speed, last = step.time / self._whole, step.motion.speed, self._next is None
        verdict = self.stop.watch(Observation(now, self.budget, step.alignment, speed, last))
        if verdict.keep:
            self._keep()
        if verdict.stop is not None:
            self._reason = verdict.stop
            self._back = self._move_back(verdict.time)
        return step

    def _advance(self) -> float:
        """Make the next move, ask the solver for the following one, and return the new time."""
        move = self._next
        if move is None:
            raise UsageError(no_end(self.stop))
        self._call(move)
        try:
            self._next = self._scaled(self._moves.send(self.recurrence.motion))
        except StopIteration:
            self._next = None
        return move.time + move.size

    def _move_back(self, time: float | None) -> Move | None:
        """The move from the kept state to the time near it that the rule wants to answer from."""
        if time is None or self._best is None:
            return None
        kept = self._times[self._best]
        size = time * self._whole - kept
        return self._scaled(Move(kept, size, size, 0.0, self._step_size))

    def _go_back(self, move: Move) -> Step:
        self._back = None
        self.recurrence.recall()
        self._call(move)
        step = self._record(move.time + move.size)
        self._keep()
        return step

    def _call(self, move: Move) -> None:
        self.calls += 1
        self.recurrence.step(shared_step_code(move.time, self.manifest.hidden), move)

    def _record(self, now: float) -> Step:
        """Record the current state."""
        index, alignment, motion = len(self._trace), self.recurrence.alignment, self.recurrence.motion
        if not math.isfinite(alignment) or not math.isfinite(motion.speed):
            raise DivergedError(
                f"the state is no longer finite at t = {now:.4g} (cell call {index})"
                f"{overflow_advice(self.manifest)}"
            )
        self._trace.append(alignment)
        self._times.append(now)
        return Step(index, now, alignment, motion, self, self.calls)

    def _keep(self) -> None:
        self.recurrence.keep()
        self._best = len(self._trace) - 1

    def result(self) -> Result:
        """Compute the scores of the state that the rule chose; of the current state where none is chosen yet.

        Returns:
            The answer, and how the loop reached it.

        Raises:
            UsageError: The loop has not started, or another thread is using it.
            DivergedError: The scores are not finite.
        """
        with self._alone():
            return self._result()

    def _result(self) -> Result:
        if not self._trace:
            raise UsageError("the loop has not been started: iterate over it first")
        started = time.perf_counter()
        scores = self.recurrence.scores(kept=True)
        best = len(self._trace) - 1 if self._best is None else self._best
        check_scores(scores, self._times[best], best, self.manifest)
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
            ids=self.ids,
            compared=None if self.graph is None else (self.manifest, self.graph),
            capture=self.recurrence.capture if isinstance(self.recurrence, Capturing) else None,
            check=self.check,
            **solver_facts(self.manifest, self.solver, self.budget),
        )


def total_time(manifest: Manifest, budget: int) -> float:
    """The time at the end of a budget."""
    return time_at(budget, budget, unit_step=manifest.unit_step)


def step_size(manifest: Manifest, budget: int) -> float:
    """h, the size of a budget's steps."""
    return time_at(1, budget, unit_step=manifest.unit_step)


def first_move(solver: Solver, start: float, end: float, h: float) -> tuple[Moves, Move]:
    """The moves of a solver from `start` to `end`, and the first of them."""
    moves = solver.moves(start, end, h)
    first = next(moves, None)
    if first is None:
        name = type(solver).__name__
        raise UsageError(f"the solver {name} yields no move from t = {start:.4g} to t = {end:.4g}")
    return moves, first


def no_end(rule: StopRule) -> str:
    """The message for a rule that does not stop at the last state."""
    name = type(rule).__name__
    return f"the stop rule {name} did not stop at the last state (observed.last): make it stop"


def check_scores(scores: Floats, time: float, call: int, manifest: Manifest) -> None:
    """Refuse scores that are not finite."""
    if not np.isfinite(scores).all():
        raise DivergedError(
            f"the scores at t = {time:.4g} (cell call {call}) are not finite{overflow_advice(manifest)}"
        )


def overflow_advice(manifest: Manifest) -> str:
    """What may help when numbers become too large."""
    if manifest.precision == "fp16":
        return ": fp16 ends at 65,504, so export with --precision fp32 or bf16"
    return ": check for features far larger than those of the training data"
