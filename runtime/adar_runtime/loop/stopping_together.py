"""Stop rules for a batch of graphs: each rule of `stopping.py` as arrays with one entry for each graph.

A rule looks at each state of each graph. In a batch of small graphs, this would take longer than the cell, so
the rules of the package look at all graphs of a batch at once. A rule that is not in `TOGETHER` looks at the
graphs one by one, with a copy of the rule for each graph (`OneByOne`).
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import AdarError, UsageError
from adar_runtime.loop.stopping import (
    NO_SPEEDS,
    AtTime,
    Converged,
    Final,
    Observation,
    Peak,
    StopReason,
    StopRule,
    does_not_stop,
)

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Observations(NamedTuple):
    """What a rule sees of the current states of all graphs; each array is [b]. See `Observation`."""

    time: Numbers
    budget: int
    alignment: Numbers
    speed: Numbers
    last: Mask
    running: Mask  # the other graphs have ended: their verdicts are not used


class Verdicts(NamedTuple):
    """A rule's decisions about the current states; each array is [b]. See `Verdict`."""

    keep: Mask
    stop: NDArray[np.object_]  # StopReason, None to continue, or the error that the rule raised
    time: Numbers  # NaN where the kept state itself is the answer


class RuleTogether(Protocol):
    """A stop rule for all graphs of a batch."""

    def watch(self, observed: Observations) -> Verdicts:
        """Decide about the next states."""
        ...


class OneByOne:
    """Any stop rule, with a copy for each graph."""

    def __init__(self, rule: StopRule, count: int) -> None:
        self._rules = [deepcopy(rule) for _ in range(count)]

    def watch(self, observed: Observations) -> Verdicts:
        """Decide about the next states."""
        count = len(self._rules)
        keep, stop, time = np.zeros(count, bool), _nothing(count), np.full(count, np.nan)
        for index in np.flatnonzero(observed.running).tolist():
            try:
                verdict = self._rules[index].watch(_of_one(observed, index))
            except AdarError as error:
                stop[index] = error
                continue
            keep[index], stop[index] = verdict.keep, verdict.stop
            time[index] = np.nan if verdict.time is None else verdict.time
        return Verdicts(keep, stop, time)


class AtTimeTogether:
    """`AtTime` for all graphs."""

    def __init__(self, rule: AtTime, count: int) -> None:
        self._rule = rule
        self._no_times = np.full(count, np.nan)

    def watch(self, observed: Observations) -> Verdicts:
        """Decide about the next states."""
        budget = observed.budget
        end = round(self._rule.end(budget) * budget)
        reached = observed.last | (np.rint(observed.time * budget) >= end)
        return Verdicts(reached, _where((reached, StopReason.TIME)), self._no_times)


class FinalTogether:
    """`Final` for all graphs."""

    def __init__(self, rule: Final, count: int) -> None:  # noqa: ARG002
        self._all, self._no_times = np.ones(count, bool), np.full(count, np.nan)

    def watch(self, observed: Observations) -> Verdicts:
        """Decide about the next states."""
        return Verdicts(self._all, _where((observed.last, StopReason.BUDGET)), self._no_times)


class ConvergedTogether:
    """`Converged` for all graphs."""

    def __init__(self, rule: Converged, count: int) -> None:
        self._tolerance = rule.tolerance
        self._moved, self._time = np.zeros(count), np.zeros(count)
        self._all, self._no_times = np.ones(count, bool), np.full(count, np.nan)

    def watch(self, observed: Observations) -> Verdicts:
        """Decide about the next states."""
        self._moved += observed.speed * (observed.time - self._time)
        self._time = observed.time
        remaining = observed.speed * (1 - observed.time)
        done = (observed.time > 0) & (remaining <= self._tolerance * self._moved)
        stop = _where((done, StopReason.CONVERGED), (observed.last, StopReason.NOT_CONVERGED))
        unknown = np.isnan(observed.speed)
        if unknown.any():
            stop[unknown] = UsageError(NO_SPEEDS)
        return Verdicts(self._all, stop, self._no_times)


class PeakTogether:
    """`Peak` for all graphs."""

    def __init__(self, rule: Peak, count: int) -> None:
        self._rule = rule
        self._curves = Curves(count)

    def watch(self, observed: Observations) -> Verdicts:
        """Decide about the next states."""
        rule, curves, budget, now = self._rule, self._curves, observed.budget, observed.time
        previous = curves.last_time
        curves.add(now, observed.alignment)
        has_peak, is_best, last = curves.have_peak(rule.prominence), curves.best == now, observed.last

        waited, step = np.rint((now - curves.best) * budget), np.rint(now * budget)
        past_peak = ~last & has_peak & (waited >= rule.patience) & (step >= rule.minimum_steps)
        fallback = max(1, round(rule.fallback * budget)) / budget
        rising = is_best & (now > 0)
        by_time = ~last & ~past_peak & (now >= fallback) & ~rising & ~has_peak
        peak_at_end = last & ~is_best & has_peak
        no_peak = last & ~is_best & ~has_peak

        at_peak = past_peak | peak_at_end
        stop = _where(
            (at_peak, StopReason.PEAK),
            (by_time, StopReason.NO_PEAK_BY_TIME),
            (last & is_best, StopReason.RISING),
            (no_peak, StopReason.NO_PEAK),
        )
        time = np.where(at_peak, curves.peaks_between_states(budget), np.nan)
        exact = (previous >= fallback) | np.isclose(now, fallback, rtol=1e-9, atol=0)
        time[by_time & ~exact] = fallback
        return Verdicts(by_time | no_peak | (is_best & ~past_peak), stop, time)


