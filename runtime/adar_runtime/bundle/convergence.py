"""How like an ODE a cell behaves, by its manifest. A stranger may have written that: types are checked."""

import math
from typing import Any

from adar_runtime.bundle.manifest import Manifest
from adar_runtime.loop.solvers import MAX_CALLS

LEAST_ORDER = 0.8  # of convergence, where 1 is Euler's


def behaves_like_ode(manifest: Manifest) -> bool:
    """Whether the error of Euler's method was measured to fall as 1/S, which other solvers build on."""
    order = manifest.convergence.get("order")
    if isinstance(order, bool) or not isinstance(order, int | float):
        return False
    return not manifest.unit_step and LEAST_ORDER <= order < math.inf


def measured_settings(manifest: Manifest, solver: str) -> dict[str, Any] | None:
    """With what that solver was measured to give the answer of many steps; None where there is no saying."""
    calls = _calls_needed(manifest, solver)
    if calls is None:
        return None
    if solver == "ab2":
        return {"calls": calls}
    tolerance = _tolerance_of(manifest, solver, calls)
    return None if tolerance is None else {"tolerance": tolerance}


def _calls_needed(manifest: Manifest, solver: str) -> int | None:
    calls = manifest.convergence.get("calls")
    needed = calls.get(solver) if isinstance(calls, dict) else None
    if isinstance(needed, bool) or not isinstance(needed, int):
        return None
    return needed if 1 <= needed <= MAX_CALLS else None


def _tolerance_of(manifest: Manifest, solver: str, calls: int) -> float | None:
    """That of the trial which took so many calls."""
    trials = manifest.convergence.get("trials")
    for trial in trials if isinstance(trials, list) else []:
        if isinstance(trial, dict) and (trial.get("solver"), trial.get("calls")) == (solver, calls):
            tolerance = trial.get("tolerance")
            return tolerance if isinstance(tolerance, float) and 0 < tolerance < 1 else None
    return None
