"""Backends: what is there, what is not, and what they say."""

import shutil
import sys
from pathlib import Path
from types import ModuleType

import onnxruntime
import pytest

import adar_runtime
from adar_export.onnx_models import build_onnx_models
from adar_export.precision import precision_of
from adar_runtime import backends
from adar_runtime.backends import BACKENDS, available
from adar_runtime.backends.onnxruntime import cuda as onnx_cuda
from adar_runtime.errors import BackendError, UsageError
from adar_train import load_run
from tests.bundles import edit, replace_model


def test_the_processor_always_works() -> None:
    assert available()[-1] == "onnxruntime-cpu"
    assert set(available()) <= set(BACKENDS)


@pytest.mark.skipif(
    onnx_cuda.problem() is None, reason="there is a CUDA device here, so asking for one is right"
)
def test_a_backend_that_is_not_there_is_an_error_that_says_why(bundle_folder: Path) -> None:
    with pytest.raises(BackendError, match=r"onnxruntime-cuda does not work here: .*no CUDA device"):
        adar_runtime.load(bundle_folder, "onnxruntime-cuda")
    assert adar_runtime.load(bundle_folder, "auto").backend.name == "onnxruntime-cpu"


def test_a_backend_that_nobody_knows(bundle_folder: Path) -> None:
    with pytest.raises(BackendError, match="choose auto, tensorrt, onnxruntime-cuda or onnxruntime-cpu"):
        adar_runtime.load(bundle_folder, "abacus")


def test_a_silent_fallback_is_caught(bundle_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that sees a device is not enough: ONNX Runtime then takes the CPU and says nothing."""
    monkeypatch.setattr(onnx_cuda, "problem", lambda: None)
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime was built without CUDA")
    with pytest.raises(BackendError, match=r"CUDAExecutionProvider does not work here|cannot load"):
        adar_runtime.load(bundle_folder, "onnxruntime-cuda")
    assert adar_runtime.load(bundle_folder).backend.name == "onnxruntime-cpu"


def test_a_new_backend_is_one_module_and_one_line(
    bundle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("my_backend")
    module.problem = lambda: "the abacus is broken; mend it"
    monkeypatch.setitem(sys.modules, "my_backend", module)
    monkeypatch.setattr(backends, "BACKENDS", {"abacus": "my_backend"} | BACKENDS)
    with pytest.raises(BackendError, match="abacus does not work here: the abacus is broken; mend it"):
        adar_runtime.load(bundle_folder, "abacus")
    assert adar_runtime.load(bundle_folder).backend.name == "onnxruntime-cpu"


def test_a_bf16_bundle_needs_a_gpu(bundle_folder: Path, run_folder: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(bundle_folder, tmp_path / "bundle")
    cell = build_onnx_models(load_run(run_folder).model, 17, precision_of("bf16"))["cell"].SerializeToString()
    replace_model(bundle, "cell", cell)
    edit(bundle, lambda m: m.update(precision="bf16"))
    with pytest.raises(BackendError, match="--precision fp32, or run it on a GPU"):
        adar_runtime.load(bundle, "onnxruntime-cpu")


@pytest.mark.parametrize("threads", [0, -1, 10**6])
def test_threads_that_cannot_be(bundle_folder: Path, threads: int) -> None:
    with pytest.raises(UsageError, match="threads"):
        adar_runtime.load(bundle_folder, threads=threads)