class Curves:
    """`AlignmentCurve` of every graph."""

    def __init__(self, count: int) -> None:
        self.best = np.zeros(count)
        self.last_time, self._last = np.zeros(count), np.full(count, np.inf)
        self._peak, self._foot = np.full(count, -np.inf), np.full(count, np.inf)
        self._low, self._high = np.full(count, np.inf), np.full(count, -np.inf)
        self._around = np.full((3, 2, count), np.nan)  # before, at and after `best`: time and alignment

    def add(self, time: Numbers, alignment: Numbers) -> None:
        """Add the next state of every graph."""
        follows = np.isnan(self._around[2, 0]) & ~np.isnan(self._around[1, 0])
        rises = alignment > np.maximum(self._last, self._peak)
        now, last = np.stack([time, alignment]), np.stack([self.last_time, self._last])
        self._around[2][:, follows] = now[:, follows]
        around = np.stack([last, now, np.full_like(now, np.nan)])
        self._around[..., rises] = around[..., rises]
        self._foot[rises] = self._low[rises]
        self.best[rises], self._peak[rises] = time[rises], alignment[rises]
        self.last_time, self._last = now
        self._low, self._high = np.minimum(self._low, alignment), np.maximum(self._high, alignment)

    def have_peak(self, prominence: float) -> Mask:
        """Whether each curve rose to `best` by at least this fraction of its range."""
        return (self.best > 0) & (self._peak - self._foot >= prominence * (self._high - self._low))

    def peaks_between_states(self, budget: int) -> Numbers:
        """The step of the budget nearest to each interpolated peak; NaN where it is `best` itself."""
        (before, low), (best, top), (after, end) = self._around
        left, right, rise, fall = best - before, after - best, top - low, top - end
        bend = 2 * (left * fall + right * rise)
        bends = bend > 0
        shift = (right**2 * rise - left**2 * fall) / np.where(bends, bend, 1)
        step = np.rint((best + np.where(bends, shift, 0)) * budget)
        is_best = (step == np.rint(best * budget)) | ((after - before) * budget < 2.5)
        return np.where(is_best, np.nan, step / budget)


TOGETHER: dict[type[Any], Callable[[Any, int], RuleTogether]] = {
    AtTime: AtTimeTogether,
    Final: FinalTogether,
    Converged: ConvergedTogether,
    Peak: PeakTogether,
}
"""For each stop rule that has one, its form for a batch."""


def rule_together(rule: StopRule, count: int) -> RuleTogether:
    """The stop rule for a batch of graphs."""
    return TOGETHER.get(type(rule), OneByOne)(rule, count)


def answer_steps(rule: StopRule, traces: Numbers, speeds: Numbers) -> list[int]:
    """The step that a rule answers from in each graph, as `answer_step` gives it.

    Args:
        rule: The rule.
        traces: The alignments at every step, [steps + 1, b].
        speeds: The speeds of the nodes, [steps + 1, b]; NaN where they are not known.

    Raises:
        UsageError: The rule needs speeds that are not known, or does not stop at the last step.
    """
    budget, count = len(traces) - 1, traces.shape[1]
    together, steps, running = rule_together(rule, count), np.zeros(count, int), np.ones(count, bool)
    for step, (trace, speed) in enumerate(zip(traces, speeds, strict=True)):
        time, last = np.full(count, step / budget), np.full(count, step == budget)
        found = together.watch(Observations(time, budget, trace, speed, last, running))
        stops = found.stop.astype(bool)
        for stop in found.stop[running & stops]:
            if isinstance(stop, AdarError):
                raise stop
        steps[running & found.keep] = step
        running &= ~stops
    if running.any():
        raise UsageError(does_not_stop(rule))
    return [*map(int, steps)]


def _of_one(observed: Observations, index: int) -> Observation:
    return Observation(
        float(observed.time[index]),
        observed.budget,
        float(observed.alignment[index]),
        float(observed.speed[index]),
        last=bool(observed.last[index]),
    )


def _nothing(count: int) -> NDArray[np.object_]:
    return np.full(count, None, object)


def _where(*reasons: tuple[Mask, StopReason]) -> NDArray[np.object_]:
    """The reason of each graph: the last one whose mask is set, or None."""
    found = _nothing(len(reasons[0][0]))
    for mask, reason in reasons:
        found[mask] = reason
    return found
