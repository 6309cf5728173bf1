"""Hostile ONNX files. The manifest has their hashes, as an attacker would write it."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import adar_runtime
from adar_runtime import Bundle, Graph
from adar_runtime.backends.onnxruntime.sessions import session_of
from adar_runtime.bundle import onnx_guard
from adar_runtime.bundle.onnx_facts import metadata_of
from adar_runtime.errors import BackendError, BundleError
from tests.bundles import replace_model


@pytest.fixture
def copy(bundle_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(bundle_folder, tmp_path / "bundle")


@pytest.fixture
def cell(bundle_folder: Path) -> onnx.ModelProto:
    return onnx.load(bundle_folder / "cell.onnx")


def external(location: str) -> Callable[[onnx.ModelProto], None]:
    """Weights in another file."""

    def change(model: onnx.ModelProto) -> None:
        weight = model.graph.initializer[0]
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)

    return change


def external_without_flag(model: onnx.ModelProto) -> None:
    """Another file is named, but the flag for external data is not set."""
    model.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")


def foreign(domain: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.opset_import.add(domain=domain, version=1)
        model.graph.node.append(helper.make_node("Evil", ["nodes"], ["x"], domain=domain))

    return change


def endless(model: onnx.ModelProto) -> None:
    """A loop without an end condition."""
    body = helper.make_graph([], "body", [], [])
    model.graph.node.append(helper.make_node("Loop", ["", "", "nodes"], ["x"], body=body))


def external_sparse() -> onnx.SparseTensorProto:
    sparse = onnx.SparseTensorProto(dims=[4], indices=numpy_helper.from_array(np.array([0])))
    values = onnx.TensorProto(name="v", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    values.external_data.add(key="location", value="/etc/passwd")
    sparse.values.CopyFrom(values)
    return sparse


def sparse_attribute(model: onnx.ModelProto) -> None:
    node = model.graph.node.add(op_type="Constant", output=["s"])
    node.attribute.add(name="sparse_value", type=11).sparse_tensor.CopyFrom(external_sparse())


def sparse_attributes(model: onnx.ModelProto) -> None:
    node = model.graph.node.add(op_type="Constant", output=["s"])
    node.attribute.add(name="sparse_value", type=12).sparse_tensors.append(external_sparse())


def sparse_initializer(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.append(external_sparse())


def training(model: onnx.ModelProto) -> None:
    model.training_info.add().algorithm.CopyFrom(model.graph)


def function_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="a", ref_attr_name="b", type=1)


def session_settings(model: onnx.ModelProto) -> None:
    """ONNX Runtime reads them if the variable ORT_LOAD_CONFIG_FROM_MODEL is 1."""
    model.metadata_props.add(key="ort_config", value='{"session_options": {"enable_profiling": 1}}')


ATTACKS = {
    "weights by an absolute path": (external("/etc/passwd"), "another file"),
    "weights in the folder above": (external("../../secret"), "another file"),
    "weights in a file beside it": (external("weights.bin"), "another file"),
    "weights in another file, without the flag": (external_without_flag, "another file"),
    "operators of an unknown domain": (foreign("com.evil"), "'com.evil'"),
    "operators of ONNX Runtime": (foreign("com.microsoft"), "'com.microsoft'"),
    "operators for training": (foreign("ai.onnx.preview.training"), "'ai.onnx.preview.training'"),
    "a loop without end": (endless, "a nested graph"),
    "an attribute of sparse weights": (sparse_attribute, "sparse weights"),
    "attributes of sparse weights": (sparse_attributes, "sparse weights"),
    "sparse weights": (sparse_initializer, "sparse weights"),
    "training steps": (training, "training steps"),
    "settings of ONNX Runtime": (session_settings, "settings for ONNX Runtime"),
    "attributes of a function": (function_attribute, "function attributes"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_features_that_no_bundle_needs_are_refused(copy: Path, cell: onnx.ModelProto, name: str) -> None:
    change, message = ATTACKS[name]
    change(cell)
    replace_model(copy, "cell", cell.SerializeToString())
    with pytest.raises(BundleError, match=message):
        adar_runtime.load(copy)


def test_onnx_runtimes_own_format_is_refused(copy: Path, cell: onnx.ModelProto, tmp_path: Path) -> None:
    """ONNX Runtime detects this format by its content and would skip everything the guard checked."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "cell.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(cell.SerializeToString(), options, providers=["CPUExecutionProvider"])
    content = (tmp_path / "cell.ort").read_bytes()
    replace_model(copy, "cell", content)
    with pytest.raises(BundleError, match="own format"):
        adar_runtime.load(copy)
    with pytest.raises(BackendError, match="cannot load"):  # also without the guard
        session_of(content, "CPUExecutionProvider", threads=None, spins=True)


