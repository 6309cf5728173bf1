"""How like an ODE a trained cell behaves, and how few calls therefore give the answer of many steps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from adar_export.validate import differing
from adar_runtime.bundle.bundle import Bundle
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import DivergedError
from adar_runtime.graph import Floats, Graph
from adar_runtime.loop.loop import Loop
from adar_runtime.loop.solvers import AdamsBashforth2, Adaptive, Euler, Solver
from adar_runtime.loop.stopping import Final

REFERENCE = 300  # steps of Euler's, whose answer is to be had for less
ORDER_STEPS = (25, 50, 100)
LARGEST_CHANGE = 1e-3  # of the way that the nodes have come
LEAST_SAME = 0.999  # share of predictions
EULER_STEPS = (*ORDER_STEPS, 150, 200, 250)
CALLS = (8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192)
TOLERANCES = (1e-2, 5e-3, 2e-3, 1e-3, 5e-4, 2e-4, 1e-4)


@dataclass(frozen=True)
class Trial:
    """One solver, once."""

    solver: str
    calls: int
    change: float  # distance of the nodes from the reference, relative to the way that they have come
    same: float  # share of predictions that are those of the reference
    tolerance: float | None = None  # of the adaptive solver

    @property
    def enough(self) -> bool:
        return self.change <= LARGEST_CHANGE and self.same >= LEAST_SAME


@dataclass(frozen=True)
class Convergence:
    """What is measured on one graph."""

    graph: str
    order: float  # log2(‖z_S - z_2S‖ / ‖z_2S - z_4S‖): 1 for Euler's method on an ODE
    trials: list[Trial]

    def calls(self) -> dict[str, int]:
        """For each solver, the fewest calls that were enough."""
        enough: dict[str, int] = {}
        for trial in self.trials:
            if trial.enough:
                enough[trial.solver] = min(trial.calls, enough.get(trial.solver, trial.calls))
        return enough

    def to_dict(self) -> dict[str, Any]:
        """As the manifest keeps it."""
        return {
            "graph": self.graph,
            "reference": REFERENCE,
            "order": round(self.order, 3),
            "calls": self.calls(),
            "trials": [asdict(trial) for trial in self.trials],
        }


class Attempt(NamedTuple):
    """What to try: a solver for a budget."""

    name: str
    budget: int
    solver: Solver
    tolerance: float | None = None


LAST = Attempt("euler", REFERENCE, Euler())
LADDERS = (
    [Attempt("euler", steps, Euler()) for steps in EULER_STEPS],
    [Attempt("ab2", REFERENCE, AdamsBashforth2(calls)) for calls in CALLS],
    [Attempt("adaptive", REFERENCE, Adaptive(tolerance), tolerance) for tolerance in TOLERANCES],
)
"""For each solver, from the cheapest to the dearest."""


def measure(
    bundle: Bundle, name: str, graph: Graph, on_trial: Callable[[Trial], None] = lambda _: None
) -> Convergence:
    """Try every solver with ever more calls until its answer is that of the reference.

    An attempt whose numbers do not stay finite is no trial: too few calls for this cell is all that it says.
    """
    reference = _run(bundle, graph, LAST)
    ends = {steps: _tried(bundle, graph, Attempt("euler", steps, Euler())) for steps in ORDER_STEPS}
    trials = []
    for ladder in LADDERS:
        for attempt in ladder:
            known = attempt.name == LAST.name and attempt.budget in ends
            end = ends[attempt.budget] if known else _tried(bundle, graph, attempt)
            if end is None:
                continue
            trials.append(_trial(bundle.manifest, attempt, end, reference))
            on_trial(trials[-1])
            if trials[-1].enough:
                break
    nodes = [None if end is None else end.nodes for end in ends.values()]
    return Convergence(name, _order(nodes, reference.way), trials)


@dataclass(frozen=True, eq=False)
class _End:
    """Where a run ended."""

    nodes: Floats
    way: float  # how far the nodes have come
    scores: Floats
    calls: int


def _tried(bundle: Bundle, graph: Graph, attempt: Attempt) -> _End | None:
    try:
        return _run(bundle, graph, attempt)
    except DivergedError:
        return None


def _run(bundle: Bundle, graph: Graph, attempt: Attempt) -> _End:
    # Not by bundle.loop, which refuses a solver until the order that is measured here is known.
    loop = Loop(bundle.backend.start(graph), bundle.manifest, attempt.budget, Final(), attempt.solver)
    start = next(loop).state()["nodes"]
    *_, step = loop
    end = step.state()["nodes"]
    return _End(end, max(_norm(end - start), 1e-12), step.scores(), step.index)


def _trial(manifest: Manifest, attempt: Attempt, end: _End, reference: _End) -> Trial:
    change = _norm(end.nodes - reference.nodes) / reference.way
    same = 1 - differing(manifest, end.scores, reference.scores) / len(end.scores)
    return Trial(attempt.name, end.calls, change, same, attempt.tolerance)


def _order(ends: Sequence[Floats | None], way: float) -> float:
    """Of convergence, from the ends of three runs, each of twice as many steps as the one before.

    Where the grid no longer matters, rounding is all there is to see: as good as Euler's order. Where a run
    has no end, there is none.
    """
    coarse, middle, fine = ends
    if coarse is None or middle is None or fine is None:
        return 0.0
    first, second, rounding = _norm(coarse - middle), _norm(middle - fine), 1e-5 * way
    return 1.0 if first < rounding else math.log2(first / max(second, 1e-3 * rounding))


def _norm(x: Floats) -> float:
    return float(np.sqrt((x.astype(np.float64) ** 2).sum()))
