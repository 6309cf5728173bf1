"""How like an ODE a cell behaves, by its manifest. A stranger may have written that: types are checked."""

import math

from adar_runtime.manifest import Manifest
from adar_runtime.solvers import MAX_CALLS

LEAST_ORDER = 0.8  # of convergence, where 1 is Euler's


def behaves_like_ode(manifest: Manifest) -> bool:
    """Whether the error of Euler's method was measured to fall as 1/S, which other solvers build on."""
    order = manifest.convergence.get("order")
    if isinstance(order, bool) or not isinstance(order, int | float):
        return False
    return not manifest.unit_step and LEAST_ORDER <= order < math.inf


def calls_needed(manifest: Manifest, solver: str) -> int | None:
    """The fewest calls of that solver that were measured to be enough; None where there is no saying."""
    calls = manifest.convergence.get("calls")
    needed = calls.get(solver) if isinstance(calls, dict) else None
    if isinstance(needed, bool) or not isinstance(needed, int):
        return None
    return needed if 1 <= needed <= MAX_CALLS else None
