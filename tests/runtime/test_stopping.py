import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adar_runtime import AtTime, Converged, Final, Peak, StopReason
from adar_runtime.errors import UsageError
from adar_runtime.loop.stopping import Observation, StopRule, Verdict, answer, answer_step, make_rule


def observation(step: int, budget: int, alignment: float) -> Observation:
    return Observation(step / max(1, budget), budget, alignment, speed=1.0, last=step == budget)


def play(rule: StopRule, curve: list[float]) -> tuple[int, int, StopReason]:
    """The step that the rule answers from, the step at which it stops, and why."""
    best = 0
    for step, alignment in enumerate(curve):
        verdict = rule.watch(observation(step, len(curve) - 1, alignment))
        if verdict.keep:
            best = step
        if verdict.stop:
            return best, step, verdict.stop
    raise AssertionError("a rule has to stop at the end of the budget")


UP, DOWN = [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("curve", "best", "stop", "reason"),
    [
        (UP + DOWN, 5, 8, StopReason.PEAK),
        (UP, 5, 5, StopReason.RISING),
        (DOWN, 5, 5, StopReason.NO_PEAK),
        ([*UP, 4.9], 5, 6, StopReason.PEAK),  # passed, with the budget too short for the patience
        ([1] * 6, 5, 5, StopReason.NO_PEAK),  # a plateau
        ([0, 3, 3, 3, 3, 3], 1, 4, StopReason.PEAK),  # ties: the first
        ([9, 1, 2, 3, 2, 1, 0], 3, 6, StopReason.PEAK),  # falls first, then climbs: the input is no peak
        ([0, 5, 4, 6, 4, 5, 3], 3, 6, StopReason.PEAK),  # noise within the patience
        ([100, 90, 80, 80.001, 70, 60, 50, 40], 7, 7, StopReason.NO_PEAK),  # noise on a falling curve
        ([2, 1], 1, 1, StopReason.NO_PEAK),
    ],
)
def test_peak(curve: list[float], best: int, stop: int, reason: StopReason) -> None:
    assert play(Peak(patience=3), curve) == (best, stop, reason)


def test_final_uses_the_whole_budget() -> None:
    assert play(Final(), UP + DOWN) == (11, 11, StopReason.BUDGET)


def test_rules_by_name() -> None:
    assert make_rule({"rule": "peak", "patience": 4}) == Peak(patience=4)
    assert make_rule({"rule": "peak", "patience": np.int32(4), "prominence": np.float32(0.5)}).patience == 4
    assert make_rule({"rule": "converged", "tolerance": np.float32(0.25)}) == Converged(0.25)
    assert make_rule({"rule": "time", "t": np.float64(0.5)}) == AtTime(0.5)
    assert isinstance(make_rule({"rule": "final"}), Final)


@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "never"},
        {},
        {"rule": "final", "patience": 3},
        {"rule": "peak", "patience": 0},
        {"rule": "peak", "patience": "x"},
    ],
)
def test_rules_that_cannot_be(settings: dict) -> None:
    with pytest.raises(UsageError):
        make_rule(settings)


def test_a_rule_answers_the_same_when_it_is_asked_again() -> None:
    rule = Peak(patience=3)
    assert [answer_step(rule, UP + DOWN) for _ in range(2)] == [5, 5]


def has_peak_by_the_book(trace: list[float], best: int, prominence: float = 0.01) -> bool:
    """`AlignmentCurve.has_peak` as its docstring says it, from the whole curve."""
    moved, climbed = max(trace) - min(trace), trace[best] - min(trace[: best or 1])
    return best > 0 and climbed >= prominence * moved


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=30))
def test_the_running_extremes_are_those_of_the_whole_curve(curve: list[int]) -> None:
    rule, trace = Peak(patience=40), []
    for step, alignment in enumerate(curve):
        rule.watch(observation(step, 99, alignment))
        trace.append(alignment)
        assert rule._curve.has_peak(rule.prominence) == has_peak_by_the_book(
            trace, round(rule._curve.best * 99)
        )


