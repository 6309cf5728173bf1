"""The device of a TensorRT session, simulated: captures, memory, kernels, devices, forks."""

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorrt_rtx", reason="needs adar-deploy[rtx]")
pytest.importorskip("cuda.bindings", reason="needs adar-deploy[rtx]")

import tensorrt_rtx as trt
from cuda.bindings import runtime as cudart

import adar_runtime
from adar_runtime import Bundle, Final
from adar_runtime.backends.tensorrt import cuda, device, sessions
from adar_runtime.backends.tensorrt.engines import FOLDER
from adar_runtime.backends.tensorrt.engines.options import BuildOptions
from adar_runtime.backends.tensorrt.engines.plan import _configure_tensorrt
from adar_runtime.backends.tensorrt.runtime_cache import RuntimeCache
from adar_runtime.errors import BackendError, UsageError
from tests.helpers import random_graph
from tests.runtime.simulated_gpu import RTX, load_on_simulated_gpu, simulate_gpu, with_engines
from tests.runtime.standins import OK, Device

GRAPH, LARGER = random_graph(70, 300), random_graph(90, 500)


@pytest.fixture(scope="module")
def folder(described_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_engines(described_bundle, tmp_path_factory.mktemp("engines") / "bundle")


@pytest.fixture
def simulated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bundle, Device]:
    return load_on_simulated_gpu(monkeypatch, folder)


def test_scratch_memory_follows_the_shapes_of_the_graph(simulated) -> None:
    bundle, _ = simulated
    sizes = [bundle.loop(graph, 5).recurrence._session.bytes for graph in (GRAPH, LARGER)]
    assert sizes[0] < sizes[1]


def test_memory_that_is_garbage_is_freed_after_the_capture(simulated, monkeypatch) -> None:
    """A free during a capture makes the capture fail: on the simulated device as on a real one."""
    bundle, gpu = simulated
    begin = type(gpu).act_cudaStreamBeginCapture

    def begin_and_collect(self, stream, mode):
        found = begin(self, stream, mode)
        garbage = [cuda.Cuda().allocate(1000)]
        garbage.append(garbage)
        del garbage
        gc.collect()
        return found

    monkeypatch.setattr(type(gpu), "act_cudaMalloc", allocate_quietly)
    monkeypatch.setattr(type(gpu), "act_cudaStreamBeginCapture", begin_and_collect)
    assert str(bundle.run(GRAPH, 20, Final()).capture) == "yes"
    names = gpu.names
    end = names.index("cudaStreamEndCapture")
    assert "cudaFree" not in names[names.index("cudaStreamBeginCapture") : end]
    assert "cudaFree" in names[end:]


def allocate_quietly(self, size):
    """As cudaMalloc of the simulated device, without its check of captures."""
    from tests.runtime.standins import _allocate

    return OK, _allocate(self.device_memory, size)


def test_a_free_during_a_capture_would_have_made_it_fail(simulated, monkeypatch) -> None:
    bundle, gpu = simulated
    begin = type(gpu).act_cudaStreamBeginCapture
    _, memory = gpu.cudaMalloc(1000)

    def begin_and_free(self, stream, mode):
        found = begin(self, stream, mode)
        self.cudaFree(memory)
        return found

    monkeypatch.setattr(type(gpu), "act_cudaStreamBeginCapture", begin_and_free)
    result = bundle.run(GRAPH, 20, Final())
    assert str(result.capture).startswith("no: CUDA failed in cudaStreamEndCapture")


@pytest.mark.parametrize("call", ["cudaStreamBeginCapture", "cudaGraphInstantiate"])
def test_a_failed_capture_leaves_no_last_error(simulated, call: str) -> None:
    bundle, gpu = simulated
    gpu.fail.add(call)
    assert not bundle.run(GRAPH, 20, Final()).capture.captured
    assert gpu.last_error == OK


def test_an_engine_that_cannot_tell_its_memory_is_an_error(simulated) -> None:
    bundle, gpu = simulated
    gpu.fail.add("memory")
    with pytest.raises(BackendError, match="cannot tell how much memory it needs: the shapes are not known"):
        bundle.run(GRAPH, 5)


def test_idle_sessions_are_released_above_a_share_of_the_memory(simulated, monkeypatch) -> None:
    bundle, gpu = simulated
    pool = bundle.backend._engines.sessions
    for graph in (GRAPH, LARGER):
        bundle.run(graph, 3)
    bundle.run(GRAPH, 3)
    assert len(pool._idle) + len(pool._returned) == 2
    monkeypatch.setattr(sessions, "IDLE_SHARE", 0.0)
    bundle.run(LARGER, 3)
    assert len(pool._idle) == 0
    assert gpu.names.count("cudaStreamBeginCapture") == 3


