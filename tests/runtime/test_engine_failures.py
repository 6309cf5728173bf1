"""Engines that cannot be built: the reason in one line, and no file that was not there before."""

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
from adar_runtime.backends.tensorrt.engines.build import Wish, build_engine, build_engines
from adar_runtime.backends.tensorrt.engines.profiles import PROFILES, Shapes
from adar_runtime.backends.tensorrt.engines.sidecar import read_engine, sidecars, write_engines
from adar_runtime.bundle.bundle import read_bundle
from adar_runtime.errors import EngineError, UsageError
from adar_runtime.interrupts import deferred_signals
from tests.runtime.acting import QUICK, TARGET


def scatter(operator: str) -> bytes:
    """A sum over scattered edges, as plain exporters write it."""
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
def test_a_scatter_add_is_refused_by_name(operator: str) -> None:
    with pytest.raises(EngineError) as caught:
        build_engine("cell", scatter(operator), TARGET, [], QUICK)
    message = str(caught.value)
    assert f"the node 'spread' ({operator}) of cell.onnx" in message
    assert "reduction" in message.lower()
    assert "export without --plain" in message
    assert "\n" not in message


def test_what_is_no_onnx_file_is_refused() -> None:
    with pytest.raises(EngineError, match=r"TensorRT cannot read cell\.onnx: .*; export the run again"):
        build_engine("cell", b"not a model", TARGET, [], QUICK)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda shapes: shapes | {"nodez": shapes["nodes"]}, "has a shape for 'nodez', which is no input"),
        (lambda shapes: {k: v for k, v in shapes.items() if k != "leaf_3"}, "has no shape for 'leaf_3'"),
        (lambda shapes: shapes | {"lead": Shapes((), (), ())}, "has a shape for 'lead'"),
    ],
)
def test_a_profile_of_other_inputs_is_refused(bundle_folder: Path, change, said: str) -> None:
    """TensorRT itself takes any name."""
    manifest, graphs = read_bundle(bundle_folder)
    shapes = change(PROFILES["small"].shapes(manifest.onnx_models["cell"].inputs))
    with pytest.raises(EngineError, match=said):
        build_engine("cell", graphs["cell"], TARGET, [shapes], QUICK)


def test_a_profile_that_contradicts_itself_is_refused(bundle_folder: Path) -> None:
    manifest, graphs = read_bundle(bundle_folder)
    shapes = PROFILES["small"].shapes(manifest.onnx_models["cell"].inputs)
    shapes["nodes"] = Shapes((50, 16), (50, 16), (60, 16))
    shapes["place"] = Shapes((70,), (80,), (90,))
    with pytest.raises(EngineError, match=r"could not build an engine of cell\.onnx|refused a profile"):
        build_engine("cell", graphs["cell"], TARGET, [shapes], QUICK)


def test_a_workspace_that_is_too_small_leaves_no_file(copy: Path) -> None:
    """The encoder could be built, the cell could not."""
    with pytest.raises(EngineError, match=r"could not build an engine of cell\.onnx.*--workspace"):
        build_engines(copy, *read_bundle(copy), replace(QUICK, workspace=2**26))
    assert not (copy / FOLDER).exists()


def test_a_failure_leaves_older_engines_as_they_were(engines_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(engines_folder, tmp_path / "bundle")
    before = {path: path.read_bytes() for path in (folder / FOLDER).iterdir()}
    with pytest.raises(EngineError):
        build_engines(folder, *read_bundle(folder), replace(QUICK, workspace=2**26))
    assert {path: path.read_bytes() for path in (folder / FOLDER).iterdir()} == before


def test_a_full_disk_leaves_no_file(
    engines_folder: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = {one.graph: (one, read_engine(engines_folder, one)) for one in sidecars(engines_folder)}
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


def raised() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("come", [raised, lambda: signal.raise_signal(signal.SIGINT)])
def test_ctrl_c_ends_a_build_and_leaves_no_file(copy: Path, come: Callable[[], None]) -> None:
    """No exception may cross TensorRT's code, whether the display raises it or the interpreter does."""
    told = []

    def interrupt(graph: str, done: float, _phase: str) -> None:
        told.append((graph, done))
        if graph == "cell" and done:
            come()

    with pytest.raises(KeyboardInterrupt):
        build_engines(copy, *read_bundle(copy), QUICK, interrupt)
    assert not (copy / FOLDER).exists()
    assert told[-1][0] == "cell"
    assert told[-1][1] < 0.5  # it gave up soon


def test_signals_are_heard_when_the_block_is_left() -> None:
    order = []
    with pytest.raises(KeyboardInterrupt):
        with deferred_signals() as waiting:
            signal.raise_signal(signal.SIGINT)
            order.append(list(waiting.arrived))
        order.append("never")
    assert order == [[signal.SIGINT]]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (Wish(profiles=()), "at least one profile"),
        (Wish(flavour="rtx", capabilities=(90,)), "--sm has 90: TensorRT-RTX builds for 80, 86, 89, 120"),
        (Wish(level=9), "optimization level is 9"),
        (Wish(workspace=0), "workspace"),
        (Wish(flavour="vulkan"), "there is no flavour 'vulkan' of TensorRT: choose tensorrt or rtx"),
    ],
)
def test_wishes_that_cannot_be(copy: Path, wish: Wish, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        build_engines(copy, *read_bundle(copy), wish)
