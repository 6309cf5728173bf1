"""A run as it goes, on one line."""

import time
from typing import TYPE_CHECKING

from adar_deploy.console import WIDE, Bar, err, printable, sparkline

if TYPE_CHECKING:
    from adar_runtime import Step

REFRESH = 0.1  # seconds between two looks: a step can be far shorter


class Watch:
    """Shows the steps of one graph as they are taken."""

    def __init__(self, bar: Bar, done: int, name: str, whole: float = 1.0) -> None:
        self._bar = bar
        self._whole = whole  # time; that of a model with unit steps is its budget
        self._done = done  # graphs before this one
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
            self._bar.update(
                self._done + min(1.0, step.time / self._whole), self._status(step, now - self._started)
            )

    def _status(self, step: "Step", seconds: float) -> str:
        rate = f"{step.index / seconds:.0f}/s"
        if self._bar.moves and err.width < WIDE:
            name = self._name if len(self._name) < 14 else f"{self._name[:11]}…  "
            parts = f"{step.index}  t {step.time:.2f}  {step.alignment:.3g}  {rate}"
            return f"{name}{parts} {sparkline(self._alignment, 5)}"
        parts = f"step {step.index}  t {step.time:.2f}  alignment {step.alignment:.4g}  {rate}"
        curve = f"  {sparkline(self._alignment, 12)}" if self._bar.moves else ""  # no ornament in a log
        return f"{self._name}{parts}{curve}"
