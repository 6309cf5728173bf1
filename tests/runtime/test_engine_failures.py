"""Failed builds: the error is one line, and no file changes."""

import errno
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tensorrt_rtx", reason="needs adar-deploy[rtx]")

from adar_runtime.backends.tensorrt.engines import FOLDER
from adar_runtime.backends.tensorrt.engines.build import build_engines
from adar_runtime.backends.tensorrt.engines.options import BuildOptions
from adar_runtime.backends.tensorrt.engines.plan import build_engine
from adar_runtime.backends.tensorrt.engines.profiles import PROFILES, Shapes
from adar_runtime.backends.tensorrt.engines.sidecar import read_engine, sidecars, write_engines
from adar_runtime.bundle.reading import read_bundle
from adar_runtime.errors import EngineError, UsageError
from adar_runtime.interrupts import deferred_signals
from tests.runtime.simulated_gpu import QUICK, TARGET


def scatter(operator: str) -> bytes:
    """A model with a scatter-add, as plain exporters write it."""
    index = ["m", 4] if operator == "ScatterElements" else ["m", 1]
    node = helper.make_node(operator, ["sums", "index", "messages"], ["out"], "spread", reduction="add")
    graph = helper.make_graph(
        [node],
        "scatter",
        [
            helper.make_tensor_value_info("sums", TensorProto.FLOAT, ["n", 4]),
            helper.make_tensor_value_info("index", TensorProto.INT64, index),
            helper.make_tensor_value_info("messages", TensorProto.FLOAT, ["m", 4]),
        ],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
def test_the_error_names_the_scatter_add_node(operator: str) -> None:
    with pytest.raises(EngineError) as caught:
        build_engine("cell", scatter(operator), TARGET, [], QUICK)
    message = str(caught.value)
    assert f"the node 'spread' ({operator}) of cell.onnx" in message
    assert "reduction" in message.lower()
    assert "export without --plain" in message
    assert "\n" not in message


def test_invalid_onnx_is_refused() -> None:
    with pytest.raises(EngineError, match=r"TensorRT cannot read cell\.onnx: .*; export the run again"):
        build_engine("cell", b"not a model", TARGET, [], QUICK)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda shapes: shapes | {"nodez": shapes["nodes"]},
            "has a shape for 'nodez', which is not an input",
        ),
        (lambda shapes: {k: v for k, v in shapes.items() if k != "leaf_3"}, "has no shape for 'leaf_3'"),
        (lambda shapes: shapes | {"lead": Shapes((), (), ())}, "has a shape for 'lead'"),
    ],
)
def test_a_profile_with_wrong_inputs_is_refused(bundle_folder: Path, change, message: str) -> None:
    """TensorRT itself accepts any name."""
    manifest, onnx_models = read_bundle(bundle_folder)
    shapes = change(PROFILES["small"].shapes(manifest.onnx_models["cell"].inputs))
    with pytest.raises(EngineError, match=message):
        build_engine("cell", onnx_models["cell"], TARGET, [shapes], QUICK)


def test_a_contradictory_profile_is_refused(bundle_folder: Path) -> None:
    manifest, onnx_models = read_bundle(bundle_folder)
    shapes = PROFILES["small"].shapes(manifest.onnx_models["cell"].inputs)
    shapes["nodes"] = Shapes((50, 16), (50, 16), (60, 16))
    shapes["place"] = Shapes((70,), (80,), (90,))
    with pytest.raises(EngineError, match=r"could not build an engine of cell\.onnx|refused a profile"):
        build_engine("cell", onnx_models["cell"], TARGET, [shapes], QUICK)


def test_too_small_a_workspace_leaves_no_file(copy: Path) -> None:
    """The encoder builds, the cell does not."""
    with pytest.raises(EngineError, match=r"could not build an engine of cell\.onnx.*--workspace"):
        build_engines(copy, *read_bundle(copy), replace(QUICK, workspace=9 * 2**20))
    assert not (copy / FOLDER).exists()


def test_a_failure_leaves_older_engines_unchanged(engines_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(engines_folder, tmp_path / "bundle")
    before = {path: path.read_bytes() for path in (folder / FOLDER).iterdir()}
    with pytest.raises(EngineError):
        build_engines(folder, *read_bundle(folder), replace(QUICK, workspace=9 * 2**20))
    assert {path: path.read_bytes() for path in (folder / FOLDER).iterdir()} == before


def test_a_full_disk_leaves_no_file(
    engines_folder: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = {one.onnx_model: (one, read_engine(engines_folder, one)) for one in sidecars(engines_folder)}
    real, written = Path.write_bytes, []

    def until_full(path: Path, content: bytes) -> int:
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        return real(path, content)

    before = sorted(copy.iterdir())
    monkeypatch.setattr(Path, "write_bytes", until_full)
    with pytest.raises(UsageError, match="No space left"):
        write_engines(copy, built)
    assert sorted(copy.iterdir()) == before


def raise_interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("interrupt", [raise_interrupt, lambda: signal.raise_signal(signal.SIGINT)])
def test_ctrl_c_ends_a_build_and_leaves_no_file(copy: Path, interrupt: Callable[[], None]) -> None:
    """No exception may pass through TensorRT, neither from the progress callback nor from a signal."""
    reports = []

    def on_progress(onnx_model: str, done: float, _phase: str) -> None:
        reports.append((onnx_model, done))
        if onnx_model == "cell" and done:
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        build_engines(copy, *read_bundle(copy), QUICK, on_progress)
    assert not (copy / FOLDER).exists()
    assert reports[-1][0] == "cell"
    assert reports[-1][1] < 0.5  # the build stopped soon


def test_signals_are_handled_at_the_end_of_the_block() -> None:
    order = []
    with pytest.raises(KeyboardInterrupt):
        with deferred_signals() as deferred:
            signal.raise_signal(signal.SIGINT)
            order.append(list(deferred.arrived))
        order.append("never")
    assert order == [[signal.SIGINT]]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BuildOptions(profiles=()), "at least one profile"),
        (
            BuildOptions(package="rtx", capabilities=(90,)),
            "--sm contains 90, but TensorRT-RTX builds for 80, 86, 89, 120",
        ),
        (BuildOptions(level=9), "optimization level is 9"),
        (BuildOptions(workspace=0), "workspace"),
        (BuildOptions(package="vulkan"), "there is no TensorRT package 'vulkan': choose tensorrt or rtx"),
    ],
)
def test_invalid_options_are_refused(copy: Path, options: BuildOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_engines(copy, *read_bundle(copy), options)
