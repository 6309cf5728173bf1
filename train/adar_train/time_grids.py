"""Time grids: the times of the steps in one epoch of training. The result should not depend on the grid."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from adar_runtime.loop.schedule import times

Times = NDArray[np.float64]


def fixed(steps: int, random: np.random.Generator) -> Times:  # noqa: ARG001
    """Return the paper's grid t_s = s / S, equal in every epoch. The cell's last time is (S - 1) / S."""
    return times(steps)


def budget(steps: int, random: np.random.Generator) -> Times:
    """Return t_s = s / S for a random budget S around `steps`, so that no single grid is learned."""
    return times(int(random.integers(max(1, steps // 2), steps + steps // 2 + 1)))


def scattered(steps: int, random: np.random.Generator) -> Times:
    """Return `steps` + 1 times from 0 to 1, random in between, so that training covers all times."""
    return np.concatenate([[0.0], np.sort(random.random(steps - 1)), [1.0]])


def unit(steps: int, random: np.random.Generator) -> Times:  # noqa: ARG001
    """Return steps of length 1: the paper's ablation of the normalised time."""
    return times(steps, unit_step=True)


GRIDS: dict[str, Callable[[int, np.random.Generator], Times]] = {
    "budget": budget,
    "fixed": fixed,
    "scattered": scattered,
    "unit": unit,
}
"""The grids by name, the values of `TrainConfig.grid`."""
