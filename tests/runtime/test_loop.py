"""The loop, driven by hand: with every solver, stop rule and backend that there is."""

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, Thread

import numpy as np
import pytest

import adar_runtime
from adar_runtime import AtTime, Bundle, Final, Graph, Loop, Peak, Solver, StopReason, StopRule
from adar_runtime.errors import DivergedError, UsageError
from adar_runtime.loop.solvers import SOLVERS, AdamsBashforth2, Euler, Move, Moves
from adar_runtime.loop.stopping import Observation, Verdict
from tests.bundles import edit
from tests.helpers import random_graph
from tests.runtime.toys import PEAK, Toy


def test_a_loop_goes_on_where_it_was_left(
    bundle: Bundle, board: Graph, solver: Solver, rule: StopRule
) -> None:
    whole = bundle.run(board, 40, rule, solver)
    loop = bundle.loop(board, 40, rule, solver)
    for step in loop:
        if step.index == 3:
            break
    assert loop.result().steps == 3
    assert loop.result().stop_reason is StopReason.CANCELLED
    assert [step.index for step in loop] == list(range(4, whole.steps + 1))
    assert list(loop) == []
    again = loop.result()
    assert (again.alignment, again.times, again.best_step) == (whole.alignment, whole.times, whole.best_step)
    assert np.array_equal(again.scores, whole.scores)


def test_a_run_says_how_it_went(bundle: Bundle, board: Graph, solver: Solver, rule: StopRule) -> None:
    result = bundle.run(board, 40, rule, solver)
    assert result.stop_reason is not StopReason.CANCELLED
    assert result.steps == result.cell_calls == len(result.alignment) - 1 == len(result.times) - 1 <= 40
    assert 0 < result.best_time <= 1
    assert result.backend == bundle.backend.name
    assert list(result.timings) == ["prepare", "loop", "head"]
    assert all(seconds > 0 for seconds in result.timings.values())
    assert result.seconds == sum(result.timings.values())
    assert np.isfinite(result.scores).all()


def test_a_rule_can_be_used_for_a_second_run(
    bundle: Bundle, board: Graph, solver: Solver, rule: StopRule
) -> None:
    before = repr(rule)
    first, second = (bundle.run(board, 20, rule, solver) for _ in range(2))
    assert (first.best_step, first.alignment) == (second.best_step, second.alignment)
    assert repr(rule) == before


def test_a_larger_budget_goes_on_from_where_the_loop_is(
    bundle: Bundle, board: Graph, solver: Solver, rule: StopRule
) -> None:
    loop = bundle.loop(board, 10, rule, solver)
    left = [next(loop) for _ in range(3)][-1]
    loop.resume(80)
    gone_on = next(loop)
    assert gone_on.index == left.index + 1
    assert left.time < gone_on.time
    if isinstance(solver, Euler):
        assert gone_on.time - left.time == pytest.approx(1 / 80)
    for _ in loop:
        pass
    result = loop.result()
    assert result.budget == 80
    assert result.stop_reason is not StopReason.CANCELLED
    with pytest.raises(UsageError, match="start a new one"):
        loop.resume(100)


def test_resuming_with_the_same_budget_changes_nothing(bundle: Bundle, board: Graph, rule: StopRule) -> None:
    whole = bundle.run(board, 24, rule)
    loop = bundle.loop(board, 24, rule)
    next(loop), next(loop)
    loop.resume(24)
    for _ in loop:
        pass
    assert np.allclose(loop.result().scores, whole.scores, atol=1e-5)
    assert loop.result().best_step == whole.best_step


def test_a_budget_that_ends_before_the_present_time(bundle: Bundle, board: Graph) -> None:
    loop = bundle.loop(board, 100, AtTime(0.45))
    for step in loop:
        if step.index == 44:
            break
    with pytest.raises(UsageError, match="choose a larger one"):
        loop.resume(3)  # whose step nearest to 0.45 is at 1/3
    assert [step.time for step in loop] == [0.45]


def test_a_cancelled_run_says_which_step_its_scores_are_from(bundle: Bundle, board: Graph) -> None:
    loop = bundle.loop(board, 10, AtTime(0.9))
    with pytest.raises(UsageError, match="not been started"):
        loop.result()
    for step in loop:
        assert loop.result().best_step == step.index


