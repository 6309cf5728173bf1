"""Stop rules: when to stop, and which state to answer from. A new rule is one class and one line in `RULES`.

A rule sees each state once, starting with the untouched input (step 0). For each state the rule decides
whether this state is the best answer so far and whether to stop.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from adar_runtime.errors import UsageError, short
from adar_runtime.loop.alignment_curve import AlignmentCurve, Point
from adar_runtime.loop.registry import check_tolerance, create, is_count, is_number, setting


class StopReason(Enum):
    """Why a run stopped. The value is the sentence shown to people.

    Examples:
        >>> bundle.run(graph).stop_reason is StopReason.PEAK  # doctest: +SKIP
        True
    """

    PEAK = "the alignment passed its peak"
    RISING = "the budget was used up while the alignment was at its highest"
    NO_PEAK = "the alignment had no peak, so the answer is the state at t = 1"
    NO_PEAK_BY_TIME = "the alignment had no peak before the calibrated stop time"
    CONVERGED = "the nodes converged: the remaining movement was below the tolerance"
    NOT_CONVERGED = "the budget was used up before the nodes converged"
    TIME = "the stop time was reached"
    BUDGET = "the whole budget was used, as requested"
    CANCELLED = "the caller stopped the loop"


class Observation(NamedTuple):
    """What a rule sees of one state."""

    time: float  # as a fraction of the total time
    budget: int  # Euler steps in the total time
    alignment: float
    speed: float  # root mean square of the nodes' velocity that led to this state; 0 for the untouched input
    last: bool  # no later state follows


class Verdict(NamedTuple):
    """A rule's decision about one state."""

    keep: bool  # answer from this state, unless a later one is kept
    stop: StopReason | None
    time: float | None = None  # on stopping: answer from this time, which is near the kept state


@runtime_checkable
class StopRule(Protocol):
    """Any object with these methods is a stop rule and can be given to `Bundle.run`.

    Every run uses a copy of the rule, so a rule may store what it has seen. A rule that is available by name
    is a `RegisteredRule` in `RULES`.
    """

    def end(self, budget: int) -> float:
        """The latest time the rule can ask for, as a fraction of the total time.

        Args:
            budget: Euler steps in the total time.

        Returns:
            A number above 0 and at most 1.
        """
        ...

    def watch(self, observed: Observation) -> Verdict:
        """Decide about the next state.

        Args:
            observed: Time, alignment and speed of the state.

        Returns:
            Whether to keep the state as the answer, and whether to stop. The rule must stop at the last state
            (`observed.last`).
        """
        ...


class RegisteredRule(ABC):
    """A stop rule with a name, and all that training, bundles and the command line need to know about it."""

    def end(self, budget: int) -> float:  # noqa: ARG002
        return 1.0

    @abstractmethod
    def watch(self, observed: Observation) -> Verdict:
        """See `StopRule.watch`."""

    @classmethod
    def candidate(cls, exit_time: float) -> dict[str, Any] | None:  # noqa: ARG003
        """Settings to compare when training calibrates the stop rule; None leaves the rule out."""
        return None

    @classmethod
    def complete(cls, settings: Mapping[str, Any], exit_time: object) -> dict[str, Any]:  # noqa: ARG003
        """Complete settings with a bundle's calibrated stop time. The bundle is untrusted: check the type."""
        return dict(settings)


@dataclass
class AtTime(RegisteredRule):
    """Stop at a given time, usually the time that was best on a validation split.

    Args:
        t: Stop time as a fraction of the total time, above 0 and at most 1.

    Raises:
        UsageError: `t` is not such a number.

    Examples:
        >>> bundle.run(graph, budget=100, stop=AtTime(0.8))  # doctest: +SKIP
    """

    t: float

    def __post_init__(self) -> None:
        _check_time(self.t)

    def end(self, budget: int) -> float:
        """The budget's step nearest to the stop time."""
        return _nearest_step(self.t, budget)

    def watch(self, observed: Observation) -> Verdict:
        budget = observed.budget
        reached = observed.last or round(observed.time * budget) >= round(self.end(budget) * budget)
        return Verdict(keep=reached, stop=StopReason.TIME if reached else None)

    @classmethod
    def candidate(cls, exit_time: float) -> dict[str, Any]:
        """The calibrated time."""
        return {"t": exit_time}

    @classmethod
    def complete(cls, settings: Mapping[str, Any], exit_time: object) -> dict[str, Any]:
        """The bundle's calibrated time, unless a time is given."""
        if "t" not in settings and exit_time is None:
            raise UsageError(
                "the bundle has no calibrated stop time: set t, or use another rule (--exit peak)"
            )
        return {"t": exit_time} | dict(settings)


