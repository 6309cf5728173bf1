"""The loop on a simulated device (`standins.py`): its results, and the order of its calls."""

import re
import shutil
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorrt_rtx", reason="needs adar-deploy[rtx]")
pytest.importorskip("cuda.bindings", reason="needs adar-deploy[rtx]")

from cuda.bindings import runtime as cudart

import adar_runtime
from adar_runtime import AdamsBashforth2, Adaptive, Bundle, Euler, Final, Peak
from adar_runtime.backends.tensorrt import cuda
from adar_runtime.backends.tensorrt.device import device_problem
from adar_runtime.backends.tensorrt.engines.clock import NEXT_TICK, ROWS, TICK, clock_model, row_width
from adar_runtime.backends.tensorrt.session import BLOCK
from adar_runtime.bundle import manifest as manifests
from adar_runtime.bundle.signature import STATE, STEP
from adar_runtime.errors import BackendError
from tests.helpers import random_graph
from tests.runtime.simulated_gpu import load_on_simulated_gpu, with_engines
from tests.runtime.standins import Device, arguments_of


@pytest.fixture(scope="module")
def folder(described_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_engines(described_bundle, tmp_path_factory.mktemp("engines") / "bundle")


@pytest.fixture
def simulated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bundle, Device]:
    return load_on_simulated_gpu(monkeypatch, folder)


@pytest.fixture(scope="module")
def reference(described_bundle: Path) -> Bundle:
    return adar_runtime.load(described_bundle, "onnxruntime-cpu", threads=1)


GRAPH = random_graph(70, 300)
LIKE_IT = random_graph(70, 300, seed=1)
LARGER = random_graph(90, 500)


def assert_same(ours, reference) -> None:
    assert ours.stop_reason is reference.stop_reason
    assert ours.best_step == reference.best_step
    assert ours.times == reference.times
    np.testing.assert_allclose(ours.alignment, reference.alignment, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.scores, reference.scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 100, ROWS + 2 * BLOCK + 3])
def test_results_equal_those_of_onnx_runtime(simulated, reference: Bundle, steps: int) -> None:
    ours, theirs = (bundle.run(GRAPH, steps, Final()) for bundle in (simulated[0], reference))
    assert_same(ours, theirs)
    assert str(ours.capture) == "yes"
    assert theirs.capture is None


def test_nodes_are_smoothed_before_the_first_step(
    folder: Path, tmp_path: Path, reference: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    smooth = shutil.copytree(folder, tmp_path / "bundle")
    manifest = replace(reference.manifest, smoothing=2)
    (smooth / manifests.FILE_NAME).write_text(manifest.to_json())
    simulated, _ = load_on_simulated_gpu(monkeypatch, smooth)
    cpu = adar_runtime.load(smooth, "onnxruntime-cpu", threads=1)
    for graph in (GRAPH, LARGER):
        first, expected, alone = (
            next(bundle.loop(graph, 5, Final())).state()["nodes"] for bundle in (simulated, cpu, reference)
        )
        np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-5)
        assert np.abs(first - alone).max() > 0.01
        assert_same(simulated.run(graph, 20, Final()), cpu.run(graph, 20, Final()))


@pytest.mark.parametrize("solver", [Euler(), AdamsBashforth2(calls=20), Adaptive(tolerance=1e-2)])
@pytest.mark.parametrize("stop", [Final(), Peak(patience=3), Peak(patience=40, fallback=0.5)])
def test_every_solver_and_rule_gives_the_same_result(simulated, reference: Bundle, solver, stop) -> None:
    for graph in (GRAPH, LARGER, GRAPH):
        assert_same(simulated[0].run(graph, 50, stop, solver), reference.run(graph, 50, stop, solver))


@pytest.mark.parametrize("peak", [0.02, 0.3, 0.52, 0.97])
def test_a_kept_state_is_restored_from_any_place_in_a_block(
    simulated, reference: Bundle, peak: float
) -> None:
    """A rule that keeps the state at one time, in the middle of a block, and continues to the end."""

    class KeepsOne(Final):
        def watch(self, sight):
            return super().watch(sight)._replace(keep=abs(sight.time - peak) < 0.006)

    for budget in (100, 101):
        ours, theirs = (b.run(GRAPH, budget, KeepsOne()) for b in (simulated[0], reference))
        assert_same(ours, theirs)


def test_the_state_can_be_read_at_every_step(simulated, reference: Bundle) -> None:
    loops = [bundle.loop(GRAPH, 40, Peak(patience=50)) for bundle in (simulated[0], reference)]
    for ours, theirs in zip(*loops, strict=True):
        if ours.index in (3, 4, 20, 21, 37):
            np.testing.assert_allclose(ours.scores(), theirs.scores(), rtol=1e-4, atol=1e-5)
            for name in STATE:
                np.testing.assert_allclose(ours.state()[name], theirs.state()[name], rtol=1e-4, atol=1e-5)
    assert_same(*(loop.result() for loop in loops))