def test_no_budget_is_too_large_to_begin_with(bundle: Bundle, board: Graph) -> None:
    loop = bundle.loop(board, 10**12, Final())
    assert [next(loop).index, next(loop).time] == [0, 1e-12]
    with pytest.raises(UsageError, match="smaller"):
        bundle.loop(board, 10**25)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_coarse_solver_answers_from_the_peak_of_many_steps(bundle: Bundle, name: str) -> None:
    results = {}
    for solver in (Euler(), SOLVERS[name]()):
        loop = Loop(Toy(), bundle.manifest, 300, Peak(patience=10), solver)
        for _ in loop:
            pass
        results[type(solver)] = loop.result()
    euler, result = results[Euler], results[SOLVERS[name]]
    assert result.stop_reason is StopReason.PEAK
    assert euler.best_time == pytest.approx(PEAK, abs=1 / 300)
    assert result.best_time == pytest.approx(euler.best_time, abs=1.5 / 300)
    assert result.scores[0, 0] == pytest.approx(euler.scores[0, 0], abs=1e-2)
    assert result.alignment[result.best_step] == pytest.approx(max(euler.alignment), abs=1e-3)
    assert result.cell_calls <= (300 if name == "euler" else 60)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_curve_without_a_peak_is_answered_at_the_calibrated_time(bundle: Bundle, name: str) -> None:
    falling = Toy(alignment=lambda x: -x)
    loop = Loop(falling, bundle.manifest, 300, Peak(fallback=0.405), SOLVERS[name]())
    for _ in loop:
        pass
    result = loop.result()
    assert result.stop_reason is StopReason.NO_PEAK_BY_TIME
    assert result.best_time == pytest.approx(122 / 300)
    assert result.scores[0, 0] == pytest.approx(Toy.exact(122 / 300), abs=1e-2)


def test_steps_can_be_looked_at_until_the_loop_goes_on(bundle: Bundle, board: Graph, solver: Solver) -> None:
    for step in bundle.loop(board, 12, Final(), solver):
        state, scores = step.state(), step.scores()
        assert scores.shape == (board.nodes, 2)
        assert {name: len(rows) for name, rows in state.items()}["nodes"] == board.nodes
    assert np.array_equal(bundle.run(board, 12, Final(), solver).scores, scores)