def test_idle_sessions_are_released_when_memory_runs_out(simulated) -> None:
    bundle, gpu = simulated
    bundle.run(GRAPH, 3)
    gpu.memory_limit = int(1.6 * sum(len(memory) for memory in gpu.device_memory.values()))
    assert bundle.run(LARGER, 3).backend == "tensorrt"
    gpu.memory_limit = 0
    with pytest.raises(BackendError, match="CUDA failed in cudaMalloc"):
        bundle.run(random_graph(80, 400), 3)


def test_a_failed_allocation_does_not_make_later_runs_fail(simulated) -> None:
    bundle, gpu = simulated
    gpu.memory_limit = 0
    with pytest.raises(BackendError, match="CUDA failed in cudaMalloc"):
        bundle.run(GRAPH, 3)
    assert gpu.last_error == OK
    gpu.memory_limit = 2**30
    assert bundle.run(GRAPH, 3).backend == "tensorrt"


def test_idle_sessions_are_released_when_a_context_finds_no_memory(simulated) -> None:
    bundle, gpu = simulated
    bundle.run(GRAPH, 3)
    gpu.fail.add("context")
    assert bundle.run(LARGER, 3).backend == "tensorrt"
    pool = bundle.backend._engines.sessions
    assert len(pool._idle) + len(pool._returned) == 1


