"""The alignment of the states so far, and whether and where it has a peak."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple


class Point(NamedTuple):
    """One point of the curve."""

    time: float
    alignment: float


@dataclass
class AlignmentCurve:
    """Running extremes of the curve: constant memory, whatever the number of states."""

    best: float = 0.0  # time of the highest state after a rise
    last: Point = field(default_factory=lambda: Point(0.0, math.inf))
    _peak: float = -math.inf  # alignment of the state at `best`
    _foot: float = math.inf  # lowest alignment before that state
    _low: float = math.inf  # of all states so far
    _high: float = -math.inf
    _around: list[Point] = field(default_factory=list)  # before, at and after `best`

    def add(self, now: Point) -> None:
        """Add the next state."""
        if now.alignment > max(self.last.alignment, self._peak):
            self.best, self._peak, self._foot = now.time, now.alignment, self._low
            self._around = [self.last, now]
        elif len(self._around) == 2:
            self._around.append(now)
        self.last = now
        self._low, self._high = min(self._low, now.alignment), max(self._high, now.alignment)

    def has_peak(self, prominence: float) -> bool:
        """Whether the curve rose to `best` by at least this fraction of its range."""
        return self.best > 0 and self._peak - self._foot >= prominence * (self._high - self._low)

    def peak_between_states(self, budget: int) -> float | None:
        """The step of the budget nearest to the interpolated peak; None where it is `best` itself."""
        before, best, after = self._around
        if (after.time - before.time) * budget < 2.5:  # the neighbours are steps of the budget themselves
            return None
        step = round(vertex(before, best, after) * budget)
        return None if step == round(best.time * budget) else step / budget


def vertex(before: Point, best: Point, after: Point) -> float:
    """The time of the maximum of the parabola through three points; the middle point is the highest."""
    left, right = best.time - before.time, after.time - best.time
    rise, fall = best.alignment - before.alignment, best.alignment - after.alignment
    bend = 2 * (left * fall + right * rise)
    return best.time + (right**2 * rise - left**2 * fall) / bend if bend > 0 else best.time