def test_no_peak_by_the_calibrated_time() -> None:
    assert play(Peak(patience=2, fallback=0.6), DOWN) == (3, 3, StopReason.NO_PEAK_BY_TIME)
    assert play(Peak(patience=2, fallback=0.6), UP) == (5, 5, StopReason.RISING)  # its peak may still come
    assert play(Peak(patience=2, fallback=0.1), UP + DOWN)[::2] == (5, StopReason.PEAK)


def test_a_peak_does_not_stop_a_run_before_its_minimum() -> None:
    assert play(Peak(patience=1, minimum_steps=9), UP + DOWN) == (5, 9, StopReason.PEAK)


@pytest.mark.parametrize("peak", [0.305, 0.5, 0.618])
@pytest.mark.parametrize("calls", [7, 16, 32])
def test_a_peak_between_states_is_found_by_a_parabola(peak: float, calls: int) -> None:
    rule = Peak(patience=1)
    for step in range(calls + 1):
        time = step / calls
        verdict = rule.watch(Observation(time, 300, 1 - (time - peak) ** 2, 1.0, last=step == calls))
        if verdict.stop:
            break
    assert verdict.stop is StopReason.PEAK
    found = rule._curve.best if verdict.time is None else verdict.time
    assert found == pytest.approx(peak, abs=0.51 / 300)


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=30))
def test_a_peak_at_a_step_of_the_budget_is_left_there(curve: list[int]) -> None:
    rule = Peak(patience=1)
    for step, alignment in enumerate(curve):
        assert rule.watch(observation(step, len(curve) - 1, alignment)).time is None


def converge(rule: Converged, speeds: list[float]) -> tuple[int, StopReason | None]:
    budget = len(speeds) - 1
    for step, speed in enumerate(speeds):
        verdict = rule.watch(Observation(step / budget, budget, 0.0, speed, step == budget))
        if verdict.stop:
            break
    return step, verdict.stop


HALVING = [0.0, *(2.0**-step for step in range(20))]


def test_converged_stops_when_little_is_left_to_come() -> None:
    step, reason = converge(Converged(0.01), HALVING)
    assert reason is StopReason.CONVERGED
    left, way = HALVING[step] * (20 - step), sum(HALVING[1 : step + 1])
    assert left <= 0.01 * way < HALVING[step - 1] * (20 - step + 1)
    assert converge(Converged(0.01), [0.0] + [1.0] * 20) == (20, StopReason.NOT_CONVERGED)
    assert converge(Converged(0.01), [0.0] * 21) == (1, StopReason.CONVERGED)  # nothing ever moves


def test_converged_asks_for_speeds() -> None:
    assert answer_step(Converged(0.01), [0.0] * 21, HALVING) == converge(Converged(0.01), HALVING)[0]
    with pytest.raises(UsageError, match="speed"):
        answer_step(Converged(0.01), [0.0] * 21)


@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "converged", "tolerance": 0},
        {"rule": "converged", "tolerance": "x"},
        {"rule": "converged", "tolerance": float("nan")},
        {"rule": "peak", "fallback": 0},
        {"rule": "peak", "fallback": "late"},
        {"rule": "peak", "minimum_steps": -1},
        {"rule": "time", "t": 1.1},
    ],
)
def test_settings_that_cannot_be(settings: dict) -> None:
    with pytest.raises(UsageError):
        make_rule(settings)


def test_a_time_is_the_nearest_step() -> None:
    assert play(AtTime(0.5), UP) == (2, 2, StopReason.TIME)
    assert play(AtTime(0.01), UP) == (1, 1, StopReason.TIME)


def test_the_answer_of_a_recorded_curve_has_a_reason() -> None:
    assert answer(Peak(patience=3), [*UP, *DOWN]) == (5, StopReason.PEAK)
    assert answer(Final(), UP) == (5, StopReason.BUDGET)


def test_a_rule_that_never_stops_is_an_error() -> None:
    class Endless(Final):
        def watch(self, observed: Observation) -> Verdict:
            return super().watch(observed)._replace(stop=None)

    with pytest.raises(UsageError, match="the stop rule Endless did not stop at the last state"):
        answer(Endless(), UP)
