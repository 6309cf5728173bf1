"""ONNX Runtime on CUDA, as far as a machine without a GPU can check it: its settings, and what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import adar_runtime
from adar_runtime import Bundle, Euler, Graph, Loop, Peak
from adar_runtime.backends import Settings
from adar_runtime.backends.onnxruntime import sessions
from adar_runtime.backends.onnxruntime.backend import OnnxCudaBackend
from adar_runtime.backends.onnxruntime.recurrence import CapturingOnnxRecurrence, Placement
from adar_runtime.backends.tensor_limits import MOST_ELEMENTS, too_large
from adar_runtime.bundle.reading import read_bundle
from adar_runtime.errors import BackendError, ProfileError
from adar_runtime.graph.synthetic import minesweeper


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the backend asks of ONNX Runtime, in order: CUDA libraries, then sessions, which end at once."""
    asked: list[Any] = []

    def session(_content: bytes, _options: Any, *, providers: list[Any], **_: Any) -> None:
        asked.append(providers)
        raise RuntimeError("there is no GPU here")

    monkeypatch.setattr(ort, "preload_dlls", lambda: (print("Failed to load x"), asked.append("libraries")))
    monkeypatch.setattr(ort, "InferenceSession", session)
    sessions.load_cuda_libraries.cache_clear()
    yield asked
    sessions.load_cuda_libraries.cache_clear()


@pytest.mark.parametrize("allowed", [False, True])
def test_products_are_float32_unless_tf32_is_allowed(
    bundle_folder: Path, opened: list[Any], allowed: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    manifest, onnx_models = read_bundle(bundle_folder)
    with pytest.raises(BackendError, match="there is no GPU here"):
        OnnxCudaBackend(onnx_models, manifest, Settings(tf32=allowed))
    libraries, ((provider, options),) = opened
    assert libraries == "libraries"  # before the first session
    assert provider == "CUDAExecutionProvider"
    assert options == {"device_id": "0", "use_tf32": "1" if allowed else "0", "enable_cuda_graph": "0"}
    assert capfd.readouterr().out == ""


def test_a_device_can_be_chosen_and_only_the_cell_is_captured() -> None:
    backend = object.__new__(OnnxCudaBackend)  # without sessions, which need a GPU
    backend._settings = Settings(device=1, cuda_graph=True)
    options = {name: backend._provider_options(name) for name in ("encoder", "cell", "head")}
    assert {one["device_id"] for one in options.values()} == {"1"}
    assert [one["enable_cuda_graph"] for one in options.values()] == ["0", "1", "0"]


def test_with_cuda_graphs_scalars_are_copied_after_every_call(bundle_folder: Path) -> None:
    """On the CPU, where ONNX Runtime captures nothing: the same bindings and copies give the same results."""
    bundle = Bundle(bundle_folder, "onnxruntime-cpu")
    graph = minesweeper(side=9)
    loops = []
    for cuda_graph in (False, True):
        placement = Placement("cpu", cuda_graph=cuda_graph)
        recurrence = CapturingOnnxRecurrence("x", placement, bundle.backend._sessions, bundle.prepare(graph))
        loops.append(Loop(recurrence, bundle.manifest, 40, Peak(patience=5), Euler()))
    results = []
    for loop in loops:
        for _ in loop:
            pass
        results.append(loop.result())
    assert results[0].alignment == results[1].alignment
    assert np.array_equal(results[0].scores, results[1].scores)
    assert [one.capture.captured for one in results] == [False, True]
    assert "--cuda-graph" in str(results[0].capture)
    used = [options for _, options in loops[1].recurrence._bindings.values()]
    numbers = [options.get_run_config_entry("gpu_graph_id") for options in used]
    assert len(set(numbers)) == len(numbers) > 2  # a captured graph has fixed addresses


def test_the_cpu_needs_no_cuda_libraries(bundle_folder: Path, opened: list[Any]) -> None:
    with pytest.raises(BackendError, match="there is no GPU here"):
        adar_runtime.load(bundle_folder, "onnxruntime-cpu")
    assert opened == [[("CPUExecutionProvider", {})]]


def test_a_tensor_beyond_32_bit_indices_is_refused_before_it_is_allocated(bundle_folder: Path) -> None:
    bundle = Bundle(bundle_folder, "onnxruntime-cpu")
    prepared = bundle.prepare(Graph(np.zeros((3, 10)), np.array([[0, 1, 2, 0], [1, 2, 0, 2]])))
    backend = object.__new__(OnnxCudaBackend)  # without sessions, which need a GPU
    backend._manifest = replace(bundle.manifest, hidden=2**30)
    with pytest.raises(ProfileError, match=r"too large for one GPU: the tensor 'messages' would have [\d,]+"):
        backend.start(prepared)


def test_a_pretrained_model_also_sends_a_column_for_each_class(bundle_folder: Path) -> None:
    manifest = replace(read_bundle(bundle_folder)[0], hidden=64, proxies=16, in_context=True)
    sizes = {"nodes": 1000, "pairs": 0, "features": 1000, "structure": {"leaf_3": (2**20, 16)}}
    assert too_large(manifest, targets=64, **sizes) is None
    assert "rows of leaf_3" in str(too_large(manifest, targets=128, **sizes))


@pytest.mark.parametrize(
    ("sizes", "tensor"),
    [
        ({}, None),
        ({"nodes": 2**25}, "messages"),
        ({"targets": 2**22}, "messages"),
        ({"features": 2**31}, "features"),
        ({"structure": {"leaf_3": (2**21, 16)}}, "rows of leaf_3"),
        ({"structure": {"join_2": (2**19, 4096)}}, "rows of join_2"),
        ({"structure": {"leaf_3": (2**20, 16)}}, None),
    ],
)
def test_the_first_tensor_that_is_too_large(bundle_folder: Path, sizes: dict, tensor: str | None) -> None:
    manifest = replace(read_bundle(bundle_folder)[0], hidden=64, proxies=16)
    usual = {"nodes": 1000, "targets": 2, "pairs": 0, "features": 1000, "structure": {"leaf_0": (9, 2)}}
    found = too_large(manifest, **(usual | sizes))
    assert (found is None) == (tensor is None)
    if tensor is not None:
        assert f"the tensor {tensor!r} would have" in found
        assert f"{MOST_ELEMENTS:,} are possible" in found
