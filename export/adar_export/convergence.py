"""How closely a trained cell behaves like an ODE, and the fewest cell calls that reproduce 300 steps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adar_export.validate import differing
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle.bundle import Bundle
from adar_runtime.bundle.manifest import LARGEST_CHANGE, LEAST_SAME, Manifest
from adar_runtime.errors import DivergedError
from adar_runtime.graph import Floats, Graph
from adar_runtime.loop.loop import Loop, Step
from adar_runtime.loop.registry import settings_of
from adar_runtime.loop.solvers import REFERENCE_STEPS as REFERENCE
from adar_runtime.loop.solvers import SOLVERS, Attempt, Euler
from adar_runtime.loop.stopping import Final, StopRule

CLOSE = 0.01  # difference of numbers that is the same prediction, as a fraction of their standard deviation
ORDER_STEPS = (25, 50, 100)  # budgets of Euler's method that give the order of convergence


@dataclass(frozen=True)
class Trial:
    """One run of one solver, compared with the reference.

    Attributes:
        solver: Name of the solver.
        calls: Cell calls that the run made.
        change: Distance of the nodes from the reference, relative to the distance that the nodes moved.
        same: Fraction of predictions that are equal to those of the reference.
        settings: Settings of the solver.

    Example:
        >>> Trial("ab2", calls=16, change=4e-4, same=1.0).enough
        True
    """

    solver: str
    calls: int
    change: float
    same: float
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def enough(self) -> bool:
        """Whether the run reproduces the reference."""
        return self.change <= LARGEST_CHANGE and self.same >= LEAST_SAME

    def to_dict(self) -> dict[str, Any]:
        """Convert to an entry of `trials` in the manifest, with the settings beside the other values.

        Returns:
            Plain JSON values.
        """
        compared = {"solver": self.solver, "calls": self.calls, "change": self.change, "same": self.same}
        return self.settings | compared


@dataclass(frozen=True)
class Convergence:
    """How closely a cell behaves like an ODE, and the cell calls that each solver needs, on one graph.

    Attributes:
        graph: Name of the graph.
        order: log2(‖z_S - z_2S‖ / ‖z_2S - z_4S‖): 1 for Euler's method on an ODE.
        trials: The runs, in the order of the solvers, each solver's cheapest first.

    Example:
        >>> trials = [Trial("ab2", 8, 5e-3, 1.0), Trial("ab2", 16, 4e-4, 1.0)]
        >>> Convergence("a graph", 1.0, trials).calls()
        {'ab2': 16}
    """

    graph: str
    order: float
    trials: list[Trial]

    def calls(self) -> dict[str, int]:
        """Return the fewest cell calls that reproduced the reference.

        Returns:
            The number of calls by solver, without the solvers that did not reproduce the reference.
        """
        fewest: dict[str, int] = {}
        for trial in self.trials:
            if trial.enough:
                fewest[trial.solver] = min(trial.calls, fewest.get(trial.solver, trial.calls))
        return fewest

    def to_dict(self) -> dict[str, Any]:
        """Convert to the manifest's field `convergence`.

        Returns:
            Plain JSON values.
        """
        return {
            "graph": self.graph,
            "reference": REFERENCE,
            "order": round(self.order, 3),
            "calls": self.calls(),
            "trials": [trial.to_dict() for trial in self.trials],
        }


def measure(
    bundle: Bundle, name: str, graph: Graph, on_trial: Callable[[Trial], None] = lambda _: None
) -> Convergence:
    """Try every solver with more and more cell calls until it reproduces the reference.

    An attempt whose numbers do not stay finite is not recorded: it used too few calls for this cell.
    """
    prepared = bundle.prepare(graph)
    reference = run_attempt(bundle, prepared, Attempt(REFERENCE, Euler()))
    order_attempts = [Attempt(steps, Euler()) for steps in ORDER_STEPS]
    ends = {attempt: try_attempt(bundle, prepared, attempt) for attempt in order_attempts}
    trials = []
    for solver, kind in SOLVERS.items():
        for attempt in kind.attempts(REFERENCE):
            end = ends[attempt] if attempt in ends else try_attempt(bundle, prepared, attempt)
            if end is None:
                continue
            trials.append(compared(bundle.manifest, solver, attempt, end, reference))
            on_trial(trials[-1])
            if trials[-1].enough:
                break
    nodes = [None if end is None else end.nodes for end in ends.values()]
    return Convergence(name, _order(nodes, reference.moved), trials)


@dataclass(frozen=True, eq=False)
class End:
    """The end of one run."""

    nodes: Floats
    moved: float  # distance that the nodes moved
    scores: Floats
    calls: int


def try_attempt(bundle: Bundle, prepared: PreparedGraph, attempt: Attempt) -> End | None:
    """Run an attempt to t = 1; None if its numbers do not stay finite."""
    try:
        return run_attempt(bundle, prepared, attempt)
    except DivergedError:
        return None


def run_attempt(bundle: Bundle, prepared: PreparedGraph, attempt: Attempt) -> End:
    """Run an attempt to t = 1."""
    loop = loop_of(bundle, prepared, attempt, Final())
    start = next(loop).state()["nodes"]
    *_, last = loop
    return end_of(start, last)


def end_of(start: Floats, last: Step) -> End:
    """The end of a run whose nodes were at `start`."""
    nodes = last.state()["nodes"]
    return End(nodes, max(_norm(nodes - start), 1e-12), last.scores(), last.index)


def loop_of(bundle: Bundle, prepared: PreparedGraph, attempt: Attempt, rule: StopRule) -> Loop:
    """The loop of an attempt.

    Not `bundle.loop`, which refuses a solver until the order that is measured here is known.
    """
    return Loop(bundle.backend.start(prepared), bundle.manifest, attempt.budget, rule, attempt.solver)


def compared(manifest: Manifest, solver: str, attempt: Attempt, end: End, reference: End) -> Trial:
    """The end of an attempt, compared with the reference."""
    change = _norm(end.nodes - reference.nodes) / reference.moved
    same = share_of_same(manifest, end.scores, reference.scores)
    settings = {one.name: getattr(attempt.solver, one.name) for one in settings_of(SOLVERS[solver])}
    return Trial(solver, end.calls, change, same, settings)


def share_of_same(manifest: Manifest, scores: Floats, expected: Floats) -> float:
    """Compute the share of outputs with the same class, or of numbers that differ by less than `CLOSE`."""
    if manifest.regression:
        spread = expected.std(axis=0, dtype=np.float64)
        return float(np.isclose(scores, expected, rtol=1e-5, atol=CLOSE * spread).all(axis=1).mean())
    return 1 - differing(manifest, scores, expected) / len(scores)


def _order(ends: Sequence[Floats | None], moved: float) -> float:
    """Compute the order of convergence from the ends of three runs that double the number of steps each time.

    If only rounding differs between the runs, the order is 1, Euler's. If a run diverged, the order is 0.
    """
    coarse, middle, fine = ends
    if coarse is None or middle is None or fine is None:
        return 0.0
    first, second, rounding = _norm(coarse - middle), _norm(middle - fine), 1e-5 * moved
    return 1.0 if first < rounding else math.log2(first / max(second, 1e-3 * rounding))


def _norm(x: Floats) -> float:
    return float(np.sqrt((x.astype(np.float64) ** 2).sum()))
