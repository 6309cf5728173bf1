"""Precisions: the types of the exported values, and the differences that they cause."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, shape_inference

from adar_export import export_bundle
from adar_export.bf16_emulation import emulate
from adar_export.onnx_models import build_onnx_models
from adar_export.precision import PRECISIONS, precision_of
from adar_export.validate import TOLERANCES
from adar_runtime import Final, load
from adar_runtime.bundle.manifest import PRECISIONS as NAMES
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import UsageError
from adar_train import AdaR, ModelConfig, load_run
from tests.export.cells import assert_close, by_onnxruntime, random_call
from tests.helpers import awake, random_graph

EXACT_OPERATORS = ("LayerNormalization", "Softmax", "ReduceSum", "ReduceSumSquare", "ReduceMax", "Sqrt")
SMALL = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


def model() -> AdaR:
    return awake(ModelConfig(6, 3, 32, 8))


def types_in(proto: onnx.ModelProto) -> dict[str, int]:
    graph = shape_inference.infer_shapes(proto, strict_mode=True).graph
    values = [*graph.value_info, *graph.input, *graph.output]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {weight.name: weight.data_type for weight in graph.initializer}


@pytest.mark.parametrize("name", SMALL)
def test_products_have_the_precision_and_other_values_are_float32(name: str) -> None:
    cell = build_onnx_models(model(), 17, PRECISIONS[name])["cell"]
    types, small = types_in(cell), SMALL[name]
    *large, margin = [node for node in cell.graph.node if node.op_type == "Gemm"]
    assert all(types[value] == small for node in large for value in (*node.input, *node.output))
    assert types[margin.output[0]] == TensorProto.FLOAT  # of the alignment
    for node in cell.graph.node:
        if node.op_type in EXACT_OPERATORS:
            assert all(types[v] in (TensorProto.FLOAT, TensorProto.INT64) for v in node.input), node.name
    floats = {
        value.name: value.type.tensor_type.elem_type for value in [*cell.graph.input, *cell.graph.output]
    }
    assert set(floats.values()) == {TensorProto.FLOAT, TensorProto.INT32}  # inputs and outputs are float32


def test_int8_stores_bytes_and_multiplies_in_float32() -> None:
    cells = {
        name: build_onnx_models(model(), 17, PRECISIONS[name])["cell"] for name in ("fp32", "int8", "fp16")
    }
    sizes = {name: cell.ByteSize() for name, cell in cells.items()}
    assert sizes["int8"] < sizes["fp16"] < sizes["fp32"]
    types = types_in(cells["int8"])
    scaled = [node for node in cells["int8"].graph.node if node.op_type == "DequantizeLinear"]
    assert scaled
    assert all(types[node.input[0]] == TensorProto.INT8 for node in scaled)
    assert all(types[node.output[0]] == TensorProto.FLOAT for node in scaled)


@pytest.mark.parametrize(("name", "tolerance"), [("fp16", 1e-2), ("bf16", 5e-2), ("int8", 5e-2)])
def test_one_step_is_close_to_fp32(name: str, tolerance: float) -> None:
    ours = model()
    edges = random_graph(200, 900).edge_index
    call = random_call(ours, edges, 200, 3, 0, (0.125, 0.0, 0.125))
    feeds = call.feeds(np.float32)
    cells = [build_onnx_models(ours, 17, PRECISIONS[one])["cell"] for one in ("fp32", name)]
    exact, got = (by_onnxruntime(emulate(cell), feeds) for cell in cells)  # changes bf16 models only
    assert_close(exact, got, tolerance)
    assert not np.array_equal(exact["next_nodes"], got["next_nodes"])


def test_the_emulation_has_the_error_of_the_real_type() -> None:
    """A CPU cannot run bf16, but it can run fp16 and its emulation, so the method is tested with fp16.

    The two differ a little, because ONNX Runtime leaves out a rounding between two products.
    """
    ours = model()
    call = random_call(ours, random_graph(200, 900).edge_index, 200, 3, 0, (0.125, 0.0, 0.125))
    cell = build_onnx_models(ours, 17, PRECISIONS["fp16"])["cell"]
    pair = cell, emulate(cell, TensorProto.FLOAT16)
    real, emulated = (by_onnxruntime(one, call.feeds(np.float32)) for one in pair)
    types = types_in(pair[1])
    assert {
        node.op_type
        for node in pair[1].graph.node
        if TensorProto.FLOAT16 in [types[value] for value in (*node.input, *node.output) if value]
    } == {"Cast"}
    exact = by_onnxruntime(build_onnx_models(ours, 17)["cell"], call.feeds(np.float32))
    lost = [np.abs(side["nodes_velocity"] - exact["nodes_velocity"]).max() for side in (real, emulated)]
    assert lost[0] / 4 < lost[1] < 4 * lost[0]


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8"])
def test_a_bundle_records_the_differences_of_its_precision(
    name: str, described_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    manifest = export_bundle(load_run(described_run), out, precision=name, steps=(1, 20))
    assert manifest.precision == read_manifest(out).precision == name
    parity = manifest.parity
    assert 1e-7 < parity["needed"] <= parity["tolerance"] == TOLERANCES[name]
    cell = onnx.load(out / "cell.onnx")
    small = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "int8": TensorProto.INT8}[name]
    assert small in {weight.data_type for weight in cell.graph.initializer}
    if name != "bf16":  # ONNX Runtime has no bf16 kernels on the CPU
        result = load(out, "onnxruntime-cpu").run(random_graph(30, 60), budget=5, stop=Final())
        assert np.isfinite(result.scores).all()


def test_the_names_equal_those_of_the_manifest() -> None:
    assert (*PRECISIONS,) == NAMES
    assert set(TOLERANCES) == set(NAMES)
    with pytest.raises(UsageError, match="fp32, fp16, bf16, int8"):
        precision_of("fp8")


def test_every_precision_has_every_opset() -> None:
    from adar_export.opsets import OLDEST, newest

    for opset in (OLDEST, newest()):
        for precision in PRECISIONS.values():
            cell = build_onnx_models(model(), opset, precision)["cell"]
            assert [helper.make_opsetid("", opset)] == list(cell.opset_import)
