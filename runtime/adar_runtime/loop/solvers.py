"""Solvers: which cell calls lead through a budget of steps.

A new solver is one class and one line in `SOLVERS`.

The recurrence is Euler's method on an ordinary differential equation (ODE), so a better integrator needs
fewer cell calls. Every solver here reproduces the result of Euler's method with the budget's step h = 1/S,
not the exact solution: the result is that of S Euler steps, whichever solver computes it. Two things follow.

* A step of size H replaces H/h Euler steps. To second order their sum is H v + ½ H (H - h) v', so the
  previous velocity has the weight -½ H (H - h) / H_previous. With h = 0 this is the Adams-Bashforth weight.
  With H = h the weight is 0, which is Euler's method.
* Within a step, nodes see proxies and targets that have already moved (the order of the paper's appendix).
  Proxies and targets lead by h. A larger step must keep the lead at h: otherwise the velocity has an error of
  first order in H, and every solver falls back to first order.

A solver is a generator of moves. After each cell call it receives the motion of the nodes. A move combines
the velocity of this call and of the previous call, so multistep methods with one previous velocity fit.
General Runge-Kutta methods do not: they need more velocities, and the stop rule would see every stage.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

from adar_runtime.errors import UsageError, short
from adar_runtime.loop.registry import check_tolerance, create, is_count, is_number, is_tolerance, setting

MAX_CALLS = 1_000_000  # for a solver whose purpose is to need few calls

Found = TypeVar("Found")


class Move(NamedTuple):
    """One cell call."""

    time: float  # at which the velocity is computed
    size: float  # time from this state to the next one
    weight: float  # of this velocity
    previous_weight: float  # of the previous velocity
    lead: float  # how far ahead in time nodes see proxies and targets

    def scaled(self, factor: float) -> "Move":
        """The same times with velocities times a factor."""
        weights = self.weight * factor, self.previous_weight * factor, self.lead * factor
        return Move(self.time, self.size, *weights)


class Motion(NamedTuple):
    """How the nodes moved in one cell call: root mean squares over the entries of a sample of nodes."""

    speed: float  # of the velocity
    turn: float  # of the difference between this velocity and the previous one


Moves = Generator[Move, Motion, None]


@runtime_checkable
class Solver(Protocol):
    """Any object with the method `moves` is a solver and can be given to `Bundle.run`.

    A solver with the attribute `needs_ode = False` is valid for every bundle. Without the attribute, or with
    `needs_ode = True`, a bundle whose cell does not behave like an ODE refuses the solver.

    A solver with the attribute `reads_motion = False` ignores the motion that its generator receives. Then
    the small graphs of a batch share one generator.

    A solver that is available by name is a `RegisteredSolver` in `SOLVERS`.
    """

    def moves(self, start: float, end: float, h: float) -> Moves:
        """Yield the cell calls that lead from time `start` to time `end`.

        Args:
            start: Time of the current state.
            end: Time of the last state.
            h: Step size of the budget, 1/S.

        Returns:
            A generator of at least one move. It receives the `Motion` of each call.
        """
        ...


class Attempt(NamedTuple):
    """One run to try when `adar-deploy export` measures a solver."""

    budget: int
    solver: Solver


def first_confirmed(found: Iterable[Found | None]) -> Found | None:
    """The first attempt that succeeds and whose next attempt succeeds too; None stands for a failed attempt.

    A single number of calls can succeed by chance. The last attempt has no next one: its success is enough.
    """
    passed = None
    for one in found:
        if passed is not None and one is not None:
            break
        passed = one
    return passed


class RegisteredSolver(ABC):
    """A solver with a name, and all that export, bundles and the command line need to know about it."""

    needs_ode: ClassVar[bool] = True  # the solver is valid only for a cell that behaves like an ODE
    fixed_calls: ClassVar[bool] = False  # the setting `calls` alone decides the cell calls, for every graph
    reads_motion: ClassVar[bool] = True  # the moves depend on the motion of the nodes

    @abstractmethod
    def moves(self, start: float, end: float, h: float) -> Moves:
        """See `Solver.moves`."""

    @classmethod
    def attempts(cls, budget: int) -> Iterator[Attempt]:  # noqa: ARG003
        """Runs to try until one reproduces `budget` Euler steps, the cheapest first. None by default."""
        yield from ()

    @classmethod
    def measured_settings(cls, calls: int | None, trial: Mapping[str, Any]) -> dict[str, Any] | None:
        """The settings that were measured to reproduce the reference; None if none were measured.

        Args:
            calls: The fewest cell calls that reproduced the reference; None where the bundle does not say.
            trial: The manifest's record of that trial; empty where there is none. The manifest is untrusted
                input: check the types.
        """
        del calls, trial
        return None


def steps_between(start: float, end: float, h: float) -> int:
    """The number of steps of size h from start to end, at least one."""
    return max(1, math.ceil((end - start) / h - 1e-6))


@dataclass(frozen=True)
class Euler(RegisteredSolver):
    """The reference solver: every step of the budget is one cell call.

    Examples:
        >>> bundle.run(graph, budget=300, solver=Euler())  # doctest: +SKIP
    """

    needs_ode: ClassVar[bool] = False
    reads_motion: ClassVar[bool] = False

    def moves(self, start: float, end: float, h: float) -> Moves:
        count = steps_between(start, end, h)
        for step in range(count):
            now, then = (start + (end - start) * s / count for s in (step, step + 1))
            yield Move(now, then - now, then - now, 0.0, then - now)

    @classmethod
    def attempts(cls, budget: int) -> Iterator[Attempt]:
        """Smaller budgets."""
        return (Attempt(steps, cls()) for steps in (25, 50, 100, 150, 200, 250) if steps < budget)

    @classmethod
    def measured_settings(cls, calls: int | None, trial: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG003
        """Euler's method has no settings and needs no measurement."""
        return {}