def test_a_step_that_is_past_does_not_speak_for_a_later_one(bundle: Bundle, board: Graph) -> None:
    loop = bundle.loop(board, 12, Final())
    first = next(loop)
    early = first.scores()
    next(loop)
    for look in (first.scores, first.state):
        with pytest.raises(UsageError, match="step 0 is past"):
            look()
    assert np.array_equal(early, next(bundle.loop(board, 12, Final())).scores())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 2.5}, "the budget is 2.5: choose a whole number"),
        ({"budget": True}, "the budget is True"),
        ({"budget": "300"}, "the budget is '300'"),
        ({"budget": None}, "the budget is None"),
        ({"stop": "summit"}, "no stop rule 'summit'"),
        ({"stop": Peak}, "stop is .*Peak.*: give a rule"),
        ({"solver": 3}, "solver is 3: give a solver"),
        ({"solver": Euler}, "solver is .*Euler.*: give a solver"),
        ({"solver": "rk4"}, "no solver 'rk4'"),
        ({"graph": 3}, "graph is 3|int"),
    ],
)
def test_arguments_of_a_wrong_kind_are_named(bundle: Bundle, board: Graph, given, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bundle.run(**{"graph": board} | given)


class Never:
    """A stop rule that never stops."""

    def end(self, budget: int) -> float:
        return 1.0

    def watch(self, observed: Observation) -> Verdict:
        return Verdict(keep=True, stop=None)


class Nowhere:
    """A solver without moves."""

    needs_ode = False

    def moves(self, start: float, end: float, h: float) -> Moves:
        yield from ()


def test_a_rule_has_to_stop_at_the_last_state(bundle: Bundle, board: Graph) -> None:
    loop = bundle.loop(board, 3, Never())
    assert [next(loop).index for _ in range(4)] == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(UsageError, match=r"the stop rule Never did not stop at the last state"):
            next(loop)
    assert loop.result().best_time == 1


def test_a_solver_has_to_move(bundle: Bundle, board: Graph) -> None:
    with pytest.raises(UsageError, match="the solver Nowhere yields no move from t = 0 to t = 1"):
        bundle.run(board, 3, Final(), Nowhere())


def test_a_solver_says_whether_it_needs_an_ode(copy: Path, board: Graph) -> None:
    edit(copy, lambda m: m.update(convergence={"order": 0.5}))
    bundle = adar_runtime.load(copy)
    for solver in (AdamsBashforth2(2), "ab2"):
        with pytest.raises(
            UsageError, match=r"needs an order of convergence of at least 0\.8 \(this bundle: 0\.5\)"
        ):
            bundle.run(board, 3, Final(), solver)
    with pytest.raises(UsageError, match="solver is 3: give a solver"):
        bundle.run(board, 3, Final(), 3)  # type: ignore[arg-type]
    own = AdamsBashforth2(2)
    object.__setattr__(own, "needs_ode", False)  # the attribute of the object counts
    assert bundle.run(board, 3, Final(), own).cell_calls == 2


def test_a_bundle_without_measurements_names_the_setting(copy: Path) -> None:
    edit(copy, lambda m: m.update(convergence={"order": 1.0}))
    with pytest.raises(UsageError, match=r"no measured settings for the solver 'ab2': set calls \(--calls\)"):
        adar_runtime.load(copy).solver("ab2")


@pytest.mark.parametrize("calls", [4, 20])
def test_a_state_that_is_not_finite_is_named_by_its_time(bundle: Bundle, calls: int) -> None:
    toy = Toy(lambda x: math.nan if x > Toy.exact(0.48) else x)
    loop = Loop(toy, bundle.manifest, 100, Final(), AdamsBashforth2(calls))
    with pytest.raises(DivergedError, match=rf"at t = 0\.5 \(cell call {calls // 2}\)"):
        list(loop)


def test_a_numpy_integer_is_a_budget(bundle: Bundle, board: Graph) -> None:
    assert bundle.run(board, np.int64(3), Final()).steps == 3


def test_threads_are_a_number(bundle_folder: Path) -> None:
    for threads in (0, 2.5, "2", True):
        with pytest.raises(UsageError, match="choose 1 to"):
            adar_runtime.load(bundle_folder, threads=threads)


def test_memory_does_not_grow_with_the_steps(described_bundle: Path) -> None:
    bundle, graph = adar_runtime.load(described_bundle, threads=1), random_graph(2000, 4000)
    bundle.run(graph, 10, Peak(patience=1000))
    before, most = resident_kb(), 0
    for _ in bundle.loop(graph, 1000, Peak(patience=1000)):
        most = max(most, resident_kb())
    assert most - before < 8192  # a state is 128 kB, so some of them are allowed and 990 are not


def resident_kb() -> int:
    """What this process holds now; its peak would hide all that is below an earlier one."""
    status = Path("/proc/self/status")
    if not status.is_file():
        pytest.skip("what a process holds is read from /proc")
    return int(next(line for line in status.read_text().splitlines() if line.startswith("VmRSS")).split()[1])


class SlowToy(Toy):
    """Its second step waits until another thread has tried to use the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.go_on = Event(), Event()

    def step(self, code: np.ndarray, move: Move) -> None:
        self.inside.set()
        assert self.go_on.wait(timeout=60)
        super().step(code, move)


@pytest.mark.parametrize(
    "use",
    [next, Loop.result, lambda loop: loop.resume(9), lambda loop: loop.first.scores()],
    ids=["next", "result", "resume", "scores"],
)
def test_a_second_thread_in_a_loop_is_an_error(bundle: Bundle, use) -> None:
    """Without it, the states of two interleaved steps are wrong and nothing says so."""
    loop = Loop(toy := SlowToy(), bundle.manifest, 4, Final(), Euler())
    loop.first = next(loop)
    worker = Thread(target=lambda: [step.index for step in loop])
    worker.start()
    assert toy.inside.wait(timeout=60)
    try:
        with pytest.raises(UsageError, match="another thread is using this loop"):
            use(loop)
    finally:
        toy.go_on.set()
        worker.join()
    assert loop.result().scores[0, 0] == pytest.approx(1 - 0.75**4)  # the first thread was not disturbed


def test_three_threads_give_the_right_scores_or_an_error(bundle: Bundle, board: Graph) -> None:
    expected = bundle.run(board, 60, Final()).scores
    loop, errors, start = bundle.loop(board, 60, Final()), [], Barrier(3)

    def iterate() -> None:
        start.wait()
        try:
            for _ in loop:
                pass
        except UsageError as error:
            errors.append(str(error))

    threads = [Thread(target=iterate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("another thread" in error for error in errors)
    for _ in loop:  # the rest, if every thread met another
        pass
    assert np.array_equal(loop.result().scores, expected)
    with ThreadPoolExecutor(3) as pool:  # threads may share the bundle
        shared = list(pool.map(lambda _: bundle.run(board, 60, Final()).scores, range(3)))
    if bundle.backend.name.startswith("onnxruntime"):
        assert all(np.array_equal(one, expected) for one in shared)