def test_an_intermediate_result_does_not_change_later_steps(simulated, reference: Bundle) -> None:
    loops = [bundle.loop(GRAPH, 60, Peak(patience=100)) for bundle in (simulated[0], reference)]
    for ours, theirs in zip(*loops, strict=True):
        if ours.index in (2, 19, 45):
            assert_same(*(loop.result() for loop in loops))
        assert ours.alignment == pytest.approx(theirs.alignment, rel=1e-4, abs=1e-6)
    assert_same(*(loop.result() for loop in loops))


def test_a_loop_can_be_paused_and_resumed(simulated, reference: Bundle) -> None:
    results = []
    for bundle in (simulated[0], reference):
        loop = bundle.loop(GRAPH, 30, Final())
        for step in loop:
            if step.index == 9:
                break
        loop.resume(200)
        for _ in loop:
            pass
        results.append(loop.result())
    assert_same(*results)


def test_two_graphs_at_once_have_separate_states(simulated, reference: Bundle) -> None:
    ours, theirs = ([b.loop(g, 25, Final()) for g in (GRAPH, LIKE_IT)] for b in (simulated[0], reference))
    for _ in zip(*ours, strict=True):
        pass
    for _ in zip(*theirs, strict=True):
        pass
    for left, right in zip(ours, theirs, strict=True):
        assert_same(left.result(), right.result())


def test_the_messages_of_a_hub_are_summed_over_every_table(simulated, reference: Bundle) -> None:
    """All nodes send to one node: its neighbour list spans many rows, whose sums are joined."""
    around = random_graph(3000, 6000)
    nodes = np.arange(around.nodes)
    edges = np.concatenate([around.edge_index, np.stack([nodes, 0 * nodes])], axis=1)
    hub = replace(around, edge_index=edges)
    assert_same(simulated[0].run(hub, 20, Final()), reference.run(hub, 20, Final()))


