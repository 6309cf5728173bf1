"""The progress of one inference, on one line."""

import time
from typing import TYPE_CHECKING

from adar_deploy.console import WIDE, Bar, err, printable, sparkline

if TYPE_CHECKING:
    from adar_runtime import Step

REFRESH = 0.1  # seconds between two updates: a step can be far shorter


class LiveStatus:
    """Shows the steps of one graph while the loop takes them."""

    def __init__(self, bar: Bar, finished: int, name: str, end_time: float = 1.0) -> None:
        self._bar = bar
        self._finished = finished  # graphs before this one
        self._end_time = end_time  # 1, or the budget for a model with unit steps
        self._name = f"{printable(name)}  " if name else ""
        self._alignment: list[float] = []
        self._started = self._shown = time.perf_counter()

    def __call__(self, step: "Step") -> None:
        if not self._bar.shown:
            return
        self._alignment.append(step.alignment)
        now = time.perf_counter()
        if now - self._shown >= REFRESH:
            self._shown = now
            share = min(1.0, step.time / self._end_time)
            self._bar.update(self._finished + share, self._status(step, now - self._started))

    def _status(self, step: "Step", seconds: float) -> str:
        rate = f"{step.index / seconds:.0f}/s"
        if self._bar.moves and err.width < WIDE:  # the end is cut
            curve = sparkline(self._alignment, 5)
            name = self._name.rstrip()
            return f"{step.index}  t {step.time:.2f}  {step.alignment:.3g} {curve}  {rate}  {name}"
        parts = f"step {step.index}  t {step.time:.2f}  alignment {step.alignment:.4g}  {rate}"
        curve = f"  {sparkline(self._alignment, 12)}" if self._bar.moves else ""  # a log gets plain text
        return f"{self._name}{parts}{curve}"