@dataclass
class Peak(RegisteredRule):
    """Stop after `patience` steps without a new maximum of the alignment; answer from the maximum.

    A maximum counts as a peak only if the alignment rose to it by at least `prominence` of the curve's range.
    A falling curve therefore has no peak, even with noise. Without a peak, the run continues to the time
    `fallback` instead of answering from the untouched input.

    Where states are further apart than the budget's steps, the peak is the maximum of the parabola through
    the highest state and its two neighbours, rounded to the nearest step.

    Args:
        patience: Steps of the budget without a new maximum before stopping, at least 1.
        prominence: Smallest rise to a peak, as a fraction of the curve's range, from 0 to 1.
        minimum_steps: Steps of the budget before which the rule never stops.
        fallback: Stop time of a curve without a peak, as a fraction of the total time.

    Raises:
        UsageError: A setting is out of its range.

    Examples:
        >>> bundle.run(graph, budget=300, stop=Peak(patience=20))  # doctest: +SKIP
    """

    patience: int = setting(10, "Steps without a new maximum of the alignment before stopping")
    prominence: float = 0.01
    minimum_steps: int = 0
    fallback: float = 1.0
    _curve: AlignmentCurve = field(default_factory=AlignmentCurve, init=False, repr=False)

    def __post_init__(self) -> None:
        if not is_count(self.patience, 1):
            raise UsageError(f"patience is {short(self.patience)}: choose a whole number of at least 1 step")
        if not is_count(self.minimum_steps, 0):
            raise UsageError(f"minimum_steps is {short(self.minimum_steps)}: choose a whole number of steps")
        if not is_number(self.prominence) or not 0 <= self.prominence <= 1:
            raise UsageError(f"prominence is {short(self.prominence)}: choose a fraction from 0 to 1")
        _check_time(self.fallback)

    def watch(self, observed: Observation) -> Verdict:
        time, budget, curve = observed.time, observed.budget, self._curve
        previous = curve.last.time
        curve.add(Point(time, observed.alignment))
        if observed.last:
            return self._at_the_end(observed)
        step, waited = (round(span * budget) for span in (time, time - curve.best))
        has_peak = curve.has_peak(self.prominence)
        if has_peak and waited >= self.patience and step >= self.minimum_steps:
            return Verdict(keep=False, stop=StopReason.PEAK, time=curve.peak_between_states(budget))
        rising = curve.best == time and time > 0
        fallback = _nearest_step(self.fallback, budget)
        if fallback <= time and not rising and not has_peak:
            exact = previous >= fallback or math.isclose(time, fallback)  # or no earlier state to return to
            return Verdict(keep=True, stop=StopReason.NO_PEAK_BY_TIME, time=None if exact else fallback)
        return Verdict(keep=curve.best == time, stop=None)

    def _at_the_end(self, observed: Observation) -> Verdict:
        if self._curve.best == observed.time:
            return Verdict(keep=True, stop=StopReason.RISING)
        if self._curve.has_peak(self.prominence):
            time = self._curve.peak_between_states(observed.budget)
            return Verdict(keep=False, stop=StopReason.PEAK, time=time)
        return Verdict(keep=True, stop=StopReason.NO_PEAK)

    @classmethod
    def candidate(cls, exit_time: float) -> dict[str, Any]:
        """The default patience, with the calibrated time as the fallback."""
        return {"patience": cls.patience, "fallback": exit_time}

    @classmethod
    def complete(cls, settings: Mapping[str, Any], exit_time: object) -> dict[str, Any]:
        """The calibrated time is the fallback, unless a fallback is given."""
        return ({"fallback": exit_time} if is_exit_time(exit_time) else {}) | dict(settings)


