"""Messages of the protocol over gRPC <-> requests and answers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from open_inference.grpc import protocol

from adar_runtime.errors import short
from adar_serve import tensors
from adar_serve.messages import MAX_ID, MAX_INPUTS, Answer, Arrays, InferRequest
from adar_serve.refusals import RefusedError

CONTENTS = {
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
"""Datatype -> the field of `InferTensorContents` that holds its numbers. FP16 has none."""


def read_request(message: Any) -> InferRequest:
    """The request in a ModelInferRequest."""
    if len(message.inputs) > MAX_INPUTS or len(message.outputs) > MAX_INPUTS:
        raise RefusedError(400, f"the request has more than {MAX_INPUTS} tensors")
    if len(message.id) > MAX_ID:
        raise RefusedError(400, f"id has more than {MAX_ID} characters")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise RefusedError(
            400, f"raw_input_contents has {len(raw)} tensors, inputs has {len(message.inputs)}"
        )
    inputs: Arrays = {}
    for position, one in enumerate(message.inputs):
        if one.name in inputs:
            raise RefusedError(400, f"the input {short(one.name)} is there twice")
        shape = list(one.shape)
        if raw:
            content = memoryview(raw[position])
            inputs[one.name] = tensors.from_bytes(one.name, one.datatype, shape, content)
        else:
            numbers = getattr(one.contents, CONTENTS.get(one.datatype, "bytes_contents"))
            inputs[one.name] = tensors.from_list(one.name, one.datatype, shape, list(numbers))
    chosen = {output.name: bool(raw) for output in message.outputs}
    return InferRequest(inputs, _parameters(message.parameters), dict(chosen), message.id)


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in given.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is None:
            raise RefusedError(400, f"the parameter {short(name)} is not a text, an integer or a boolean")
        found[name] = getattr(value, kind)
    return found


def write_answer(answer: Answer, *, raw: bool, final: bool = True) -> Any:
    """A ModelInferResponse. `raw`: the numbers as bytes, as the client sent its own."""
    message = protocol.ModelInferResponse(model_name=answer.model, model_version=answer.version, id=answer.id)
    for name, value in {**answer.parameters, "triton_final_response": final}.items():
        message.parameters[name].CopyFrom(_parameter(value))
    for name, array in answer.outputs.items():
        output = message.outputs.add(name=name, datatype=tensors.datatype_of(array), shape=list(array.shape))
        if raw:
            message.raw_output_contents.append(np.ascontiguousarray(array).tobytes())
        else:
            getattr(output.contents, CONTENTS[output.datatype]).extend(array.ravel().tolist())
    return message


def _parameter(value: object) -> Any:
    if isinstance(value, bool):
        return protocol.InferParameter(bool_param=value)
    if isinstance(value, int):
        return protocol.InferParameter(int64_param=value)
    return protocol.InferParameter(string_param=str(value))


def model_metadata(found: Mapping[str, Any]) -> Any:
    """A ModelMetadataResponse."""
    kind = protocol.ModelMetadataResponse
    ports = {
        side: [
            kind.TensorMetadata(name=port["name"], datatype=port["datatype"], shape=port["shape"])
            for port in found[side]
        ]
        for side in ("inputs", "outputs")
    }
    return kind(
        name=found["name"],
        versions=found["versions"],
        platform=found["platform"],
        properties=found["properties"],
        **ports,
    )


def stream_response(message: Any = None, error: str = "") -> bytes:
    """A ModelStreamInferResponse of Triton: field 1 is an error, field 2 the response.

    The stubs do not have this message. Both fields are bytes with a length, so they are written here.
    """
    number, content = (1, error.encode()) if message is None else (2, message.SerializeToString())
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
