"""The solver "auto": the cheapest one that export proved to give the predictions of 300 Euler steps."""

import math
from typing import Any

from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import short
from adar_runtime.loop.solvers import MAX_CALLS, REFERENCE_STEPS, SOLVERS, Euler, Solver, make_solver


def auto_solver(manifest: Manifest, budget: int) -> Solver:
    """The solver "auto" for a budget: the proven solver, or Euler's method if nothing was proven.

    The proof is for 300 steps. A smaller budget takes the same number of calls, at most one for each step: a
    call then replaces fewer steps. A larger budget takes more calls in proportion, so that a call replaces as
    many steps as in the proof.
    """
    proof = manifest.proof
    if proof is None or proof["solver"] not in SOLVERS or not SOLVERS[proof["solver"]].fixed_calls:
        return Euler()
    in_proportion = -(-proof["calls"] * budget // REFERENCE_STEPS)  # rounded up
    calls = min(MAX_CALLS, max(proof["calls"], in_proportion))
    return Euler() if calls >= budget else make_solver(proof["solver"], calls=calls)


def solver_title(solver: Solver) -> str:
    """The name of a solver, and its number of calls if that is fixed: "ab2, 32 calls"."""
    name = next((name for name, kind in SOLVERS.items() if type(solver) is kind), type(solver).__name__)
    fixed = getattr(solver, "fixed_calls", False)
    return f"{name}, {getattr(solver, 'calls', '?')} calls" if fixed else name


def solver_facts(manifest: Manifest, solver: Solver, budget: int) -> dict[str, Any]:
    """The fields `solver` and `proof` of a `Result`."""
    return {"solver": solver_title(solver), "proof": proof_of(manifest, solver, budget)}


def proof_of(manifest: Manifest, solver: Solver, budget: int) -> str:
    """What export proved about a solver with this bundle, in one sentence."""
    if isinstance(solver, Euler):
        return "the reference: one call for each step"
    proof = manifest.proof
    if proof is None or solver != auto_solver(manifest, budget):
        return "not proven for this bundle"
    at_end, at_stop = _percent(proof["same"]), _percent(proof["same_at_exit"])
    at_both = "" if at_stop == at_end else f" ({at_stop} at the bundle's stop step)"
    graph = proof.get("graph", manifest.convergence.get("graph", "a graph"))  # older bundles have one graph
    on = f"{proof['outputs']:,} predictions for {short(graph)}"
    gave = f"{proof['calls']} calls gave {at_end} of the predictions of {REFERENCE_STEPS} Euler steps"
    return f"in the export, {gave}{at_both}, on {on}"


def default_solver(manifest: Manifest) -> str:
    """The solver "auto" for 300 steps, and why, in one sentence."""
    solver = auto_solver(manifest, REFERENCE_STEPS)
    why = proof_of(manifest, solver, REFERENCE_STEPS) if manifest.proof else "no other solver was proven"
    return f"{solver_title(solver)}: {why}"


def _percent(share: float) -> str:
    """Rounded down, so that 100 % means all."""
    return f"{math.floor(1000 * min(1.0, share)) / 10:g} %"