@dataclass(frozen=True)
class AdamsBashforth2(RegisteredSolver):
    """Second-order Adams-Bashforth: the result of the budget's Euler steps from at most `calls` cell calls.

    Args:
        calls: Cell calls for the whole time, at most one for each step of the budget.

    Raises:
        UsageError: `calls` is not a whole number from 1 to 1,000,000.

    Examples:
        >>> bundle.run(graph, budget=300, solver=AdamsBashforth2(calls=32))  # doctest: +SKIP
    """

    fixed_calls: ClassVar[bool] = True
    reads_motion: ClassVar[bool] = False

    calls: int = setting(32, "Cell calls from t = 0 to t = 1")

    def __post_init__(self) -> None:
        if not is_count(self.calls, 1):
            raise UsageError(f"calls is {short(self.calls)}: choose a whole number of at least 1")
        if self.calls > MAX_CALLS:
            raise UsageError(f"calls is above {MAX_CALLS:,}: choose fewer, or the solver euler")

    def moves(self, start: float, end: float, h: float) -> Moves:
        whole = end - start
        count = min(steps_between(start, end, h), max(1, math.ceil(self.calls * whole - 1e-6)))
        size, previous = whole / count, 0.0
        for step in range(count):
            yield _second_order(start + step * size, size, previous, h)
            previous = size

    @classmethod
    def attempts(cls, budget: int) -> Iterator[Attempt]:
        """More and more calls."""
        counts = (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192)
        return (Attempt(budget, cls(calls)) for calls in counts if calls < budget)

    @classmethod
    def measured_settings(cls, calls: int | None, trial: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: ARG003
        """The number of calls."""
        return None if calls is None else {"calls": calls}


@dataclass(frozen=True)
class Adaptive(RegisteredSolver):
    """Second-order Adams-Bashforth with steps as long as an error estimate allows.

    The velocity changes on a time scale τ = speed / acceleration, both from the cell's outputs. The error of
    a step of size H, relative to the distance moved, is about 5/12 (H/τ)².

    Args:
        tolerance: Error allowed in one step, relative to the distance moved; above 0 and below 1.
        first: Size of the first step, before the change of the velocity is known; above 0 and at most 1.
        growth: Largest ratio of one step to the previous one, at least 1. Above 2.4 the method is unstable.

    Raises:
        UsageError: A setting is out of its range.

    Examples:
        >>> bundle.run(graph, budget=300, solver=Adaptive(tolerance=1e-3))  # doctest: +SKIP
    """

    tolerance: float = setting(1e-3, "Error allowed in one step, relative to the distance moved")
    first: float = 1 / 32
    growth: float = 1.5

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)
        if not is_number(self.first) or not 0 < self.first <= 1:
            raise UsageError(f"first is {short(self.first)}: choose a step size above 0 and at most 1")
        if not is_number(self.growth) or not 1 <= self.growth < math.inf:
            raise UsageError(f"growth is {short(self.growth)}: choose a ratio of at least 1")

    def moves(self, start: float, end: float, h: float) -> Moves:
        now, size, previous = start, max(h, self.first), 0.0
        while end - now > 1e-9:
            calls_left = max(1, round((end - now) / size))
            size = (end - now) / calls_left if calls_left <= 2 else size  # no tiny step at the end
            motion = yield _second_order(now, size, previous, h)
            now, before = now + size, previous
            previous = size
            size = self._next_size(motion, size, before, h)

    def _next_size(self, motion: Motion, size: float, previous: float, h: float) -> float:
        if not previous or not motion.turn:
            return size
        scale = motion.speed * previous / motion.turn  # τ: the turn happened over the previous step
        wanted = scale * math.sqrt(self.tolerance * 12 / 5)
        return max(h, min(wanted, size * self.growth))

    @classmethod
    def attempts(cls, budget: int) -> Iterator[Attempt]:
        """Smaller and smaller tolerances."""
        return (Attempt(budget, cls(tolerance)) for tolerance in (1e-2, 5e-3, 2e-3, 1e-3, 5e-4, 2e-4, 1e-4))

    @classmethod
    def measured_settings(cls, calls: int | None, trial: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: ARG003
        """The tolerance of the trial."""
        tolerance = trial.get("tolerance")
        return {"tolerance": tolerance} if is_tolerance(tolerance) else None


def _second_order(time: float, size: float, previous: float, h: float) -> Move:
    """A step of this size after a step of size `previous` (0 for the first step)."""
    previous_weight = -size * max(0.0, size - h) / (2 * previous) if previous else 0.0
    return Move(time, size, size - previous_weight, previous_weight, min(h, size))


SOLVERS: dict[str, type[RegisteredSolver]] = {"euler": Euler, "ab2": AdamsBashforth2, "adaptive": Adaptive}
"""The solvers by name, as the command line and manifests use it."""

REFERENCE_SOLVER = "euler"
"""The solver whose results the others reproduce. It works for every bundle."""

DEFAULT_SOLVER = "auto"
"""The cheapest solver that the export of a bundle proved to give the result of the reference, or Euler's."""

REFERENCE_STEPS = 300  # Euler steps whose result a solver has to reproduce


def make_solver(name: str, **settings: Any) -> RegisteredSolver:
    """A solver from its name and settings.

    Raises:
        UsageError: There is no such solver, or the solver does not accept the settings.
    """
    return create(SOLVERS, "solver", name, settings)
