"""ONNX models as a manifest describes them: inputs, outputs and files."""

import hashlib
from pathlib import Path

import onnx

from adar_export.builder import TYPES
from adar_runtime.bundle.manifest import OnnxFile, Port
from adar_runtime.bundle.signature import Ports
from adar_runtime.errors import BundleError, reason

TYPE_NAMES: dict[int, str] = {number: name for name, number in TYPES.items()}


def ports_of(model: onnx.ModelProto) -> Ports:
    """Return names, types and shapes of all inputs and outputs."""
    return Ports(tuple(map(_port, model.graph.input)), tuple(map(_port, model.graph.output)))


def write_onnx_model(folder: Path, name: str, proto: onnx.ModelProto) -> OnnxFile:
    """Write a model of a bundle. Equal models give equal bytes."""
    content = proto.SerializeToString(deterministic=True)
    file = f"{name}.onnx"
    (folder / file).write_bytes(content)
    return OnnxFile(file, hashlib.sha256(content).hexdigest(), len(content), *ports_of(proto))


def parsed(name: str, content: bytes) -> onnx.ModelProto:
    """Parse an ONNX file, or raise a BundleError."""
    try:
        return onnx.load_from_string(content)
    except Exception as error:  # protobuf's exceptions depend on the installed implementation
        raise BundleError(
            f"the bundle's {name} is not an ONNX model ({reason(error)}): export again"
        ) from error


def _port(value: onnx.ValueInfoProto) -> Port:
    tensor = value.type.tensor_type
    sides = tuple(side.dim_param or side.dim_value for side in tensor.shape.dim)
    return Port(value.name, TYPE_NAMES.get(tensor.elem_type, f"type {tensor.elem_type}"), sides)