def test_few_sessions_and_shapes_are_kept(simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, _ = simulated
    monkeypatch.setattr(sessions, "MOST_IDLE", 2)
    monkeypatch.setattr(sessions, "REMEMBERED_SHAPES", 3)
    for index in range(5):
        bundle.run(random_graph(20 + index, 60), 2)
    pool = bundle.backend._engines.sessions
    pool._collect()
    assert (len(pool._idle), len(pool._seen)) == (2, 3)


def test_only_the_first_shapes_and_repeated_ones_wait_for_their_kernels(simulated) -> None:
    bundle, gpu = simulated
    graphs = [random_graph(20 + index, 60) for index in range(sessions.EAGER_SHAPES + 1)]
    strategies = trt.DynamicShapesKernelSpecializationStrategy

    def chosen(graph) -> set:
        del gpu.calls[:]
        bundle.run(graph, 3)
        name = "IRuntimeConfig.dynamic_shapes_kernel_specialization_strategy ="
        return {value for call, value in (one[:2] for one in gpu.calls if one[0] == name)}

    assert [chosen(graph) for graph in graphs] == [{strategies.EAGER}] * 4 + [{strategies.LAZY}]
    assert chosen(graphs[-1]) == {strategies.EAGER}  # replaces the idle session
    assert chosen(graphs[-1]) == set()  # which is used again


# Kernels that were compiled


def test_kernels_are_kept_beside_the_engines_and_shared(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(folder, tmp_path / "bundle")
    path = copy / FOLDER / "rtx.kernels"
    path.unlink(missing_ok=True)
    bundle, gpu = load_on_simulated_gpu(monkeypatch, copy)
    bundle.run(GRAPH, 3)
    caches = {id(call[1]) for call in gpu.calls if call[0] == "IRuntimeConfig.set_runtime_cache"}
    assert len(caches) == 1  # all contexts of all engines
    content = path.read_bytes()
    bundle.run(LARGER, 3)
    assert len(path.read_bytes()) > len(content)
    bundle, gpu = load_on_simulated_gpu(monkeypatch, copy)  # as another process
    bundle.run(GRAPH, 3)
    assert ("IRuntimeCache.deserialize", path.read_bytes()) in gpu.calls


@pytest.mark.parametrize("trusted", [False, True])
def test_kernels_from_elsewhere_are_loaded_only_on_request(tmp_path: Path, trusted: bool) -> None:
    from tests.runtime.standins import Config

    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "rtx.kernels").write_bytes(b"kernels\nforeign")
    gpu = Device()
    RuntimeCache(tmp_path, "rtx", trusted=trusted).attach(RTX, Config(gpu))
    assert ("IRuntimeCache.deserialize" in gpu.names) == trusted


def test_the_calls_of_the_cache_exist_in_the_real_classes() -> None:
    for name in ("create_runtime_cache", "set_runtime_cache"):
        assert callable(getattr(trt.IRuntimeConfig, name))
    for name in ("serialize", "deserialize"):
        assert callable(getattr(trt.IRuntimeCache, name))


# Devices and processes


def test_another_device_can_be_chosen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = simulate_gpu(monkeypatch, folder)
    bundle = adar_runtime.load(folder, "tensorrt", device=1)
    assert bundle.run(GRAPH, 20, Final()).backend == "tensorrt"  # contexts check the current device
    assert gpu.current_device == 1
    with pytest.raises(BackendError, match="there is no CUDA device 2: choose 0 to 1"):
        adar_runtime.load(folder, "tensorrt", device=2)
    for wrong in (-1, 1.5, True, "1"):
        with pytest.raises(UsageError, match="device is "):
            adar_runtime.load(folder, "tensorrt", device=wrong)


def test_other_libraries_may_change_the_device_of_a_thread(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = simulate_gpu(monkeypatch, folder)
    loop = adar_runtime.load(folder, "tensorrt", device=1).loop(GRAPH, 40, Final())
    for _ in loop:
        gpu.cudaSetDevice(0)  # as a session of ONNX Runtime does; contexts check the current device
    gpu.cudaSetDevice(0)
    assert loop.result().backend == "tensorrt"


def test_a_thread_uses_the_device_of_its_bundle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    simulate_gpu(monkeypatch, folder)
    bundles = [adar_runtime.load(folder, "tensorrt", device=number) for number in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(bundle.run, GRAPH, 20, Final()) for bundle in bundles * 3]
        first, *others = [run.result().scores for run in runs]
    assert all(np.array_equal(first, other) for other in others)


def test_a_forked_process_is_told_to_open_the_bundle_itself(simulated, monkeypatch) -> None:
    bundle, gpu = simulated
    loop = bundle.loop(GRAPH, 5)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a child
    with pytest.raises(BackendError, match="forked after CUDA was initialised: open the bundle in the child"):
        for _ in loop:
            pass
    del gpu.calls[:]
    del loop, bundle
    gc.collect()
    assert "cudaFree" not in gpu.names


def test_asking_for_devices_does_not_initialise_cuda_in_this_process(
    tmp_path: Path,
) -> None:
    """With a driver that notes which process calls it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    source = """
#include <stdio.h>
#include <unistd.h>
int cuInit(unsigned flags) {
  FILE *f = fopen("%s", "a"); fprintf(f, "%%d\\n", getpid()); fclose(f); return 0;
}
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) {
  *value = which == 75 ? 8 + device : 6; return 0;
}
""" % (tmp_path / "calls")
    (tmp_path / "driver.c").write_text(source)
    driver = tmp_path / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", driver, tmp_path / "driver.c"], check=True)
    asked = "import os; from adar_runtime.backends.tensorrt import device; "
    asked += "print(device.device_problem(), os.getpid(), *device.compute_capabilities())"
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run(
        [sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    callers = (tmp_path / "calls").read_text().split()
    assert out[0] == "None"
    assert len(callers) == 1
    assert callers != [out[1]]
    assert out[2:] == ["86", "96"]


def test_a_driver_that_does_not_answer_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("python", 60)

    monkeypatch.setattr(device.subprocess, "run", hang)
    assert device.compute_capabilities.__wrapped__() == ()


# Settings of `tensorrt`, on a real configuration of tensorrt-rtx, which has the same class


def configured(options: BuildOptions):
    config = trt.Builder(RTX.log).create_builder_config()
    _configure_tensorrt(config, trt, options)
    return config


def test_activation_memory_of_tensorrt_follows_the_shapes() -> None:
    assert configured(BuildOptions()).get_preview_feature(trt.PreviewFeature.RUNTIME_ACTIVATION_RESIZE_10_10)


@pytest.mark.parametrize("version_compatible", [False, True])
def test_version_compatibility_is_an_option(version_compatible: bool) -> None:
    config = configured(BuildOptions(version_compatible=version_compatible))
    assert config.get_flag(trt.BuilderFlag.VERSION_COMPATIBLE) == version_compatible


@pytest.mark.parametrize("hardware", ["same-capability", "ampere-plus"])
def test_hardware_compatibility_is_an_option(hardware: str) -> None:
    """TensorRT-RTX ignores the level, and says so in its log."""
    RTX.log.messages.clear()
    messages = []
    record = RTX.log.messages.record
    RTX.log.messages.record = lambda message, **how: (messages.append(message), record(message, **how))
    try:
        configured(BuildOptions(hardware=hardware))
    finally:
        del RTX.log.messages.record
    assert any("setHardwareCompatibilityLevel" in message for message in messages)


def test_used_memory_is_what_all_processes_use(simulated) -> None:
    bundle, gpu = simulated
    before = cuda.used_gpu_memory(0)
    loop = bundle.loop(GRAPH, 3)
    assert cuda.used_gpu_memory(0) > before
    assert cuda.used_gpu_memory(7) is None
    del loop
    assert cudart.cudaMemGetInfo.__name__ in gpu.names
