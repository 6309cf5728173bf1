"""Which calls of the cell lead through a budget of steps: times and weights, no tensors of their own.

The recurrence is Euler's method on an ordinary differential equation, so a better integrator needs fewer
calls. Every solver here aims at the answer of Euler's method with the budget's step h = 1/S, not at the exact
solution: the answer is that of S steps, whoever computes it. Two things follow.

* A step of size H stands for H/h steps of Euler's. To second order their sum is H v + ½ H (H - h) v', so
  the velocity before enters with -½ H (H - h) / H_before. With h = 0 this is Adams-Bashforth's weight, with
  H = h it is 0, which is Euler's.
* Within a step the cell lets nodes see proxies and targets that have already moved (the appendix's order).
  They lead by h, and have to go on doing so when the step is larger: otherwise the velocity is off by a term
  in H, and every solver is back to first order.

A solver is a generator of moves; what the cell said of the last one comes back into it.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from adar_runtime.errors import UsageError, short

MAX_CALLS = 1_000_000  # of a solver whose purpose is to need few


class Move(NamedTuple):
    """One call of the cell."""

    time: float  # at which the velocity is taken
    size: float  # how far the call goes
    weight: float  # of this velocity
    previous_weight: float  # of the one before
    lead: float  # how far ahead nodes see proxies and targets


class Motion(NamedTuple):
    """What a call said about the nodes, as root mean squares over the entries of a sample of them."""

    speed: float  # of the velocity
    turn: float  # of its difference from the one before


Moves = Generator[Move, Motion, None]


@runtime_checkable
class Solver(Protocol):
    """One way through the times from `start` to `end`, for steps of Euler's of size `h`."""

    def moves(self, start: float, end: float, h: float) -> Moves: ...


def steps_between(start: float, end: float, h: float) -> int:
    """How many steps of size h it takes, at least one."""
    return max(1, math.ceil((end - start) / h - 1e-6))


class Euler:
    """The reference: every step of the budget is a call."""

    def moves(self, start: float, end: float, h: float) -> Moves:
        count = steps_between(start, end, h)
        for step in range(count):
            now, then = (start + (end - start) * s / count for s in (step, step + 1))
            yield Move(now, then - now, then - now, 0.0, then - now)


@dataclass(frozen=True)
class AdamsBashforth2:
    """The same answer, to second order, from at most `calls` calls for the whole time."""

    calls: int = 32

    def __post_init__(self) -> None:
        if isinstance(self.calls, bool) or not isinstance(self.calls, int) or self.calls < 1:
            raise UsageError(f"calls is {short(self.calls)}: it has to be at least 1")
        if self.calls > MAX_CALLS:
            raise UsageError(f"calls is above {MAX_CALLS:,}: choose fewer, or the solver euler")

    def moves(self, start: float, end: float, h: float) -> Moves:
        whole = end - start
        count = min(steps_between(start, end, h), max(1, math.ceil(self.calls * whole - 1e-6)))
        size, before = whole / count, 0.0
        for step in range(count):
            yield _second_order(start + step * size, size, before, h)
            before = size


@dataclass(frozen=True)
class Adaptive:
    """Second order, with steps as long as the tolerance allows.

    The velocity changes on a time scale τ = speed / acceleration, both seen in the cell's answers. The error
    of a step, relative to the way, is about 5/12 (H/τ)²; `tolerance` is what it may be.
    """

    tolerance: float = 1e-3
    first: float = 1 / 32  # the first step, before anything is known of the velocity's changes
    growth: float = 1.5  # at most, from one step to the next: beyond 2.4 the method is not stable

    def __post_init__(self) -> None:
        if not isinstance(self.tolerance, int | float) or not 0 < self.tolerance < 1:
            raise UsageError(f"tolerance is {short(self.tolerance)}: it lies between 0 and 1")

    def moves(self, start: float, end: float, h: float) -> Moves:
        now, size, before = start, max(h, self.first), 0.0
        while end - now > 1e-9:
            calls_left = max(1, round((end - now) / size))
            size = (end - now) / calls_left if calls_left <= 2 else size  # no sliver of a step at the end
            motion = yield _second_order(now, size, before, h)
            now, last = now + size, before
            before = size
            size = self._next_size(motion, size, last, h)

    def _next_size(self, motion: Motion, size: float, before: float, h: float) -> float:
        if not before or not motion.turn:
            return size
        scale = motion.speed * before / motion.turn  # τ: the turn is over the step before
        wanted = scale * math.sqrt(self.tolerance * 12 / 5)
        return max(h, min(wanted, size * self.growth))


def _second_order(time: float, size: float, before: float, h: float) -> Move:
    """A step of this size after one of size `before` (0 where there was none)."""
    previous = -size * max(0.0, size - h) / (2 * before) if before else 0.0
    return Move(time, size, size - previous, previous, min(h, size))


SOLVERS: dict[str, type[Solver]] = {"euler": Euler, "ab2": AdamsBashforth2, "adaptive": Adaptive}
"""By the names of the command line."""


def make_solver(name: str, **settings: Any) -> Solver:
    """A solver from its name and settings."""
    if name not in SOLVERS:
        raise UsageError(f"there is no solver {name!r}: choose {', '.join(SOLVERS)}")
    try:
        return SOLVERS[name](**settings)
    except TypeError as error:
        raise UsageError(f"the solver {name!r} does not take {', '.join(settings)}") from error