@pytest.mark.parametrize("level", ["node", "edge", "graph"])
def test_every_level_gives_the_same_result(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adar_export import export_bundle
    from adar_train import Fitted, ModelConfig, TrainConfig, load_run, save_run
    from tests.helpers import awake

    graph = random_graph(30, 90, level=level)
    model = awake(ModelConfig(graph.width, None, hidden=16, proxies=4, level=level))
    save_run(
        tmp_path / "run", Fitted(model, {"metric": "accuracy", "split": 0}, []), graph, ["r"], TrainConfig()
    )
    export_bundle(load_run(tmp_path / "run"), tmp_path / "bundle", steps=(1,))
    bundle, _ = load_on_simulated_gpu(monkeypatch, with_engines(tmp_path / "bundle", tmp_path / "engines"))
    reference = adar_runtime.load(tmp_path / "bundle", "onnxruntime-cpu")
    assert_same(bundle.run(graph, 5, Final()), reference.run(graph, 5, Final()))


def test_weighted_edges_give_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table has a table of weights of the same shape, so engines and profiles have more inputs."""
    from adar_export import export_bundle
    from adar_train import Fitted, ModelConfig, TrainConfig, load_run, save_run
    from tests.helpers import awake

    plain = random_graph(60, 400)
    weights = np.random.default_rng(0).uniform(0.1, 3.0, plain.edges)
    graph = replace(plain, edge_weight=weights.astype(np.float32))
    model = awake(ModelConfig(graph.width, None, hidden=16, proxies=4, edge_weights=True))
    fitted = Fitted(model, {"metric": "accuracy", "split": 0}, [])
    save_run(tmp_path / "run", fitted, graph, ["r"], TrainConfig())
    export_bundle(load_run(tmp_path / "run"), tmp_path / "bundle", steps=(1,))
    bundle, _ = load_on_simulated_gpu(monkeypatch, with_engines(tmp_path / "bundle", tmp_path / "engines"))
    reference = adar_runtime.load(tmp_path / "bundle", "onnxruntime-cpu")
    ours, theirs = (one.run(graph, 20, Final()) for one in (bundle, reference))
    assert_same(ours, theirs)
    assert np.abs(ours.scores - bundle.run(plain, 20, Final()).scores).max() > 1e-3


# The order of calls.


def position(names: list[str], name: str, after: int = 0) -> int:
    return names.index(name, after)


def test_every_call_exists_in_the_real_classes(simulated) -> None:
    """The stand-in checks this too; here it is checked again for the recorded calls."""
    import tensorrt_rtx as trt

    bundle, device = simulated
    for solver in (Euler(), Adaptive(tolerance=1e-2)):
        bundle.run(GRAPH, 40, Peak(patience=2), solver)
    called = {(name, len(arguments)) for name, *arguments in device.calls}
    assert len(called) > 25
    for name, count in called:
        where = trt if "." in name else cudart
        real = attrgetter(name.removesuffix(" ="))(where)
        assert name.endswith("=") or any(few <= count <= many for few, many in arguments_of(real)), name


@pytest.mark.parametrize(
    ("files", "prefix", "real"),
    [
        (["cuda.py"], r"self\._api", "cuda.bindings.runtime"),
        (
            ["engines/plan.py", "engines/packages.py", "loaded_engines.py", "backend.py"],
            "trt",
            "tensorrt_rtx",
        ),
    ],
)
def test_every_name_in_the_source_exists_in_the_real_modules(
    files: list[str], prefix: str, real: str
) -> None:
    """Also for code that no test runs."""
    source = "".join((Path(cuda.__file__).parent / file).read_text() for file in files)
    names = set(re.findall(rf"\b{prefix}((?:\.[A-Za-z]\w+)+)", source))
    names |= {f".{name}" for name in re.findall(r'_call\(\s*"(\w+)"', source)}
    assert len(names) > 8
    for name in names - {".trt", ".log", ".log.messages", ".log.messages.clear", ".log.messages.reason"}:
        assert attrgetter(name[1:])(import_module(real)), name


@pytest.mark.skipif(device_problem() is None, reason="on a GPU these addresses are invalid")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cudaMalloc", (256,)),
        ("cudaFree", (256,)),
        ("cudaMallocHost", (256,)),
        ("cudaMemcpyAsync", (256, 512, 4, cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice, 7)),
        ("cudaMemsetAsync", (256, 0, 4, 7)),
        ("cudaStreamSynchronize", (7,)),
        ("cudaStreamCreateWithFlags", (cudart.cudaStreamNonBlocking,)),
        ("cudaStreamBeginCapture", (7, cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal)),
        ("cudaStreamEndCapture", (7,)),
        ("cudaDeviceGetAttribute", (cudart.cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor, 0)),
        ("cudaSetDevice", (0,)),
        ("cudaMemGetInfo", ()),
    ],
)
def test_the_real_calls_accept_these_arguments(name: str, arguments: tuple) -> None:
    """Without a driver the calls do nothing and return an error code."""
    error, *_ = getattr(cudart, name)(*arguments)
    assert int(error)
    _, message = cudart.cudaGetErrorString(error)
    assert message.decode()


def test_warm_up_comes_before_capture_and_capture_before_the_first_state(simulated) -> None:
    bundle, device = simulated
    bundle.loop(GRAPH, 10)
    names = device.names
    begin, end = position(names, "cudaStreamBeginCapture"), position(names, "cudaStreamEndCapture")
    runs = [index for index, name in enumerate(names) if name == "IExecutionContext.execute_async_v3"]
    before = [index for index in runs if index < begin]
    assert len(before) == 4  # clock and cell, on both sides
    assert len([index for index in runs if begin < index < end]) == 2 * BLOCK
    assert "cudaStreamSynchronize" in names[before[-1] : begin]
    encoded = next(index for index in runs if index > end)
    assert "cudaMemsetAsync" in names[end:encoded]  # the buffers are cleared before the encoder writes
    assert "cudaGraphLaunch" not in names


def test_after_a_failed_capture_steps_are_queued(
    folder: Path, reference: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, device = load_on_simulated_gpu(monkeypatch, folder)
    begin, end = type(device).act_cudaStreamBeginCapture, type(device).act_cudaStreamEndCapture

    def begin_then_fail(self, stream, mode):
        self.fail.add("execute")
        return begin(self, stream, mode)

    def end_and_recover(self, stream):
        self.fail.clear()
        return end(self, stream)

    monkeypatch.setattr(type(device), "act_cudaStreamBeginCapture", begin_then_fail)
    monkeypatch.setattr(type(device), "act_cudaStreamEndCapture", end_and_recover)
    assert_same(bundle.run(GRAPH, 40, Final()), reference.run(GRAPH, 40, Final()))
    assert "cudaGraphLaunch" not in device.names
    begin = position(device.names, "cudaStreamBeginCapture")
    after = [name for name in device.names[begin:] if "Free" not in name]
    assert after[:5] == [
        "cudaStreamBeginCapture",
        "IExecutionContext.execute_async_v3",
        "cudaStreamEndCapture",
        "cudaGraphDestroy",
        "cudaGetLastError",
    ]
    assert device.capturing is None


@pytest.mark.parametrize("call", ["cudaStreamBeginCapture", "cudaGraphInstantiate"])
def test_without_capture_in_the_driver_steps_are_queued(
    folder: Path, reference: Bundle, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    bundle, device = load_on_simulated_gpu(monkeypatch, folder)
    device.fail.add(call)
    result = bundle.run(GRAPH, 40, Final())
    assert_same(result, reference.run(GRAPH, 40, Final()))
    assert "cudaGraphLaunch" not in device.names
    assert result.capture is not None
    assert result.capture.why.startswith(f"CUDA failed in {call}: ")


def test_an_engine_that_does_not_run_raises_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, device = load_on_simulated_gpu(monkeypatch, folder)
    device.fail.add("execute")
    with pytest.raises(BackendError, match="the engine of the clock refused to run"):
        bundle.run(GRAPH, 5)


def test_an_engine_that_cannot_be_captured_is_queued(
    folder: Path, reference: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, device = load_on_simulated_gpu(monkeypatch, folder)
    device.fail.add("capture")
    result = bundle.run(GRAPH, 40, Final())
    assert_same(result, reference.run(GRAPH, 40, Final()))
    assert "cudaStreamBeginCapture" not in device.names
    assert str(result.capture) == "no: TensorRT says that the engine of the clock cannot be captured"


def test_only_a_new_shape_is_captured_again(simulated) -> None:
    bundle, device = simulated
    """Sessions of both shapes are kept."""
    for graph, captures in ((GRAPH, 1), (GRAPH, 1), (LARGER, 2), (LARGER, 2), (GRAPH, 2)):
        bundle.run(graph, 20)
        assert device.names.count("cudaStreamBeginCapture") == captures


def test_the_two_contexts_swap_their_buffers(simulated) -> None:
    bundle, device = simulated
    bundle.loop(GRAPH, 10)
    bound = [call[1:] for call in device.calls if call[0] == "IExecutionContext.set_tensor_address"]
    at = {name: [address for one, address in bound if one == name] for name, _ in bound}
    for name in STATE:
        ins, outs = at[name][:2], at[f"next_{name}"]
        assert len(outs) == 2
        assert ins == outs[::-1]
        assert at[f"previous_{name}_velocity"] == at[f"{name}_velocity"][::-1]
    assert at[TICK] == at[NEXT_TICK][::-1]
    for name in ("step_code", *STEP):
        assert len(set(at[name])) == 1  # both clocks write where both cells read


def test_the_host_is_idle_between_replays(simulated) -> None:
    """For each block of a full table: one copy that saves its start, one replay and one wait."""
    bundle, device = simulated
    loop = bundle.loop(GRAPH, ROWS, Final())
    next(loop)
    next(loop)
    del device.calls[:]
    for _ in loop:
        pass
    assert device.names == ["cudaMemcpyAsync", "cudaGraphLaunch", "cudaStreamSynchronize"] * (
        ROWS // BLOCK - 1
    )


def test_memory_does_not_grow(simulated) -> None:
    bundle, device = simulated
    for graph in (GRAPH, LARGER, GRAPH):
        bundle.run(graph, 20)
    before = len(device.device_memory), len(device.host_memory)
    for _ in range(30):
        bundle.run(GRAPH, 3)
    assert (len(device.device_memory), len(device.host_memory)) == before
    del bundle


def test_a_failing_device_raises_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, device = load_on_simulated_gpu(monkeypatch, folder)
    device.fail.add("cudaMalloc")
    with pytest.raises(BackendError, match=r"^CUDA failed in cudaMalloc: .*$"):
        bundle.run(GRAPH, 5)


def test_encoding_in_blocks_gives_the_same_state(simulated, reference: Bundle, monkeypatch) -> None:
    from adar_runtime.backends import prepared_graph

    monkeypatch.setattr(prepared_graph, "ENCODER_ROWS", 1)
    large = random_graph(300, 900)
    assert_same(simulated[0].run(large, 3, Final()), reference.run(large, 3, Final()))


def test_the_clock_reads_its_table_row_by_row() -> None:
    import onnx
    import onnxruntime as ort

    model = onnx.load_from_string(clock_model(8))
    onnx.checker.check_model(model, full_check=True)
    clock = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    table = np.random.default_rng(0).normal(size=(ROWS, row_width(8))).astype(np.float32)
    tick = np.array([0], np.int32)
    for row in range(ROWS):
        code, *numbers, tick = clock.run(None, {"table": table, "tick": tick})
        assert np.array_equal(np.concatenate([code, *numbers], axis=1)[0], table[row])
        assert tick == row + 1
