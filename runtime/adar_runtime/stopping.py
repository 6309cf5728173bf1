"""When to stop, and which state to answer from.

A rule watches the alignment of each state, the untouched input (step 0) included, and says whether
that state is the best answer so far and whether to stop. A new rule is one class here.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

from adar_runtime.errors import UsageError, short


class StopReason(Enum):
    """Why a run stopped; the value is the sentence that people read."""

    PEAK = "the alignment had passed its peak"
    RISING = "the budget was used up with the alignment still at its highest"
    NO_PEAK = "the alignment had no peak, so the answer is the state at t = 1"
    TIME = "the time that was found best on validation data was reached"
    BUDGET = "the budget was used up, as asked"
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


class StopRule(Protocol):
    """Sees each state once, in order. Every run watches with a copy, so a rule may remember what it saw."""

    def end(self, budget: int) -> float:
        """The share of the whole time beyond which it never asks to go."""
        ...

    def watch(self, sight: Sight) -> Verdict: ...


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
        if not _is_number(self.t) or not 0 < self.t <= 1:
            raise UsageError(f"the exit time is {short(self.t)}: it lies above 0 and at most at 1")

    def end(self, budget: int) -> float:
        """The step of the budget that is nearest."""
        return max(1, round(self.t * budget)) / budget

    def watch(self, sight: Sight) -> Verdict:
        reached = sight.last or round(sight.time * sight.budget) >= round(
            self.end(sight.budget) * sight.budget
        )
        return Verdict(keep=reached, stop=StopReason.TIME if reached else None)


@dataclass
class Peak:
    """Stop after `patience` steps of the budget without a new maximum, and answer from the maximum.

    A peak has been climbed: it counts only if the alignment rose to it by at least `prominence`
    of all that the curve has moved. A curve that only falls therefore has none, and noise on it
    makes none; the run then goes on to the end instead of answering from the untouched input.
    """

    patience: int = 10
    prominence: float = 0.01
    _best: float = field(default=0.0, init=False, repr=False)  # time of the highest state that was climbed to
    _peak: float = field(default=-math.inf, init=False, repr=False)  # its alignment
    _foot: float = field(default=math.inf, init=False, repr=False)  # the lowest alignment before it
    _last: float = field(default=math.inf, init=False, repr=False)
    _low: float = field(default=math.inf, init=False, repr=False)  # of all so far
    _high: float = field(default=-math.inf, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.patience, int) or isinstance(self.patience, bool) or self.patience < 1:
            raise UsageError(f"patience is {short(self.patience)}: wait for at least 1 step")
        if not _is_number(self.prominence) or not 0 <= self.prominence <= 1:
            raise UsageError(f"prominence is {short(self.prominence)}: it is a share, from 0 to 1")

    def end(self, budget: int) -> float:  # noqa: ARG002
        return 1.0

    def watch(self, sight: Sight) -> Verdict:
        alignment = sight.alignment
        if alignment > max(self._last, self._peak):
            self._best, self._peak, self._foot = sight.time, alignment, self._low
        self._last = alignment
        self._low, self._high = min(self._low, alignment), max(self._high, alignment)
        if sight.last:
            return self._at_the_end(sight.time)
        waited = round((sight.time - self._best) * sight.budget) >= self.patience
        stop = StopReason.PEAK if waited and self._has_peak() else None
        return Verdict(keep=self._best == sight.time, stop=stop)

    def _at_the_end(self, time: float) -> Verdict:
        if self._best == time:
            return Verdict(keep=True, stop=StopReason.RISING)
        if self._has_peak():
            return Verdict(keep=False, stop=StopReason.PEAK)
        return Verdict(keep=True, stop=StopReason.NO_PEAK)

    def _has_peak(self) -> bool:
        return self._best > 0 and self._peak - self._foot >= self.prominence * (self._high - self._low)


def answer_step(rule: StopRule, trace: Sequence[float]) -> int:
    """The step that a rule would have answered from, given the alignment of every step of a budget."""
    best, budget, rule = 0, len(trace) - 1, deepcopy(rule)
    for step, alignment in enumerate(trace):
        verdict = rule.watch(Sight(step / budget, budget, alignment, math.nan, last=step == budget))
        best = step if verdict.keep else best
        if verdict.stop is not None:
            break
    return best


RULES: dict[str, type[StopRule]] = {"peak": Peak, "time": AtTime, "final": Final}
"""The rules by the names that the command line and a manifest use."""


def make_rule(settings: Mapping[str, Any]) -> StopRule:
    """A new rule from {"rule": name, …settings}."""
    name, rest = settings.get("rule"), {key: value for key, value in settings.items() if key != "rule"}
    if not isinstance(name, str) or name not in RULES:
        raise UsageError(f"there is no exit rule {short(name)!r}: choose {' or '.join(RULES)}")
    try:
        return RULES[name](**rest)
    except TypeError as error:
        raise UsageError(
            f"the exit rule {name!r} does not take {short(', '.join(rest))} like that"
        ) from error


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
