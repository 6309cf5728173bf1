"""Which of the two TensorRTs builds, and what is said where neither can."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tensorrt_rtx", reason="needs adar-deploy[rtx]")

from adar_runtime.backends.tensorrt.engines import build, flavours
from adar_runtime.backends.tensorrt.engines.build import Wish, build_engines
from adar_runtime.bundle.bundle import read_bundle
from adar_runtime.errors import EngineError, MissingExtraError
from tests.runtime.acting import RTX


def test_tensorrt_builds_only_where_there_is_a_gpu(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "flavour_of", lambda _name: replace(RTX, name="tensorrt"))
    monkeypatch.setattr(build, "device_problem", lambda: "there is no CUDA driver, hence no CUDA device")
    with pytest.raises(EngineError, match=r"tensorrt builds on the GPU .* no CUDA device: use --flavour rtx"):
        build_engines(copy, *read_bundle(copy), Wish(flavour="tensorrt"))


def test_flavours_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flavours, "find_spec", lambda _module: None)
    for name, extra in ((None, "rtx"), ("rtx", "rtx"), ("tensorrt", "tensorrt")):
        with pytest.raises(MissingExtraError, match=rf"pip install 'adar-deploy\[{extra}\]'"):
            flavours.flavour_of(name)


@pytest.mark.parametrize(("problem", "best"), [(None, "tensorrt"), ("no GPU", "rtx")])
def test_with_both_flavours_the_gpu_decides(monkeypatch: pytest.MonkeyPatch, problem, best) -> None:
    monkeypatch.setattr(flavours, "device_problem", lambda: problem)
    assert flavours._best(["tensorrt", "rtx"]) == best
    assert flavours._best(["rtx"]) == "rtx"
