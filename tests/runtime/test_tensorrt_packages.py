"""Which of the two TensorRT packages builds, and the errors if none can."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tensorrt_rtx", reason="needs adar-deploy[rtx]")

from adar_runtime.backends.tensorrt.engines import build, packages
from adar_runtime.backends.tensorrt.engines.build import build_engines
from adar_runtime.backends.tensorrt.engines.options import BuildOptions
from adar_runtime.bundle.reading import read_bundle
from adar_runtime.errors import EngineError, MissingExtraError
from tests.runtime.simulated_gpu import RTX, simulate_gpu


def test_tensorrt_needs_a_gpu_to_build(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "load_package", lambda _name: replace(RTX, name="tensorrt"))
    monkeypatch.setattr(build, "device_problem", lambda: "there is no CUDA driver")
    with pytest.raises(
        EngineError, match=r"tensorrt builds only for the GPU .* no CUDA driver: use --flavour rtx"
    ):
        build_engines(copy, *read_bundle(copy), BuildOptions(package="tensorrt"))


def test_tensorrt_builds_for_the_chosen_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings", reason="needs adar-deploy[rtx]")
    gpu = simulate_gpu(monkeypatch, None, capability=86)
    monkeypatch.setattr(build, "load_package", lambda _name: replace(RTX, name="tensorrt"))
    monkeypatch.setattr(build, "device_problem", lambda: None)
    assert build._target(BuildOptions(device=1)).capabilities == (86,)
    assert gpu.current_device == 1  # the builder builds for the current device


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda _module: None)
    for name, extra in ((None, "rtx"), ("rtx", "rtx"), ("tensorrt", "tensorrt")):
        with pytest.raises(MissingExtraError, match=rf"pip install 'adar-deploy\[{extra}\]'"):
            packages.load_package(name)


@pytest.mark.parametrize(("problem", "best"), [(None, "tensorrt"), ("no GPU", "rtx")])
def test_with_both_packages_the_gpu_decides(monkeypatch: pytest.MonkeyPatch, problem, best) -> None:
    monkeypatch.setattr(packages, "device_problem", lambda: problem)
    assert packages._best(["tensorrt", "rtx"]) == best
    assert packages._best(["rtx"]) == "rtx"
