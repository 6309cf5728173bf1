"""Which solvers `adar-deploy export` measured for a bundle, and with which settings."""

from typing import Any

from adar_runtime.bundle.manifest import Manifest
from adar_runtime.loop.solvers import SOLVERS


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
