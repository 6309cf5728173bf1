"""The times of the steps, and the step encoding that the cell receives."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def time_at(step: int, budget: int, *, unit_step: bool = False) -> float:
    """t_s = s / S for a budget S: the total time is 1 for every budget.

    With `unit_step`, t_s = s: every step takes a time of 1, which is the paper's ablation.
    """
    return step / (1 if unit_step else budget)


def times(budget: int, *, unit_step: bool = False) -> NDArray[np.float64]:
    """t_s for s = 0 … S, [S + 1]."""
    return np.array([time_at(step, budget, unit_step=unit_step) for step in range(budget + 1)])


def step_code(time: float, width: int) -> NDArray[np.float32]:
    """Eq. sine: [sin ω_0 t, cos ω_0 t, sin ω_1 t, …], with ω_k = 10000^(-2k/width)."""
    phase = time * _frequencies(width)
    code = np.empty(width, np.float32)
    code[0::2] = np.sin(phase[0::2])
    code[1::2] = np.cos(phase[1::2])
    return code


@lru_cache
def _frequencies(width: int) -> NDArray[np.float64]:
    """ω of each column, [width]."""
    return 10000.0 ** (-2 * (np.arange(width) // 2) / width)


@lru_cache(1024)
def shared_step_code(time: float, width: int) -> NDArray[np.float32]:
    """`step_code`, made once for the loops of a batch, which are at the same times. Do not change it."""
    return step_code(time, width)
