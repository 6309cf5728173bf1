"""The loop over a batch of small graphs: one call of the batched cell makes a step of every graph.

What `Loop` does for one graph is done here with arrays that have one entry for each graph. Each graph has its
own end, its own kept state and, with a solver that reads the motion of the nodes, its own times.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.proven_solver import solver_facts
from adar_runtime.errors import AdarError, DivergedError, UsageError
from adar_runtime.graph import Floats, Graph
from adar_runtime.graph.labels import fill_names
from adar_runtime.in_context.label_check import LabelCheck
from adar_runtime.loop.loop import first_move, no_end, overflow_advice, step_size, total_time
from adar_runtime.loop.result import Result
from adar_runtime.loop.schedule import shared_step_code
from adar_runtime.loop.solvers import Motion, Move, Solver
from adar_runtime.loop.stopping import StopReason, StopRule
from adar_runtime.loop.stopping_together import Mask, Numbers, Observations, rule_together

Outcome = Result | AdarError
Problem = Callable[[int], AdarError | None]
ALL = slice(None)


class Batch(Protocol):
    """The states of the graphs of a batch."""

    name: str
    count: int  # b

    @property
    def scalars(self) -> Floats:
        """Alignment, speed and turn of every graph, [3, b]."""
        ...

    def step(self, codes: Floats, weights: NDArray[np.float64], recalled: Mask) -> None:
        """Make one step of every graph. Weights of zero leave a graph as it is.

        Args:
            codes: Step encoding of each graph [b, d].
            weights: Weight, previous weight and lead of each graph [3, b].
            recalled: The graphs whose step starts from the kept state.
        """
        ...

    def keep(self, chosen: Mask) -> None:
        """Keep the current states of these graphs as those to answer from."""
        ...

    def scores(self, index: int, *, kept: bool) -> Floats:
        """The scores of a graph: of its kept state, or of the current one."""
        ...


@dataclass(frozen=True, eq=False)
class Settings:
    """The settings of the loop, the same for all graphs."""

    manifest: Manifest
    budget: int
    stop: StopRule
    solver: Solver


Checks = Sequence[LabelCheck | None]
"""How strongly a pretrained model moves each graph; None for full moves."""


class Moves:
    """The next move of every graph. A solver that does not read the motion moves all graphs alike."""

    def __init__(self, settings: Settings, count: int) -> None:
        manifest, budget, solver = settings.manifest, settings.budget, settings.solver
        self.step_size = step_size(manifest, budget)
        end = settings.stop.end(budget) * total_time(manifest, budget)
        alike = not getattr(solver, "reads_motion", True)
        places: list[Any] = [ALL] if alike else list(range(count))
        self._solvers = [(place, *first_move(solver, 0.0, end, self.step_size)) for place in places]
        self.next = np.zeros((len(Move._fields), count))  # the fields of each move, [5, b]
        self.ended = np.zeros(count, bool)  # no move follows
        for place, _, first in self._solvers:
            self._set(place, first)

    def advance(self, motion: Floats, moved: Mask) -> dict[int, AdarError]:
        """Ask for the moves that follow; `motion` is [2, b]. Return the errors of solvers, by graph."""
        failed: dict[int, AdarError] = {}
        for place, moves, _ in self._solvers:
            if isinstance(place, int) and not moved[place]:
                continue
            speed, turn = motion[:, place] if isinstance(place, int) else (0.0, 0.0)
            try:
                self._set(place, moves.send(Motion(float(speed), float(turn))))
            except StopIteration:
                self.ended[place] = True
            except AdarError as error:
                failed |= dict.fromkeys(np.flatnonzero(moved).tolist() if place == ALL else [place], error)
        return failed

    def _set(self, place: Any, move: Move) -> None:
        self.next[:, place] = move if isinstance(place, int) else np.array(move)[:, None]


class LoopTogether:
    """The loop over all graphs of a batch.

    Attributes:
        reasons: Why each graph has stopped, or the error that stopped it.
    """

    def __init__(self, batch: Batch, settings: Settings, checks: Checks) -> None:
        count = batch.count
        self._strengths = np.array([1.0 if check is None else check.strength for check in checks])
        self._batch, self._settings = batch, settings
        self._whole = total_time(settings.manifest, settings.budget)
        self._moves = Moves(settings, count)
        self._rule = rule_together(settings.stop, count)
        self._running = np.ones(count, bool)
        self._returning = np.zeros(count, bool)  # the next call leads from the kept state to a peak near it
        self._peaks = np.zeros(count)  # times of these peaks
        self._best = np.full(count, -1)  # index of the kept state; -1 before one is kept
        self._best_times = np.zeros(count)
        self._now = np.zeros(count)
        self._lengths = np.zeros(count, int)  # states of each graph
        self._times: list[Numbers] = []  # of each state, [b]
        self._trace: list[Numbers] = []  # alignment of each state, [b]
        self.reasons: NDArray[np.object_] = np.full(count, StopReason.CANCELLED, object)

    def run(self, problem: Problem | None) -> None:
        """Run every graph to its end. `problem` says before each step why to stop a graph, or None."""
        while self._running.any():
            self._ask(problem)
            self._look()
            if self._running.any():
                self._step()

    def states(self, index: int) -> tuple[list[float], list[float]]:
        """The alignments and the times of the states of a graph."""
        rows = slice(int(self._lengths[index]))
        trace, times = ([float(row[index]) for row in found[rows]] for found in (self._trace, self._times))
        return trace, times

    def best(self, index: int) -> int | None:
        """The index of the kept state of a graph; None without one."""
        return int(self._best[index]) if self._best[index] >= 0 else None

    def _ask(self, problem: Problem | None) -> None:
        if problem is not None:
            for index in np.flatnonzero(self._running).tolist():
                self._fail(index, problem(index))

    def _fail(self, index: int, error: AdarError | None) -> None:
        if error is not None:
            self.reasons[index] = error
            self._running[index] = self._returning[index] = False

    def _look(self) -> None:
        """Record the current states, and let the rule decide about them."""
        alignment, speed, _ = self._batch.scalars.astype(np.float64)
        self._check_finite(np.isfinite(alignment) & np.isfinite(speed))
        self._trace.append(alignment)
        self._times.append(self._now)
        self._lengths[self._running] += 1
        returned = self._returning
        if returned.any():
            self._keep(returned)
            self._running = self._running & ~returned
            self._returning = np.zeros_like(returned)
        if self._running.any():
            self._judge(alignment, speed)

    def _check_finite(self, finite: Mask) -> None:
        for index in np.flatnonzero(self._running & ~finite).tolist():
            at, advice = self._now[index], overflow_advice(self._settings.manifest)
            text = f"the state is no longer finite at t = {at:.4g} (cell call {self._lengths[index]}){advice}"
            self._fail(index, DivergedError(text))

    def _judge(self, alignment: Numbers, speed: Numbers) -> None:
        """Ask the rule. A graph that stops near its peak has one more call, from the kept state."""
        running, now = self._running, self._now / self._whole
        observed = Observations(now, self._settings.budget, alignment, speed, self._moves.ended, running)
        with np.errstate(invalid="ignore", over="ignore"):  # of graphs whose numbers are not finite
            verdicts = self._rule.watch(observed)
        self._keep(verdicts.keep & running)
        stopped = running & np.array([reason is not None for reason in verdicts.stop])
        self.reasons[stopped] = verdicts.stop[stopped]
        self._peaks = verdicts.time * self._whole
        self._returning = stopped & ~np.isnan(verdicts.time) & (self._best >= 0)
        self._running = (running & ~stopped) | self._returning
        for index in np.flatnonzero(self._running & ~stopped & self._moves.ended).tolist():
            self._fail(index, UsageError(no_end(self._settings.stop)))

    def _keep(self, chosen: Mask) -> None:
        self._batch.keep(chosen)
        self._best[chosen], self._best_times[chosen] = self._lengths[chosen] - 1, self._now[chosen]

    def _step(self) -> None:
        """Call the cell once."""
        running, returning = self._running, self._returning
        moves = self._moves.next
        if returning.any():
            moves = np.where(returning, self._back(), moves)
        at, size, *weights = moves
        weighted = np.where(running, np.stack(weights) * self._strengths, 0.0)
        self._batch.step(self._codes(at), weighted, returning)
        self._now = np.where(running, at + size, self._now)
        for index, error in self._moves.advance(self._batch.scalars[1:], running & ~returning).items():
            self._fail(index, error)

    def _back(self) -> NDArray[np.float64]:
        """The moves from the kept states to the peaks near them, [5, b]."""
        size = self._peaks - self._best_times
        none, lead = np.zeros_like(size), np.full_like(size, self._moves.step_size)
        return np.stack([self._best_times, size, size, none, lead])

    def _codes(self, at: Numbers) -> Floats:
        """The step encoding of each graph [b, d]. Most graphs are at the same time."""
        times, which = np.unique(at, return_inverse=True)
        width = self._settings.manifest.hidden
        return np.stack([shared_step_code(one, width) for one in times.tolist()])[which]


def run_together(
    batch: Batch,
    graphs: Sequence[Graph],
    settings: Settings,
    prepared: float,
    problem: Problem | None = None,
    checks: Checks | None = None,
) -> list[Outcome]:
    """Run every graph of a batch to its end. A graph that fails gets its error; the others go on.

    Args:
        batch: The states of the graphs.
        graphs: The graphs.
        settings: The settings of the loop.
        prepared: Seconds spent on preparing the batch. The time of a graph is its share of the time of all.
        problem: Called before each step with the index of a graph: why to stop it, or None.
        checks: How strongly a pretrained model moves each graph.

    Returns:
        The result of each graph, as if it had run alone.
    """
    started = time.perf_counter()
    checks = checks or [None] * len(graphs)
    loop = LoopTogether(batch, settings, checks)
    loop.run(problem)
    shares = {"prepare": prepared / len(graphs), "loop": (time.perf_counter() - started) / len(graphs)}
    facts = solver_facts(settings.manifest, settings.solver, settings.budget)
    return [
        _outcome(loop, batch, index, graph, settings, shares, facts | {"check": check})
        for index, (graph, check) in enumerate(zip(graphs, checks, strict=True))
    ]


def _outcome(
    loop: LoopTogether,
    batch: Batch,
    index: int,
    graph: Graph,
    settings: Settings,
    shares: dict[str, float],
    facts: dict[str, Any],
) -> Outcome:
    reason, manifest = loop.reasons[index], settings.manifest
    if isinstance(reason, AdarError):
        return reason
    started, best = time.perf_counter(), loop.best(index)
    try:
        scores = batch.scores(index, kept=best is not None)
    except AdarError as error:
        return error
    alignment, times = loop.states(index)
    best = len(times) - 1 if best is None else best
    if not np.isfinite(scores).all():
        text = f"the scores at t = {times[best]:.4g} (cell call {best}) are not finite"
        return DivergedError(text + overflow_advice(manifest))
    names = manifest.class_names_for(graph)
    return Result(
        scores=scores,
        alignment=alignment,
        times=times,
        budget=settings.budget,
        best_step=best,
        stop_reason=reason,
        backend=batch.name,
        timings=shares | {"head": time.perf_counter() - started},
        regression=manifest.regression,
        class_names=tuple(fill_names(names, scores.shape[1])) if names else None,
        ids=graph.output_ids,
        compared=(manifest, graph),
        **facts,
    )
