"""Backends: what is there, what is not, and what they say."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

import adar_runtime
from adar_export.onnx_models import build_onnx_models
from adar_export.precision import precision_of
from adar_runtime import Graph, backends
from adar_runtime.backends import BACKENDS, available, prepared_graph
from adar_runtime.backends.onnxruntime.backend import OnnxCpuBackend, OnnxCudaBackend
from adar_runtime.backends.onnxruntime.recurrence import OnnxRecurrence
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle import label_checks
from adar_runtime.errors import BackendError, MissingExtraError, ProfileError, UsageError
from adar_train import load_run
from tests.bundles import edit, replace_model


def test_the_processor_always_works() -> None:
    assert available()[-1] == "onnxruntime-cpu"
    assert set(available()) <= set(BACKENDS)


@pytest.mark.skipif(
    OnnxCudaBackend.problem() is None, reason="there is a CUDA device here, so asking for one is right"
)
def test_a_backend_that_is_not_there_is_an_error_that_says_why(bundle_folder: Path) -> None:
    with pytest.raises(BackendError, match=r"onnxruntime-cuda does not work here: .*no CUDA device"):
        adar_runtime.load(bundle_folder, "onnxruntime-cuda")
    assert adar_runtime.load(bundle_folder, "auto").backend.name == "onnxruntime-cpu"


def test_a_backend_that_nobody_knows(bundle_folder: Path) -> None:
    with pytest.raises(
        BackendError, match="choose auto, tensorrt, onnxruntime-cuda, openvino or onnxruntime-cpu"
    ):
        adar_runtime.load(bundle_folder, "abacus")


def test_a_silent_fallback_is_caught(bundle_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that sees a device is not enough: ONNX Runtime then takes the CPU and says nothing."""
    monkeypatch.setattr(OnnxCudaBackend, "problem", lambda: None)
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime was built without CUDA")
    with pytest.raises(BackendError, match=r"CUDAExecutionProvider does not work here|cannot load"):
        adar_runtime.load(bundle_folder, "onnxruntime-cuda")
    assert adar_runtime.load(bundle_folder).backend.name == "onnxruntime-cpu"


class BrokenBackend:
    """A backend that never works."""

    @staticmethod
    def problem() -> str | None:
        return "the abacus is broken; repair it"


def test_auto_skips_a_backend_that_does_not_work(
    bundle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "BACKENDS", {"abacus": f"{__name__}:BrokenBackend"} | BACKENDS)
    with pytest.raises(BackendError, match="abacus does not work here: the abacus is broken; repair it"):
        adar_runtime.load(bundle_folder, "abacus")
    assert adar_runtime.load(bundle_folder).backend.name == "onnxruntime-cpu"


class PickyBackend(OnnxCpuBackend):
    """A backend that accepts no graph."""

    name = "picky"

    def start(self, prepared: PreparedGraph) -> OnnxRecurrence:
        raise ProfileError("the shapes do not fit")


def test_the_fallback_does_not_prepare_the_graph_again(
    bundle_folder: Path, board: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(*arguments, **options) -> PreparedGraph:
        made.append(prepared_graph.prepare(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(label_checks, "prepare", counted)
    monkeypatch.setattr(backends, "BACKENDS", {"picky": f"{__name__}:PickyBackend"} | BACKENDS)
    bundle = adar_runtime.load(bundle_folder)
    assert (bundle.backend.name, bundle.run(board, 2).backend) == ("picky", "onnxruntime-cpu")
    assert len(made) == 1


@pytest.mark.parametrize("module", ["backends", "loop.solvers", "loop.stopping"])
def test_a_registry_is_imported_without_numpy(module: str) -> None:
    """The command line takes its choices from there, and `--help` has no time for numpy."""
    code = f"import adar_runtime.{module}, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_public_names_are_imported_on_first_use() -> None:
    assert set(adar_runtime.__all__) <= set(dir(adar_runtime))
    assert set(adar_runtime._MODULES) == set(adar_runtime.__all__)
    assert all(getattr(adar_runtime, name).__name__ == name for name in adar_runtime.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = adar_runtime.nonsense


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


def test_without_onnxruntime_the_error_names_both_extras(
    bundle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "find_spec", lambda _: None)
    for call in (lambda: adar_runtime.load(bundle_folder), backends.available):
        with pytest.raises(MissingExtraError, match=r"extra gpu.*pip install 'adar-deploy\[cpu\]'"):
            call()


@pytest.mark.parametrize("package", ["adar_runtime", "adar_export"])
def test_onnx_runtime_keeps_no_telemetry(package: str, bundle_folder: Path, tmp_path: Path) -> None:
    """It wrote a device id and a database of events into the home folder, and a temporary file."""
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()
    temporary.mkdir()
    places = {"HOME": str(home), "TMPDIR": str(temporary)}
    kept = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    code = f"import {package}, sys; from adar_runtime import load; load(sys.argv[1], 'onnxruntime-cpu')"
    subprocess.run([sys.executable, "-c", code, bundle_folder], env=kept | places, check=True)
    assert [*home.rglob("*"), *temporary.rglob("*")] == []
