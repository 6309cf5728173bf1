"""Every way to run a loop: what is listed in the registries, and nothing that is not."""

from pathlib import Path

import pytest

import adar_runtime
from adar_runtime import Bundle, Solver, StopRule
from adar_runtime.backends import available
from adar_runtime.solvers import SOLVERS, make_solver
from adar_runtime.stopping import RULES, make_rule

SETTINGS = {"time": {"t": 0.6}, "peak": {"patience": 2}, "converged": {"tolerance": 0.2}}


@pytest.fixture(scope="session", params=available())
def bundle(request: pytest.FixtureRequest, bundle_folder: Path) -> Bundle:
    """A small bundle, on each backend that works here."""
    return adar_runtime.load(bundle_folder, request.param)


@pytest.fixture(params=SOLVERS)
def solver(request: pytest.FixtureRequest) -> Solver:
    return make_solver(request.param)


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> StopRule:
    return make_rule({"rule": request.param} | SETTINGS.get(request.param, {}))
