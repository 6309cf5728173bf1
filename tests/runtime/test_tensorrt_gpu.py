"""Real engines on a real GPU. Skipped without one."""

from pathlib import Path

import numpy as np
import pytest

import adar_runtime
from adar_runtime import Bundle, Final, Peak
from adar_runtime.backends.tensorrt.cuda import runtime_api
from adar_runtime.backends.tensorrt.engines.build import build_engines
from adar_runtime.backends.tensorrt.engines.options import BuildOptions
from adar_runtime.backends.tensorrt.engines.profiles import Profile
from adar_runtime.bundle.reading import read_bundle
from tests.helpers import random_graph

pytestmark = pytest.mark.gpu

GRAPH = random_graph(500, 4000)


@pytest.fixture(scope="module")
def pair(described_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle]:
    """The same bundle on TensorRT and on ONNX Runtime."""
    import shutil

    folder = shutil.copytree(described_bundle, tmp_path_factory.mktemp("engines") / "bundle")
    build_engines(folder, *read_bundle(folder), BuildOptions(profiles=(Profile.parse("small"),)))
    return adar_runtime.load(folder, "tensorrt"), adar_runtime.load(described_bundle, "onnxruntime-cpu")


@pytest.mark.parametrize("steps", [1, 10, 100, 300])
def test_it_agrees_with_onnx_runtime(pair: tuple[Bundle, Bundle], steps: int) -> None:
    ours, reference = (bundle.run(GRAPH, steps, Final()) for bundle in pair)
    np.testing.assert_allclose(ours.alignment, reference.alignment, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ours.scores, reference.scores, rtol=1e-3, atol=1e-3)
    assert (ours.predictions == reference.predictions).mean() > 0.999


@pytest.mark.parametrize("solver", ["euler", "ab2", "adaptive"])
def test_it_stops_at_the_same_step(pair: tuple[Bundle, Bundle], solver: str) -> None:
    from adar_runtime.loop.solvers import make_solver

    ours, reference = (bundle.run(GRAPH, 300, Peak(patience=10), make_solver(solver)) for bundle in pair)
    assert (ours.best_step, ours.stop_reason) == (reference.best_step, reference.stop_reason)


def test_a_new_shape_and_back_again(pair: tuple[Bundle, Bundle]) -> None:
    for graph in (GRAPH, random_graph(333, 2000), GRAPH):
        ours, reference = (bundle.run(graph, 50, Final()) for bundle in pair)
        np.testing.assert_allclose(ours.scores, reference.scores, rtol=1e-3, atol=1e-3)


def test_memory_does_not_grow_over_a_thousand_runs(pair: tuple[Bundle, Bundle]) -> None:
    def free() -> int:
        error, free, _total = runtime_api().cudaMemGetInfo()
        assert not int(error)
        return free

    for _ in range(10):
        pair[0].run(GRAPH, 20)
    before = free()
    for _ in range(1000):
        pair[0].run(GRAPH, 20)
    assert before - free() < 2**22
