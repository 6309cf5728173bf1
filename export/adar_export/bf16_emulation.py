"""The bf16 emulation: a bf16 bundle in a form that ONNX Runtime can run on a CPU, without bfloat16 products.

The emulation is made from the bundle's own ONNX models, so comparing it tests these files: every operator
with a bfloat16 result computes in float32, and its result is rounded to bfloat16.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper, shape_inference

from adar_export.onnx_files import parsed, write_onnx_model
from adar_runtime.backends import CPU
from adar_runtime.bundle import manifest as manifests
from adar_runtime.bundle.bundle import Bundle
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.reading import read_bundle, read_manifest
from adar_runtime.errors import BundleError, reason


def needs_emulation(manifest: Manifest, backend: str) -> bool:
    """Return whether the backend can run the bundle only as an emulation."""
    return backend == CPU and manifest.precision == "bf16"


@contextmanager
def opened(
    folder: Path, backend: str = CPU, threads: int | None = None, *, made_here: bool = False
) -> Iterator[Bundle]:
    """Open the bundle, or its bf16 emulation if the backend needs it. Engines from elsewhere stay unused.

    `made_here`: this process has just exported the bundle. Its models may be those of a new variant.
    """
    if not needs_emulation(read_manifest(folder), backend):
        yield Bundle(folder, backend, threads, trust_engines=False, made_here=made_here)
        return
    manifest, contents = read_bundle(folder, allow_unknown_model=made_here)
    emulations = {name: _emulate_file(name, content) for name, content in contents.items()}
    with TemporaryDirectory() as temporary:
        emulated = Path(temporary)
        files = {name: write_onnx_model(emulated, name, proto) for name, proto in emulations.items()}
        (emulated / manifests.FILE_NAME).write_text(
            replace(manifest, onnx_models=files, batched_cell=None).to_json()
        )
        yield Bundle(emulated, backend, threads, made_here=True)


def _emulate_file(name: str, content: bytes) -> onnx.ModelProto:
    try:
        return emulate(parsed(name, content))
    except (shape_inference.InferenceError, ValueError) as error:
        raise BundleError(
            f"the bundle's {name} has no bf16 emulation ({reason(error)}): export again"
        ) from error


def emulate(model: onnx.ModelProto, small: int = TensorProto.BFLOAT16) -> onnx.ModelProto:
    """Return a model that computes in float32 and rounds each result of the type `small` to this type."""
    inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph.value_info
    rounded = {value.name for value in inferred if value.type.tensor_type.elem_type == small}
    emulated = onnx.ModelProto()
    emulated.CopyFrom(model)
    graph = emulated.graph
    del graph.node[:], graph.value_info[:]
    for weight in graph.initializer:
        if weight.data_type == small:
            exact = numpy_helper.to_array(weight).astype(np.float32)
            weight.CopyFrom(numpy_helper.from_array(exact, weight.name))
    for node in model.graph.node:
        graph.node.extend(_rounding(node, small) if rounded.intersection(node.output) else [node])
    return emulated


def _rounding(node: NodeProto, small: int) -> list[NodeProto]:
    """Return the operator in float32, and two casts that round its only result."""
    (name,) = node.output
    exact = NodeProto()
    exact.CopyFrom(node)
    exact.output[0] = f"{name}.exact"
    if node.op_type == "Cast":
        exact = helper.make_node("Cast", node.input, exact.output, f"{node.name}.exact", to=TensorProto.FLOAT)
    return [
        exact,
        helper.make_node("Cast", exact.output, [f"{name}.small"], f"{node.name}.small", to=small),
        helper.make_node("Cast", [f"{name}.small"], [name], f"{node.name}.back", to=TensorProto.FLOAT),
    ]
