"""Every way to run a loop: what is listed in the registries, and nothing that is not."""

import shutil
from copy import copy as copy_of_object
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import adar_runtime
from adar_runtime import Bundle, Solver, StopRule
from adar_runtime.backends import OPENVINO, TENSORRT, available
from adar_runtime.loop.solvers import SOLVERS, make_solver
from adar_runtime.loop.stopping import RULES, make_rule

SETTINGS = {"time": {"t": 0.6}, "peak": {"patience": 2}, "converged": {"tolerance": 0.2}}


SIMULATED = "tensorrt, simulated"  # on the CPU


@pytest.fixture
def copy(bundle_folder: Path, tmp_path: Path) -> Path:
    """The small bundle, for a test to change."""
    return shutil.copytree(bundle_folder, tmp_path / "bundle")


@pytest.fixture(scope="session")
def engines_folder(bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small bundle with TensorRT engines."""
    from tests.runtime.simulated_gpu import with_engines

    return with_engines(bundle_folder, tmp_path_factory.mktemp("bundles") / "engines")


@lru_cache
def _compiled_by_openvino(folder: Path) -> Bundle:
    """Compiling takes a second, so all tests share the compiled models."""
    return adar_runtime.load(folder, OPENVINO)


@pytest.fixture(params=[*available(), *([SIMULATED] if find_spec("tensorrt_rtx") else [])])
def bundle(request: pytest.FixtureRequest, bundle_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A small bundle, on each backend that works here."""
    if request.param == OPENVINO:
        return copy_of_object(_compiled_by_openvino(bundle_folder))
    if request.param not in (SIMULATED, TENSORRT):
        return adar_runtime.load(bundle_folder, request.param)
    folder = request.getfixturevalue("engines_folder")
    if request.param == SIMULATED:
        from tests.runtime.simulated_gpu import simulate_gpu

        simulate_gpu(monkeypatch, folder)
    return adar_runtime.load(folder, TENSORRT)


@pytest.fixture(params=SOLVERS)
def solver(request: pytest.FixtureRequest) -> Solver:
    return make_solver(request.param)


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> StopRule:
    return make_rule({"rule": request.param} | SETTINGS.get(request.param, {}))
