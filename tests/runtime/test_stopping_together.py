"""Stop rules for a batch of graphs decide as the rules for one graph do."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adar_runtime.errors import UsageError
from adar_runtime.loop.stopping import (
    RULES,
    AtTime,
    Converged,
    Final,
    Observation,
    Peak,
    StopReason,
    StopRule,
    Verdict,
    answer_step,
)
from adar_runtime.loop.stopping_together import TOGETHER, Observations, OneByOne, answer_steps, rule_together

rules = st.one_of(
    st.just(Final()),
    st.builds(AtTime, st.floats(0.01, 1)),
    st.builds(Converged, st.floats(1e-3, 0.9)),
    st.builds(
        Peak,
        patience=st.integers(1, 12),
        prominence=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
        minimum_steps=st.integers(0, 20),
        fallback=st.floats(0.05, 1),
    ),
)


def curves(random: np.random.Generator, states: int, graphs: int) -> np.ndarray:
    """Alignments [states, graphs]: walks, hills with noise, and values that repeat."""
    walk = random.standard_normal((states, graphs)).cumsum(axis=0)
    hill = -((np.linspace(0, 1, states)[:, None] - random.random(graphs)) ** 2)
    noisy = hill + 0.02 * random.standard_normal((states, graphs))
    return np.where(
        random.random(graphs) < 0.3, walk, np.where(random.random(graphs) < 0.5, noisy, walk.round())
    )


def alone(
    rule: StopRule, times: np.ndarray, budget: int, trace: np.ndarray, speeds: np.ndarray
) -> Iterator[Verdict]:
    """The verdicts about one graph, up to its end."""
    rule = OneByOne(rule, 1)._rules[0]
    for index, (time, alignment, speed) in enumerate(zip(times, trace, speeds, strict=True)):
        last = index == len(times) - 1
        verdict = rule.watch(Observation(float(time), budget, float(alignment), float(speed), last))
        yield verdict
        if verdict.stop is not None:
            return


@settings(max_examples=300, deadline=None)
@given(rule=rules, seed=st.integers(0, 10_000), calls=st.integers(1, 40), budget=st.integers(1, 300))
def test_every_graph_of_a_batch_gets_the_verdicts_of_its_own_rule(
    rule: StopRule, seed: int, calls: int, budget: int
) -> None:
    random, graphs = np.random.default_rng(seed), 6
    times = np.linspace(0, 1, calls + 1)
    traces = curves(random, calls + 1, graphs)
    speeds = random.exponential(1.0, (calls + 1, graphs)) * np.linspace(1, 0.01, calls + 1)[:, None]
    expected = [list(alone(rule, times, budget, traces[:, i], speeds[:, i])) for i in range(graphs)]
    together = rule_together(rule, graphs)
    running = np.ones(graphs, bool)
    for state, time in enumerate(times):
        now, last = np.full(graphs, time), np.full(graphs, state == calls)
        found = together.watch(Observations(now, budget, traces[state], speeds[state], last, running))
        for graph in np.flatnonzero(running):
            keep, stop, at = expected[graph][state]
            assert (found.keep[graph], found.stop[graph]) == (keep, stop)
            assert np.isnan(found.time[graph]) if at is None else found.time[graph] == at
            running[graph] = stop is None
    assert not running.any()


def test_every_rule_of_the_package_has_a_form_for_batches() -> None:
    assert set(TOGETHER) == set(RULES.values())


class Stubborn:
    """A rule of a user: it stops at the third state, and refuses negative alignments."""

    seen = 0

    def end(self, budget: int) -> float:
        return 1.0

    def watch(self, observed: Observation) -> Verdict:
        if observed.alignment < 0:
            raise UsageError("negative")
        self.seen += 1
        return Verdict(keep=True, stop=StopReason.TIME if self.seen == 3 else None)


def test_a_rule_of_a_user_has_a_copy_for_each_graph() -> None:
    rule = rule_together(Stubborn(), 3)
    assert isinstance(rule, OneByOne)
    running, last = np.array([True, True, False]), np.zeros(3, bool)
    for state in range(3):
        alignment = np.array([1.0, -1.0 if state == 1 else 1.0, -1.0])
        found = rule.watch(Observations(np.zeros(3), 5, alignment, np.zeros(3), last, running))
        assert found.stop[2] is None
        if state == 1:
            assert isinstance(found.stop[1], UsageError)
            running[1] = False
    assert found.stop[0] is StopReason.TIME


@pytest.mark.parametrize("name", RULES)
def test_a_graph_that_has_failed_does_not_disturb_the_others(name: str) -> None:
    made = {"time": AtTime(0.9), "peak": Peak(), "converged": Converged(), "final": Final()}[name]
    rule, running = rule_together(made, 2), np.array([True, False])
    with np.errstate(invalid="ignore"):
        for time in (0.0, 0.5, 1.0):
            numbers = np.array([time, np.nan])
            last = np.full(2, time == 1.0)
            found = rule.watch(Observations(np.full(2, time), 2, numbers, numbers, last, running))
    assert isinstance(found.stop[0], StopReason)


@settings(max_examples=100, deadline=None)
@given(rule=rules, seed=st.integers(0, 10_000), budget=st.integers(1, 60))
def test_recorded_curves_have_the_answers_of_each_graph(rule: StopRule, seed: int, budget: int) -> None:
    random, graphs = np.random.default_rng(seed), 5
    traces = curves(random, budget + 1, graphs)
    speeds = random.exponential(1.0, traces.shape)
    expected = [answer_step(rule, traces[:, i].tolist(), speeds[:, i].tolist()) for i in range(graphs)]
    assert answer_steps(rule, traces, speeds) == expected


def test_recorded_curves_without_speeds() -> None:
    traces = curves(np.random.default_rng(0), 9, 3)
    unknown = np.full(traces.shape, np.nan)
    assert answer_steps(Final(), traces, unknown) == [8, 8, 8]
    with pytest.raises(UsageError, match="needs the speeds"):
        answer_steps(Converged(), traces, unknown)