def wire(field: int, content: bytes) -> bytes:
    """One protobuf field of bytes, shorter than 128."""
    key, out = field << 3 | 2, b""
    while key >= 128:
        out, key = out + bytes([key & 127 | 128]), key >> 7
    return out + bytes([key, len(content)]) + content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 graphs"),
        (wire(2, b"somebody"), "0 graphs"),
        (wire(7, b"") * 2, "2 graphs"),
        (wire(0, b"anything") + wire(7, b""), "field 0"),
        (wire(99, b"anything") + wire(7, b""), "field 99"),
        (wire(2**29 + 7, b"") + wire(7, b""), "needs"),  # protobuf drops the upper bits and reads a graph
        (wire(7, b"")[:-1], "not a complete"),
        (b"\x0b", "not a complete"),
        (b"\xff" * 11, "not a complete"),
    ],
)
def test_ambiguous_wire_format_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(BundleError) as error:
        onnx_guard.check("cell.onnx", content)
    assert message in str(error.value)


def repeated(field: int, content: bytes, times: int) -> bytes:
    """A graph that repeats one field."""
    graph = wire(field, content) * times
    length, out = len(graph), b"\x3a"
    while length >= 128:
        out, length = out + bytes([length & 127 | 128]), length >> 7
    return out + bytes([length]) + graph


OPERATOR = wire(1, b"x") + wire(2, b"y") + wire(4, b"Neg")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (repeated(1, OPERATOR, 1_000_000), "more than 10,000 operators"),
        (repeated(10, b"", 1_000_000), "more than 200,000 parts"),
        (repeated(5, b"\x08\x01" * 60, 20_000), "more than 200,000 parts"),
        (repeated(5, wire(1, b"\xff" * 9 + b"\x01") * 3, 1), "more than 2,147,483,648 numbers"),
        (repeated(1, wire(4, b"\xff\xfe"), 1), "not a complete ONNX file"),
    ],
    ids=["a million operators", "a million inputs", "a million sides", "2^63 numbers", "an invalid name"],
)
def test_a_model_that_is_too_large_to_check_is_refused_quickly(content: bytes, message: str) -> None:
    started = time.perf_counter()
    with pytest.raises(BundleError) as error:
        onnx_guard.check("cell.onnx", content)
    assert message in str(error.value)
    assert time.perf_counter() - started < 2


def far_away(model: onnx.ModelProto) -> None:
    """Every message is read from a node that does not exist."""
    model.graph.initializer.append(numpy_helper.from_array(np.array(10**9, np.int32), "far"))
    model.graph.node.insert(0, helper.make_node("Add", ["leaf_0", "far"], ["elsewhere"]))
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[1] == "leaf_0":
            node.input[1] = "elsewhere"


def huge(model: onnx.ModelProto) -> None:
    """A petabyte of zeros."""
    model.graph.initializer.append(numpy_helper.from_array(np.array([10**7, 10**8]), "sides"))
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["sides"], ["zeros"]))
    model.graph.node.insert(1, helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=0))
    model.graph.node.remove(next(node for node in model.graph.node if node.output[0] == "alignment"))
    model.graph.node.append(helper.make_node("Identity", ["sum"], ["alignment"]))


@pytest.mark.parametrize("change", [far_away, huge])
def test_a_failure_during_inference_is_a_backend_error(
    copy: Path, cell: onnx.ModelProto, board: Graph, change, capfd: pytest.CaptureFixture[str]
) -> None:
    change(cell)
    replace_model(copy, "cell", cell.SerializeToString())
    with pytest.raises(BackendError, match="could not run"):
        Bundle(copy, "onnxruntime-cpu", made_here=True).run(board, 3)  # past the check of the topology
    assert capfd.readouterr().err == ""  # ONNX Runtime's own log lines


def test_a_failed_allocation_prints_nothing(bundle_folder: Path) -> None:
    """ONNX Runtime's Python code prints some lines if a session cannot be made, whatever the log level."""
    code = """
import resource, sys
from pathlib import Path
import adar_runtime.backends.onnxruntime.backend
from adar_runtime import AdarError, load
mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + 4 * 2**20,) * 2)
try:
    load(sys.argv[1], "onnxruntime-cpu", threads=8)  # the stacks of eight threads do not fit into 4 MB
except AdarError as error:
    sys.exit(3 if len(str(error).splitlines()) == 1 else 4)
"""
    command = [sys.executable, "-c", code, str(bundle_folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def test_inputs_that_differ_from_the_manifest(copy: Path, cell: onnx.ModelProto) -> None:
    for port in [*cell.graph.input, *cell.graph.node]:
        if port.name == "weight":
            port.name = "renamed"
        if isinstance(port, onnx.NodeProto):
            port.input[:] = ["renamed" if name == "weight" else name for name in port.input]
    replace_model(copy, "cell", cell.SerializeToString())
    with pytest.raises(BundleError, match=r"the actual inputs of cell\.onnx"):
        adar_runtime.load(copy)


@pytest.mark.parametrize("entry", [b"\x0a\x7f", b"\x0a\x01\xff", b"\x0a", b"\x0f"])
def test_metadata_that_is_not_text(entry: bytes) -> None:
    with pytest.raises(BundleError, match="metadata that is not text"):
        metadata_of(b"\x72" + bytes([len(entry)]) + entry)
