"""A bundle as this machine can run it: ONNX Runtime has no bfloat16 products on CPU.

The twin is made of the bundle's own graphs, so that comparing it says something about these files: every
operator that would give small numbers computes in float32, and its result is rounded to them.
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
from adar_runtime.bundle.bundle import Bundle, read_bundle, read_manifest
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import BundleError, reason


def needs_twin(manifest: Manifest, backend: str) -> bool:
    """Whether that backend cannot run such a bundle."""
    return backend == CPU and manifest.precision == "bf16"


@contextmanager
def opened(
    folder: Path, backend: str = CPU, threads: int | None = None, *, made_here: bool = False
) -> Iterator[Bundle]:
    """The bundle or, where it needs a GPU, its twin. Engines that were built elsewhere are not trusted.

    `made_here`: this process has just exported the bundle. Its models may be those of a new variant.
    """
    if not needs_twin(read_manifest(folder), backend):
        yield Bundle(folder, backend, threads, trust_engines=False, made_here=made_here)
        return
    manifest, contents = read_bundle(folder, allow_unknown_model=made_here)
    twins = {name: _twin_of_file(name, content) for name, content in contents.items()}
    with TemporaryDirectory() as made:
        twin = Path(made)
        files = {name: write_onnx_model(twin, name, proto) for name, proto in twins.items()}
        (twin / manifests.FILE_NAME).write_text(replace(manifest, onnx_models=files).to_json())
        yield Bundle(twin, backend, threads, made_here=True)


def _twin_of_file(name: str, content: bytes) -> onnx.ModelProto:
    try:
        return twin_of(parsed(name, content))
    except (shape_inference.InferenceError, ValueError) as error:
        raise BundleError(
            f"the bundle's {name} has no twin in float32 ({reason(error)}): export again"
        ) from error


def twin_of(model: onnx.ModelProto, small: int = TensorProto.BFLOAT16) -> onnx.ModelProto:
    """The same numbers by operators of float32."""
    inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph.value_info
    rounded = {value.name for value in inferred if value.type.tensor_type.elem_type == small}
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    graph = twin.graph
    del graph.node[:], graph.value_info[:]
    for weight in graph.initializer:
        if weight.data_type == small:
            exact = numpy_helper.to_array(weight).astype(np.float32)
            weight.CopyFrom(numpy_helper.from_array(exact, weight.name))
    for node in model.graph.node:
        graph.node.extend(_rounding(node, small) if rounded.intersection(node.output) else [node])
    return twin


def _rounding(node: NodeProto, small: int) -> list[NodeProto]:
    """The operator in float32, and its result rounded: it has one, as all of ours have."""
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
