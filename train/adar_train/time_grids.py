"""At which times a trajectory is evaluated while training. The answer must not depend on them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from adar_runtime.loop.schedule import times

Times = NDArray[np.float64]


def fixed(steps: int, random: np.random.Generator) -> Times:  # noqa: ARG001
    """The paper's: t_s = s / S, the same in every epoch. The last time that the cell sees is (S - 1) / S."""
    return times(steps)


def budget(steps: int, random: np.random.Generator) -> Times:
    """t_s = s / S for a budget S drawn anew around `steps`, so that no grid is learned by heart."""
    return times(int(random.integers(max(1, steps // 2), steps + steps // 2 + 1)))


def scattered(steps: int, random: np.random.Generator) -> Times:
    """`steps` times anywhere in [0, 1]: every time is seen in training, also the last moments before 1."""
    return np.concatenate([[0.0], np.sort(random.random(steps - 1)), [1.0]])


def unit(steps: int, random: np.random.Generator) -> Times:  # noqa: ARG001
    """Steps that take a time of 1 each: the paper's ablation of the normalised time."""
    return times(steps, unit_step=True)


GRIDS: dict[str, Callable[[int, np.random.Generator], Times]] = {
    "budget": budget,
    "fixed": fixed,
    "scattered": scattered,
    "unit": unit,
}