NO_SPEEDS = "the stop rule 'converged' needs the speeds of the nodes, which were not recorded"


@dataclass
class Converged(RegisteredRule):
    """Stop when the nodes would move by less than `tolerance` of their total movement in the remaining time.

    Args:
        tolerance: Remaining movement allowed, as a fraction of the total; above 0 and below 1.

    Raises:
        UsageError: `tolerance` is not between 0 and 1.

    Examples:
        >>> bundle.run(graph, budget=300, stop=Converged(tolerance=1e-2))  # doctest: +SKIP
    """

    tolerance: float = setting(
        1e-3, "Remaining movement allowed, as a fraction of the total", option="within"
    )
    _moved: float = field(default=0.0, init=False, repr=False)
    _time: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)

    def watch(self, observed: Observation) -> Verdict:
        if math.isnan(observed.speed):
            raise UsageError(NO_SPEEDS)
        self._moved += observed.speed * (observed.time - self._time)
        self._time = observed.time
        if observed.last:
            return Verdict(keep=True, stop=StopReason.NOT_CONVERGED)
        remaining = observed.speed * (1 - observed.time)
        done = observed.time > 0 and remaining <= self.tolerance * self._moved
        return Verdict(keep=True, stop=StopReason.CONVERGED if done else None)


@dataclass
class Final(RegisteredRule):
    """Use the whole budget and answer from the state at t = 1.

    Examples:
        >>> bundle.run(graph, budget=300, stop=Final()).stop_reason  # doctest: +SKIP
        <StopReason.BUDGET: 'the whole budget was used, as requested'>
    """

    def watch(self, observed: Observation) -> Verdict:
        return Verdict(keep=True, stop=StopReason.BUDGET if observed.last else None)

    @classmethod
    def candidate(cls, exit_time: float) -> dict[str, Any]:  # noqa: ARG003
        """The rule has no settings."""
        return {}


def answer_step(rule: StopRule, trace: Sequence[float], speeds: Sequence[float] | None = None) -> int:
    """The step that a rule answers from, given the alignment (`trace`) and the nodes' speed at every step.

    Without `speeds`, a rule that needs them raises a UsageError.
    """
    return answer(rule, trace, speeds)[0]


def answer(
    rule: StopRule, trace: Sequence[float], speeds: Sequence[float] | None = None
) -> tuple[int, StopReason]:
    """The step of `answer_step`, and why the rule stops."""
    best, budget, rule = 0, len(trace) - 1, deepcopy(rule)
    for step, alignment in enumerate(trace):
        speed = math.nan if speeds is None else speeds[step]
        verdict = rule.watch(Observation(step / budget, budget, alignment, speed, last=step == budget))
        best = step if verdict.keep else best
        if verdict.stop is not None:
            return best, verdict.stop
    raise UsageError(does_not_stop(rule))


def does_not_stop(rule: StopRule) -> str:
    """The error for a rule that lets the last state pass."""
    return f"the stop rule {type(rule).__name__} did not stop at the last state: make it stop"


RULES: dict[str, type[RegisteredRule]] = {
    "time": AtTime,
    "peak": Peak,
    "converged": Converged,
    "final": Final,
}
"""The rules by name, as the command line and manifests use it. Calibration prefers the first of equals."""


def make_rule(settings: Mapping[str, Any]) -> RegisteredRule:
    """A rule from {"rule": name, …settings}.

    Raises:
        UsageError: There is no such rule, or the rule does not accept the settings.
    """
    rest = {key: value for key, value in settings.items() if key != "rule"}
    return create(RULES, "stop rule", settings.get("rule"), rest)


def _check_time(t: object) -> None:
    if not is_exit_time(t):
        raise UsageError(f"the stop time is {short(t)}: choose a number above 0 and at most 1")


def is_exit_time(t: object) -> bool:
    """Whether a value is a fraction of the total time at which a rule can stop."""
    return is_number(t) and 0 < t <= 1  # type: ignore[operator]


def _nearest_step(t: float, budget: int) -> float:
    """The time of the nearest step of the budget, without the untouched input."""
    return max(1, round(t * budget)) / budget
