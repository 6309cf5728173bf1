import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adar_runtime.errors import UsageError
from adar_runtime.loop.solvers import (
    MAX_CALLS,
    SOLVERS,
    AdamsBashforth2,
    Adaptive,
    Euler,
    Motion,
    Move,
    Solver,
    first_confirmed,
    make_solver,
)
from tests.runtime.toys import Toy

budgets = st.integers(1, 400)
speeds = st.floats(0, 1e6)


def play(solver: Solver, budget: int, start: float = 0.0, end: float = 1.0) -> tuple[list[Move], float]:
    """All moves, and where they lead the toy to."""
    toy, moves = Toy(), []
    generator = solver.moves(start, end, 1 / budget)
    try:
        move = next(generator)
        while True:
            moves.append(move)
            toy.step(None, move)
            move = generator.send(toy.motion)
    except StopIteration:
        return moves, float(toy.scores(kept=False)[0, 0])


def euler(budget: int) -> float:
    return 1 - (1 - 1 / budget) ** budget


@pytest.mark.parametrize("name", SOLVERS)
@given(budget=budgets, start=st.sampled_from([0.0, 0.3]), end=st.sampled_from([0.5, 1.0]))
def test_the_moves_cover_the_time_without_a_gap(name: str, budget: int, start: float, end: float) -> None:
    moves, _ = play(SOLVERS[name](), budget, start, end)
    now = start
    for move in moves:
        assert move.time == pytest.approx(now)
        assert move.size > 0
        assert move.weight + move.previous_weight == pytest.approx(move.size)
        now = move.time + move.size
    assert now == pytest.approx(end)


@pytest.mark.parametrize("name", SOLVERS)
@given(budget=budgets, motions=st.lists(st.builds(Motion, speeds, speeds), min_size=1, max_size=8))
def test_no_solver_calls_more_often_than_the_budget_allows(
    name: str, budget: int, motions: list[Motion]
) -> None:
    moves = SOLVERS[name]().moves(0.0, 1.0, 1 / budget)
    next(moves)
    calls = 1
    try:
        while calls <= budget:
            moves.send(motions[calls % len(motions)])
            calls += 1
    except StopIteration:
        pass
    assert calls <= budget


def test_euler_is_the_recurrence_itself() -> None:
    moves, end = play(Euler(), 10)
    assert [move.previous_weight for move in moves] == [0.0] * 10
    assert all(move.lead == pytest.approx(0.1) for move in moves)
    assert end == pytest.approx(euler(10), rel=1e-6)


def test_a_budget_as_small_as_the_calls_is_euler() -> None:
    assert play(AdamsBashforth2(32), 20)[1] == pytest.approx(euler(20), rel=1e-6)


@pytest.mark.parametrize("budget", [100, 300])
def test_ab2_aims_at_the_answer_of_the_budget_to_second_order(budget: int) -> None:
    """Not at the exact solution, which is further away than its own error."""
    errors = [abs(play(AdamsBashforth2(calls), budget)[1] - euler(budget)) for calls in (8, 16, 32)]
    assert errors[0] / errors[1] > 3
    assert errors[1] / errors[2] > 3
    assert errors[2] < 0.1 * abs(Toy.exact(1) - euler(budget))


def test_adaptive_takes_more_calls_for_a_smaller_tolerance() -> None:
    calls = [len(play(Adaptive(tolerance), 300)[0]) for tolerance in (1e-2, 1e-3, 1e-4)]
    assert calls == sorted(calls)
    assert calls[0] < calls[-1] < 300
    errors = [abs(play(Adaptive(tolerance), 300)[1] - euler(300)) for tolerance in (1e-2, 1e-4)]
    assert errors[1] < errors[0] < 1e-2


@pytest.mark.parametrize("calls", [0, -1, True, 1.5, "8", MAX_CALLS + 1, 10**4000])
def test_calls_that_cannot_be(calls: object) -> None:
    with pytest.raises(UsageError, match="calls"):
        make_solver("ab2", calls=calls)


@pytest.mark.parametrize("tolerance", [0, 1, -1, math.nan, math.inf, "x", None])
def test_tolerances_that_cannot_be(tolerance: object) -> None:
    with pytest.raises(UsageError, match="tolerance"):
        make_solver("adaptive", tolerance=tolerance)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("first", -1),
        ("first", 0),
        ("first", 2),
        ("first", "x"),
        ("growth", 0),
        ("growth", math.nan),
        ("growth", True),
    ],
)
def test_step_sizes_that_cannot_be(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}: choose a"):
        make_solver("adaptive", **{name: value})


def test_numpy_numbers_are_settings() -> None:
    assert AdamsBashforth2(calls=np.int64(32)).calls == 32
    assert play(AdamsBashforth2(calls=np.int64(32)), 300) == play(AdamsBashforth2(calls=32), 300)
    assert Adaptive(tolerance=np.float32(1e-3), growth=np.float64(1.5)).growth == 1.5
    with pytest.raises(UsageError, match=r"calls is 32\.0: choose a whole number of at least 1"):
        AdamsBashforth2(calls=32.0)  # type: ignore[arg-type]


def test_solvers_by_name() -> None:
    assert make_solver("ab2", calls=5) == AdamsBashforth2(5)
    with pytest.raises(UsageError, match="no solver 'rk4': choose euler, ab2 or adaptive"):
        make_solver("rk4")
    with pytest.raises(UsageError, match="the solver 'euler' has no setting 'calls': it is a setting of ab2"):
        make_solver("euler", calls=5)


@pytest.mark.parametrize(
    ("found", "first"),
    [
        ([None, 6, None, 10, 12], 10),
        ([4, 6, 8], 4),
        ([None, 6, None, 10], 10),  # the last attempt has no next one
        ([4, None], None),
        ([], None),
    ],
)
def test_an_attempt_is_confirmed_by_the_next_one(found: list[int | None], first: int | None) -> None:
    assert first_confirmed(found) == first


def test_no_attempt_is_made_after_the_confirmation() -> None:
    attempts = iter([4, 6, 8])
    assert first_confirmed(attempts) == 4
    assert list(attempts) == [8]
