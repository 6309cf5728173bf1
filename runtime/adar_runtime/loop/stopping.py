"""When to stop, and which state to answer from.

A rule watches the alignment of each state, the untouched input (step 0) included, and says whether
that state is the best answer so far and whether to stop. A new rule is one class here.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from adar_runtime.errors import UsageError, short


class StopReason(Enum):
    """Why a run stopped; the value is the sentence that people read."""

    PEAK = "the alignment had passed its peak"
    RISING = "the budget was used up with the alignment still at its highest"
    NO_PEAK = "the alignment had no peak, so the answer is the state at t = 1"
    NO_PEAK_BY_TIME = "the alignment had no peak by the time that was found best on validation data"
    CONVERGED = "what was left of the time would hardly have moved the nodes"
    NOT_CONVERGED = "the budget was used up before the nodes came to rest"
    TIME = "the time that was found best on validation data was reached"
    BUDGET = "the budget was used up, as asked"
    PER_NODE = "the budget was used up; each node answers from its own peak"
    CANCELLED = "the caller stopped it"


class Sight(NamedTuple):
    """What a rule sees of a state."""

    time: float  # as a share of the whole
    budget: int  # steps of Euler's that the whole time is worth
    alignment: float
    speed: float  # root mean square of the nodes' velocity that led here; 0 for the untouched input
    last: bool  # no later state will come


class Verdict(NamedTuple):
    keep: bool  # answer from this state, unless a later one is kept
    stop: StopReason | None
    time: float | None = None  # on stopping: answer from here, which lies beside the kept state


@runtime_checkable
class StopRule(Protocol):
    """Sees each state once, in order. Every run watches with a copy, so a rule may remember what it saw."""

    def end(self, budget: int) -> float:
        """The share of the whole time beyond which it never asks to go."""
        ...

    def watch(self, sight: Sight) -> Verdict: ...


@dataclass
class Final:
    """Use the whole budget and answer at t = 1."""

    def end(self, budget: int) -> float:  # noqa: ARG002
        return 1.0

    def watch(self, sight: Sight) -> Verdict:
        return Verdict(keep=True, stop=StopReason.BUDGET if sight.last else None)


@dataclass
class AtTime:
    """Stop at a given share of the whole time, which calibration on a validation split found best."""

    t: float

    def __post_init__(self) -> None:
        _check_time(self.t)

    def end(self, budget: int) -> float:
        return _nearest_step(self.t, budget)

    def watch(self, sight: Sight) -> Verdict:
        reached = sight.last or round(sight.time * sight.budget) >= round(
            self.end(sight.budget) * sight.budget
        )
        return Verdict(keep=reached, stop=StopReason.TIME if reached else None)


@dataclass
class Converged:
    """Stop when what is left of the time moves the nodes by less than `tolerance` of their way so far."""

    tolerance: float = 1e-3
    _way: float = field(default=0.0, init=False, repr=False)
    _time: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not _is_number(self.tolerance) or not 0 < self.tolerance < 1:
            raise UsageError(f"tolerance is {short(self.tolerance)}: it lies between 0 and 1")

    def end(self, budget: int) -> float:  # noqa: ARG002
        return 1.0

    def watch(self, sight: Sight) -> Verdict:
        if math.isnan(sight.speed):
            raise UsageError("the rule converged needs the speed of the nodes, which is not known here")
        self._way += sight.speed * (sight.time - self._time)
        self._time = sight.time
        if sight.last:
            return Verdict(keep=True, stop=StopReason.NOT_CONVERGED)
        left = sight.speed * (1 - sight.time)
        done = sight.time > 0 and left <= self.tolerance * self._way
        return Verdict(keep=True, stop=StopReason.CONVERGED if done else None)


@dataclass
class Peak:
    """Stop after `patience` steps of the budget without a new maximum, and answer from the maximum.

    A peak has been climbed: it counts only if the alignment rose to it by at least `prominence`
    of all that the curve has moved. A curve that only falls therefore has none, and noise on it
    makes none; the run then goes on to the time `fallback` instead of answering from the untouched input.

    Where the states are further apart than the budget's steps, the peak is where the parabola through the
    highest and its two neighbours has its own, at the nearest step.
    """

    patience: int = 10
    prominence: float = 0.01
    minimum_steps: int = 0  # no stop before
    fallback: float = 1.0
    _best: float = field(default=0.0, init=False, repr=False)  # time of the highest state that was climbed to
    _peak: float = field(default=-math.inf, init=False, repr=False)  # its alignment
    _foot: float = field(default=math.inf, init=False, repr=False)  # the lowest alignment before it
    _last: "Point" = field(default_factory=lambda: Point(0.0, math.inf), init=False, repr=False)
    _low: float = field(default=math.inf, init=False, repr=False)  # of all so far
    _high: float = field(default=-math.inf, init=False, repr=False)
    _around: list["Point"] = field(default_factory=list, init=False, repr=False)  # before, at and after _best

    def __post_init__(self) -> None:
        if not _is_count(self.patience, 1):
            raise UsageError(f"patience is {short(self.patience)}: wait for at least 1 step")
        if not _is_count(self.minimum_steps, 0):
            raise UsageError(f"minimum_steps is {short(self.minimum_steps)}: it is a number of steps")
        if not _is_number(self.prominence) or not 0 <= self.prominence <= 1:
            raise UsageError(f"prominence is {short(self.prominence)}: it is a share, from 0 to 1")
        _check_time(self.fallback)

    def end(self, budget: int) -> float:  # noqa: ARG002
        return 1.0

    def watch(self, sight: Sight) -> Verdict:
        before = self._last.time
        self._remember(Point(sight.time, sight.alignment))
        if sight.last:
            return self._at_the_end(sight)
        step, waited = (round(span * sight.budget) for span in (sight.time, sight.time - self._best))
        if self._has_peak() and waited >= self.patience and step >= self.minimum_steps:
            return Verdict(keep=False, stop=StopReason.PEAK, time=self._between(sight.budget))
        rising = self._best == sight.time and sight.time > 0
        fallback = _nearest_step(self.fallback, sight.budget)
        if fallback <= sight.time and not rising and not self._has_peak():
            exact = before >= fallback or math.isclose(sight.time, fallback)  # or there is no way back to it
            return Verdict(keep=True, stop=StopReason.NO_PEAK_BY_TIME, time=None if exact else fallback)
        return Verdict(keep=self._best == sight.time, stop=None)

    def _remember(self, now: "Point") -> None:
        if now.alignment > max(self._last.alignment, self._peak):
            self._best, self._peak, self._foot = now.time, now.alignment, self._low
            self._around = [self._last, now]
        elif len(self._around) == 2:
            self._around.append(now)
        self._last = now
        self._low, self._high = min(self._low, now.alignment), max(self._high, now.alignment)

    def _at_the_end(self, sight: Sight) -> Verdict:
        if self._best == sight.time:
            return Verdict(keep=True, stop=StopReason.RISING)
        if self._has_peak():
            return Verdict(keep=False, stop=StopReason.PEAK, time=self._between(sight.budget))
        return Verdict(keep=True, stop=StopReason.NO_PEAK)

    def _has_peak(self) -> bool:
        return self._best > 0 and self._peak - self._foot >= self.prominence * (self._high - self._low)

    def _between(self, budget: int) -> float | None:
        """The step of the budget at which the peak really is, unless it is the one that is kept."""
        before, best, after = self._around
        if (after.time - before.time) * budget < 2.5:  # neighbours are steps of the budget themselves
            return None
        step = round(vertex(before, best, after) * budget)
        return None if step == round(best.time * budget) else step / budget


class Point(NamedTuple):
    """Of a curve of alignments."""

    time: float
    alignment: float


def vertex(before: Point, best: Point, after: Point) -> float:
    """Where the parabola through three points is highest, the middle one being no lower than the others."""
    left, right = best.time - before.time, after.time - best.time
    rise, fall = best.alignment - before.alignment, best.alignment - after.alignment
    bend = 2 * (left * fall + right * rise)
    return best.time + (right**2 * rise - left**2 * fall) / bend if bend > 0 else best.time


def answer_step(rule: StopRule, trace: Sequence[float], speeds: Sequence[float] | None = None) -> int:
    """The step that a rule would have answered from, given what it sees of every step of a budget.

    `speeds` are the nodes'; without them, a rule that asks for them raises.
    """
    best, budget, rule = 0, len(trace) - 1, deepcopy(rule)
    for step, alignment in enumerate(trace):
        speed = math.nan if speeds is None else speeds[step]
        verdict = rule.watch(Sight(step / budget, budget, alignment, speed, last=step == budget))
        best = step if verdict.keep else best
        if verdict.stop is not None:
            break
    return best


RULES: dict[str, type[StopRule]] = {
    "peak": Peak,
    "time": AtTime,
    "converged": Converged,
    "final": Final,
}
"""The rules by the names that the command line and a manifest use."""


def make_rule(settings: Mapping[str, Any]) -> StopRule:
    """A new rule from {"rule": name, …settings}."""
    name, rest = settings.get("rule"), {key: value for key, value in settings.items() if key != "rule"}
    if not isinstance(name, str) or name not in RULES:
        raise UsageError(f"there is no exit rule {short(name)!r}: choose {' or '.join(RULES)}")
    for setting in rest:
        if setting not in _settings(name):
            known = " and ".join(rule for rule in RULES if setting in _settings(rule)) or "no rule"
            raise UsageError(f"the exit rule {name!r} takes no {short(setting)}: that is for {known}")
    try:
        return RULES[name](**rest)
    except TypeError as error:
        raise UsageError(
            f"the exit rule {name!r} does not take {short(', '.join(rest))} like that"
        ) from error


def _settings(rule: str) -> list[str]:
    """What a rule can be told."""
    return list(inspect.signature(RULES[rule]).parameters)


def _check_time(t: object) -> None:
    if not is_exit_time(t):
        raise UsageError(f"the exit time is {short(t)}: it lies above 0 and at most at 1")


def is_exit_time(t: object) -> bool:
    """Whether it is a share of the whole time that a rule can stop at."""
    return isinstance(t, int | float) and not isinstance(t, bool) and 0 < t <= 1


def _nearest_step(t: float, budget: int) -> float:
    """The time of the budget's step that is nearest, not counting the untouched input."""
    return max(1, round(t * budget)) / budget


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
