from collections.abc import Iterator

import numpy as np
import pytest

from adar_runtime import Bundle, Graph, Peak, StopRule
from adar_runtime.errors import UsageError
from adar_runtime.evaluation.calibration import calibrate
from adar_runtime.evaluation.curves import AtExit, Curve, Moment, measure, run_moments
from adar_runtime.evaluation.evaluate import Evaluation, Subject, evaluate, table_writer


def curve(budget: int, metric: list[float], alignment: list[float]) -> Curve:
    times = [step / budget for step in range(budget + 1)]
    return Curve(budget, times, alignment, [{"val": value} for value in metric])


def test_the_exit_is_the_time_whose_worst_budget_is_best() -> None:
    rising = [0.0, 1.0, 2.0, 3.0, 4.0]
    found = calibrate(
        [[curve(4, [0.5, 0.6, 0.9, 0.8, 0.7], rising)], [curve(4, [0.5, 0.9, 0.8, 0.6, 0.6], rising)]]
    )
    assert found.time == 0.5  # 0.8 at the worst; 0.6 for any other
    assert found.regret["final"] == pytest.approx((0.2 + 0.3) / 2)
    assert found.regret["time"] == pytest.approx((0.0 + 0.1) / 2)
    assert found.rule == {"rule": "time", "t": 0.5}


def test_the_hardest_graph_does_not_decide_alone() -> None:
    rising = [0.0, 1.0, 2.0]
    easy, hard = curve(2, [0.5, 0.7, 0.9], rising), curve(2, [0.2, 0.31, 0.3], rising)
    assert calibrate([[easy, hard]]).time == 1.0


def test_steps_of_unit_time_are_shares_of_the_budget_too() -> None:
    unit = Curve(2, [0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [{"val": value} for value in (0.1, 0.9, 0.2)])
    assert calibrate([[unit]]).rule == {"rule": "time", "t": 0.5}


def test_equal_times_give_the_later_one() -> None:
    assert calibrate([[curve(4, [0.5, 0.9, 0.9, 0.9, 0.9], [0.0, 1.0, 2.0, 3.0, 4.0])]]).time == 1.0


def test_a_signal_that_peaks_where_the_metric_does_has_no_regret() -> None:
    peaked = [float(10 - abs(step - 4)) for step in range(21)]
    found = calibrate([[curve(20, [value / 10 for value in peaked], peaked)]])
    assert found.regret["peak"] == 0
    falling = [float(-step) for step in range(21)]
    found = calibrate([[curve(20, [value / 10 for value in peaked], falling)]])
    assert found.regret["final"] > found.regret["time"] == found.regret["peak"] == 0  # no peak: that time


def test_an_evaluation_says_what_would_have_been_free() -> None:
    done = Evaluation(
        "g",
        "all",
        "accuracy",
        [curve(1, [0.2, 0.6], [0.0, 1.0])],
        [AtExit([1], 1.0, {"all": 0.6}, {})],
        {"cosine": 0.7, "other": 0.5},
    )
    done.curves[0].metrics[:] = [{"all": 0.2}, {"all": 0.6}]
    assert done.better_for_free() == {"cosine": 0.7}
    assert done.to_dict()["beats_free"] is False
    assert [row["accuracy"] for row in done.steps()] == [0.2, 0.6]


def test_tables() -> None:
    found = curve(2, [0.1, 0.2, 0.3], [0.0, 1.0, 2.0])
    done = Evaluation("g", "val", "accuracy", [found], [AtExit([2], 2.0, {"val": 0.3}, {})], {})
    from pathlib import Path

    lines = table_writer(Path("t.csv"))([done]).decode().splitlines()
    assert lines[0] == "graph,budget,step,t,alignment,accuracy"
    assert lines[2] == "g,2,1,0.5,1.0,0.2"
    assert b'"exit_step": 2' in table_writer(Path("t.json"))([done])
    with pytest.raises(UsageError, match=r"\.csv or \.json"):
        table_writer(Path("t.txt"))
    assert np.isclose(done.budgets()[0]["at_exit"], 0.3)


def test_a_curve_answers_as_a_run_does(bundle: Bundle, board: Graph, rule: StopRule) -> None:
    """Rules that look at speeds included."""
    curve = measure(run_moments(bundle, board, 20), board, 20)
    assert curve.answer_step(rule) == bundle.run(board, 20, rule).best_step


def test_graphs_with_one_label_each_stop_at_their_own_steps() -> None:
    """The alignment of graph 0 is highest at step 2, and that of graph 1 at step 6: a run stops there."""
    peaks = [2, 6]

    def run(graph: Graph, budget: int) -> Iterator[Moment]:
        peak = peaks[int(graph.features[0, 0])]
        for step in range(budget + 1):
            right = np.eye(3, dtype=np.float32)[graph.labels if step == peak else [2]]
            yield Moment(step / budget, -abs(step - peak), right)

    graphs = [Graph([[float(i)]], np.zeros((2, 0), int), labels=[i], level="graph") for i in range(2)]
    subject = Subject(run, lambda: Peak(patience=2), features=1, level="graph", regression=False, targets=3)
    done = evaluate("g", graphs, subject, [20])
    row = done.budgets()[0]
    assert done.exits[0].steps == row["exit_steps"] == peaks
    assert (row["at_exit"], row["exit_step"], row["count"], done.reached) == (1.0, 2, 2, 1.0)
    assert row["alignment_at_exit"] == 0  # at the own step of each
    assert (row["best"], row["balanced_accuracy"]) == (0.5, 1.0)  # at one step for both


def test_several_graphs_with_a_label_for_each_node_are_scored_at_one_step(
    bundle: Bundle, board: Graph
) -> None:
    done = evaluate("g", [board, board], Subject.of(bundle), [3])
    alone = evaluate("g", [board], Subject.of(bundle), [3])
    assert done.exits[0].steps == alone.exits[0].steps
    assert done.reached == pytest.approx(alone.reached)


def test_the_runs_of_several_graphs_are_not_open_together() -> None:
    """An open run keeps the states of its graph: those of 100,000 graphs took some gigabytes."""
    is_open: list[int] = []

    def run(graph: Graph, budget: int) -> Iterator[Moment]:
        is_open.append(int(graph.features[0, 0]))
        assert len(is_open) == 1
        for step in range(budget + 1):
            yield Moment(step / budget, float(step), np.ones((1, 3), np.float32))
        is_open.pop()

    graphs = [Graph([[float(i)]], np.zeros((2, 0), int), labels=[i], level="graph") for i in range(3)]
    subject = Subject(run, lambda: Peak(patience=2), features=1, level="graph", regression=False, targets=3)
    assert [one.step for one in evaluate("g", graphs, subject, [2, 3]).exits] == [2, 3]
