import math

import numpy as np

from adar_runtime.loop.schedule import step_code, time_at, times


def test_the_total_time_is_one_for_any_budget() -> None:
    assert times(4).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert times(300)[-1] == 1
    assert times(3, unit_step=True).tolist() == [0, 1, 2, 3]
    assert time_at(10**12, 10**12) == 1


def test_the_encoding_is_the_papers_sine() -> None:
    t, d = 0.3, 7
    for j, value in enumerate(step_code(t, d)):
        k = j // 2
        omega = 1 / 10000 ** (2 * k / d)
        assert math.isclose(value, math.sin(omega * t) if j == 2 * k else math.cos(omega * t), rel_tol=1e-6)
    assert step_code(t, d).dtype == np.float32
