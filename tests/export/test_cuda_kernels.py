"""Every operator that an export can contain has a kernel in ONNX Runtime's CUDA provider.

The facts are in `cuda_kernels.json`, which names their source. An operator without a kernel for its type
makes ONNX Runtime copy tensors to the CPU at every step, or fail.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, shape_inference

from adar_export.fingerprints import build, configurations
from adar_export.onnx_models import build_batched_cell, build_onnx_models
from adar_export.opsets import OLDEST, newest
from adar_export.precision import FORMER, PRECISIONS, Precision
from adar_runtime.backends.tensorrt.engines.clock import clock_model
from adar_runtime.bundle.known_models import OPERATORS

FACTS = json.loads(Path(__file__).with_name("cuda_kernels.json").read_text())
NAMES = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.INT64: "int64",
    TensorProto.INT32: "int32",
    TensorProto.INT8: "int8",
}


def missing_kernels(model: onnx.ModelProto) -> set[tuple[str, str, str]]:
    """Operators of a model without a CUDA kernel: name, type of the first input, type of the output."""
    opset = model.opset_import[0].version
    inferred = shape_inference.infer_shapes(model, strict_mode=True, check_type=True)
    values = (*inferred.graph.input, *inferred.graph.output, *inferred.graph.value_info)
    types = {value.name: NAMES[value.type.tensor_type.elem_type] for value in values}
    types |= {weight.name: NAMES[weight.data_type] for weight in inferred.graph.initializer}
    found = set()
    for node in inferred.graph.node:
        version = onnx.defs.get_schema(node.op_type, opset).since_version
        pair = types[node.input[0]], types[node.output[0]]
        if not any(
            first <= version <= (last or version) and pair[0] in taken and pair[1] in given
            for first, last, taken, given in FACTS["kernels"].get(node.op_type, [])
        ):
            found.add((node.op_type, *pair))
    return found


def models(precision: Precision, opset: int, *, every: bool) -> Iterator[onnx.ModelProto]:
    """All models of an export; without `every`, only those of the first configuration of each variant."""
    seen = set()
    for config, is_silent in configurations():
        if every or config.variant not in seen:
            seen.add(config.variant)
            model = build(config, silent=is_silent)
            yield from build_onnx_models(model, opset, precision).values()
            yield build_batched_cell(model, opset, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_operator_of_every_export_has_a_kernel(precision: str) -> None:
    for opset in range(OLDEST, newest() + 1):
        every = precision == "fp32" and opset == OLDEST
        for model in models(PRECISIONS[precision], opset, every=every):
            assert missing_kernels(model) == set(), (model.graph.name, opset)


def test_a_former_bf16_export_lacks_one() -> None:
    """So the check finds what it looks for."""
    (former,) = FORMER.values()
    found = set().union(*(missing_kernels(model) for model in models(former, OLDEST, every=False)))
    assert found == {("LeakyRelu", "bfloat16", "bfloat16")}


def test_the_clock_has_kernels_too_and_the_facts_name_their_source() -> None:
    assert missing_kernels(onnx.load_from_string(clock_model(16))) == set()
    assert "OperatorKernels.md of github.com/microsoft/onnxruntime" in FACTS["source"]
    assert set(OPERATORS) <= set(FACTS["kernels"])
