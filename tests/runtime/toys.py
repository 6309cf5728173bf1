"""A recurrence with one number for a state, so that a test knows where everything should be."""

import math
from collections.abc import Callable

import numpy as np

from adar_runtime.graph import Floats
from adar_runtime.loop.solvers import Motion, Move

PEAK = 0.52  # the time at which the default alignment is highest


class Toy:
    """x' = 1 - x from x = 0, so x = 1 - exp(-t)."""

    name = "toy"

    def __init__(self, alignment: Callable[[float], float] | None = None) -> None:
        highest = self.exact(PEAK)
        self._watched = alignment or (lambda x: -((x - highest) ** 2))
        self._x = self._kept = 0.0
        self._velocity = self._turn = 0.0

    @staticmethod
    def exact(time: float) -> float:
        return 1 - math.exp(-time)

    @property
    def alignment(self) -> float:
        return self._watched(self._x)

    @property
    def motion(self) -> Motion:
        return Motion(abs(self._velocity), abs(self._turn))

    def step(self, code: Floats, move: Move) -> None:
        velocity = 1 - self._x
        self._x += move.weight * velocity + move.previous_weight * self._velocity
        self._velocity, self._turn = velocity, velocity - self._velocity

    def keep(self) -> None:
        self._kept = self._x

    def recall(self) -> None:
        self._x = self._kept

    def scores(self, *, kept: bool) -> Floats:
        return np.array([[self._kept if kept else self._x]], np.float32)

    def state(self) -> dict[str, Floats]:
        return {"nodes": np.array([[self._x]], np.float32)}
