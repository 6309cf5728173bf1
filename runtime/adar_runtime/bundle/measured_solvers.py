"""The solvers of a bundle: which ones `adar-deploy export` measured, and with which settings."""

from typing import Any

from adar_runtime.bundle import manifest as manifests
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.proven_solver import auto_solver
from adar_runtime.errors import UsageError, short
from adar_runtime.loop.checks import check_kind
from adar_runtime.loop.registry import find, settings_of
from adar_runtime.loop.solvers import DEFAULT_SOLVER, REFERENCE_SOLVER, SOLVERS, Solver, make_solver


def measured_settings(manifest: Manifest, solver: str) -> dict[str, Any] | None:
    """The settings with which a solver was measured to reproduce many Euler steps; None if not measured."""
    calls = manifest.calls_needed(solver)
    return SOLVERS[solver].measured_settings(calls, manifest.trial(solver, calls))


def usable_solvers(manifest: Manifest) -> list[str]:
    """The solvers that reproduce many Euler steps with this bundle without further settings."""
    return [
        name
        for name, kind in SOLVERS.items()
        if (manifest.behaves_like_ode or not kind.needs_ode) and measured_settings(manifest, name) is not None
    ]


def solver_for(manifest: Manifest, solver: Solver | str, budget: int) -> Solver:
    """The solver of this name, or the caller's own solver, if it is valid for the bundle."""
    if isinstance(solver, str):
        return make_measured(manifest, solver, budget)
    return checked_solver(manifest, solver)


def make_measured(manifest: Manifest, name: str, budget: int, **settings: Any) -> Solver:
    """The solver of this name. Without settings, it gets those that were measured for the bundle."""
    if name == DEFAULT_SOLVER and not settings:
        return auto_solver(manifest, budget)
    kind = find(SOLVERS, "solver", name)
    _check_ode(manifest, kind, repr(name))
    if settings:
        return make_solver(name, **settings)
    measured = measured_settings(manifest, name)
    if measured is None:
        wanted = " or ".join(f"{one.name} (--{one.option})" for one in settings_of(kind))
        raise UsageError(
            f"the bundle has no measured settings for the solver {name!r}: "
            f"set {wanted or 'its settings'}, or use the solver {REFERENCE_SOLVER}"
        )
    return make_solver(name, **measured)


def checked_solver(manifest: Manifest, solver: Solver) -> Solver:
    """The caller's own solver, if it is valid for the bundle."""
    check_kind("solver", solver, Solver, "a solver, such as bundle.solver('ab2')")
    _check_ode(manifest, solver, type(solver).__name__)
    return solver


def _check_ode(manifest: Manifest, solver: object, name: str) -> None:
    if getattr(solver, "needs_ode", True) and not manifest.behaves_like_ode:
        order = short(manifest.convergence.get("order", "not measured"))
        raise UsageError(
            f"the solver {name} needs an order of convergence of at least {manifests.LEAST_ORDER} "
            f"(this bundle: {order}): use the solver {REFERENCE_SOLVER}"
        )
