"""The proof behind `--solver auto`: the fewest cell calls that give the predictions of 300 Euler steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

import numpy as np

from adar_export.convergence import End, Trial, compared, end_of, loop_of, run_attempt, share_of_same
from adar_export.samples import part_of, with_outputs
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle.bundle import Bundle
from adar_runtime.bundle.manifest import LARGEST_DISTANCE, LEAST_OUTPUTS, LEAST_SAME
from adar_runtime.bundle.small_graphs import outcomes
from adar_runtime.errors import DivergedError
from adar_runtime.graph import Floats, Graph
from adar_runtime.loop.result import Result
from adar_runtime.loop.solvers import REFERENCE_STEPS as REFERENCE
from adar_runtime.loop.solvers import SOLVERS, Attempt, Euler, Solver, first_confirmed
from adar_runtime.loop.stopping import AtTime, Final, StopRule

NODES = 10_000  # of the graph of the proof: ten predictions are then 0.1 %


def prove(
    bundle: Bundle, graph: Graph, on_trial: Callable[[Trial], None] = lambda _: None
) -> dict[str, Any] | None:
    """Find the cheapest solver with a fixed number of calls that gives the reference's predictions.

    The predictions are compared at t = 1 and at the exit of the bundle's stop rule. The next attempt, with
    more calls, must give them too: a single number of calls can succeed by chance.

    Args:
        bundle: A bundle whose cell behaves like an ODE.
        graph: The graph that the model was trained on.
        on_trial: Receives each trial as soon as it is done.

    Returns:
        The manifest's field `convergence.proof`; None if there is no such solver, or too few predictions.
    """
    part = part_of(graph, NODES)
    like = with_outputs(part, LEAST_OUTPUTS)
    if like.outputs < LEAST_OUTPUTS:
        return None
    named = "the run's graph" if part is graph else f"{part.nodes:,} nodes of the run's graph"
    named = named if like is part else f"a graph like {named}, drawn from its nodes"
    return _prove(bundle, [like], named, on_trial)


def prove_in_context(bundle: Bundle, graphs: Sequence[Graph], named: str) -> dict[str, Any] | None:
    """`prove` for the pretrained model, which has no graph of its own: on several graphs together.

    The moves have their full strength, so the proof also holds where hidden labels choose none of them.
    """
    return _prove(bundle, graphs, named, lambda _: None)


@dataclass(frozen=True, eq=False)
class _Reference:
    """A graph, and the result of 300 Euler steps: at t = 1, and at the exit of the bundle's stop rule."""

    prepared: PreparedGraph
    end: End
    at_exit: Floats


def _prove(
    bundle: Bundle, graphs: Sequence[Graph], named: str, on_trial: Callable[[Trial], None]
) -> dict[str, Any] | None:
    """Prove a solver on several graphs: the distance is the largest one, shares are those of all outputs."""
    references = [_reference(bundle, graph) for graph in graphs]
    outputs = [graph.outputs for graph in graphs]

    def proof_of(solver: str, attempt: Attempt) -> dict[str, Any] | None:
        try:
            found = [_compared(bundle, each, solver, attempt) for each in references]
        except DivergedError:
            return None
        trials, same_at_exit = [trial for trial, _ in found], [same for _, same in found]
        trial = replace(
            trials[0],
            change=max(each.change for each in trials),
            same=float(np.average([each.same for each in trials], weights=outputs)),
        )
        on_trial(trial)
        shares = {"same": trial.same, "same_at_exit": float(np.average(same_at_exit, weights=outputs))}
        if trial.change > LARGEST_DISTANCE or min(shares.values()) < LEAST_SAME:
            return None
        return {"solver": solver, "calls": trial.calls, "graph": named, "outputs": sum(outputs)} | shares

    return first_confirmed(starmap(proof_of, _attempts()))


def _reference(bundle: Bundle, graph: Graph) -> _Reference:
    prepared = bundle.prepare(graph)
    return _Reference(prepared, *_end_and_exit(bundle, prepared, Attempt(REFERENCE, Euler())))


def _compared(bundle: Bundle, reference: _Reference, solver: str, attempt: Attempt) -> tuple[Trial, float]:
    """An attempt on one graph: its trial at t = 1, and the share of equal predictions at the exit."""
    found, at_exit = _end_and_exit(bundle, reference.prepared, attempt)
    trial = compared(bundle.manifest, solver, attempt, found, reference.end)
    return trial, share_of_same(bundle.manifest, at_exit, reference.at_exit)


def prove_many(bundle: Bundle, graphs: Sequence[Graph]) -> dict[str, Any] | None:
    """`prove` for a bundle with one prediction for each graph: on many small graphs, in batches.

    The distance from the reference is that of the scores, relative to their spread.
    """
    if len(graphs) < LEAST_OUTPUTS:
        return None
    at_exit = bundle.stop_rule()
    rules: list[StopRule] = [AtTime(1.0)] if at_exit in (AtTime(1.0), Final()) else [AtTime(1.0), at_exit]
    expected = [_scores(bundle, graphs, rule, Euler()) for rule in rules]
    spread = float(expected[0].std(axis=0).mean())

    def proof_of(solver: str, attempt: Attempt) -> dict[str, Any] | None:
        found = [_scores(bundle, graphs, rule, attempt.solver) for rule in rules]
        same = [share_of_same(bundle.manifest, *pair) for pair in zip(found, expected, strict=True)]
        distance = float(np.sqrt(np.mean((found[0] - expected[0]) ** 2)))
        if not distance <= LARGEST_DISTANCE * spread or min(same) < LEAST_SAME:
            return None
        calls = attempt.solver.calls  # type: ignore[attr-defined]
        proof = {"solver": solver, "calls": calls, "graph": "as many graphs of the run"}
        return proof | {"outputs": len(graphs), "same": same[0], "same_at_exit": same[-1]}

    return first_confirmed(starmap(proof_of, _attempts()))


def _scores(bundle: Bundle, graphs: Sequence[Graph], rule: StopRule, solver: Solver) -> Floats:
    """The scores of all graphs; NaN for a graph whose numbers stop being finite."""
    found = outcomes(bundle, graphs, REFERENCE, rule, solver)
    missing = np.full((1, bundle.manifest.targets or 1), np.nan, np.float32)
    return np.concatenate([one.scores if isinstance(one, Result) else missing for one in found])


def _attempts() -> list[tuple[str, Attempt]]:
    """Every attempt of the solvers with a fixed number of calls, the cheapest first."""
    fixed = [
        (solver, attempt)
        for solver, kind in SOLVERS.items()
        if kind.fixed_calls
        for attempt in kind.attempts(REFERENCE)
    ]
    return sorted(fixed, key=lambda one: one[1].solver.calls)  # type: ignore[attr-defined]


def _end_and_exit(bundle: Bundle, prepared: PreparedGraph, attempt: Attempt) -> tuple[End, Floats]:
    """The end of an attempt at t = 1, and the scores at the exit of the bundle's stop rule.

    A rule that does not stop before t = 1 has both in one run.
    """
    loop = loop_of(bundle, prepared, attempt, bundle.stop_rule())
    first = next(loop)
    start = first.state()["nodes"]
    *_, last = first, *loop
    at_exit = loop.result().scores
    if last.time < 1 - 1e-9:
        return run_attempt(bundle, prepared, attempt), at_exit
    return end_of(start, last), at_exit
