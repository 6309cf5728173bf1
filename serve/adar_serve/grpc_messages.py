"""Messages of the protocol over gRPC <-> requests and answers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from open_inference.grpc import protocol

from adar_runtime.bundle.protobuf import fields
from adar_runtime.errors import short
from adar_serve import messages, tensors
from adar_serve.limits import Limits
from adar_serve.messages import MAX_INPUTS, Answer, Arrays, InferRequest
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

NUMBER_BYTES = 16  # of a number that takes one byte in a message: in protobuf's array, and in numpy's


Parts = dict[int, Any]  # field -> the messages in it
MAX_FIELDS = 1000  # of a message and the messages in it; 16 tensors need about 150
PARTS: Parts = {4: {2: {}}, 5: {4: {2: {}}, 5: {}}, 6: {2: {2: {}}}}
"""The messages in a ModelInferRequest by field: parameters, inputs with their contents, and outputs."""


def parse_message(kind: Any, content: bytes, limits: Limits) -> Any:
    """The message in these bytes.

    Raises:
        RefusedError: The bytes are no such message, or the message would take far more memory than they do.
    """
    try:
        if kind is protocol.ModelInferRequest:
            _check_fields(memoryview(content), limits)
        return kind.FromString(content)
    except (ValueError, IndexError, DecodeError) as error:
        raise RefusedError(400, f"the message is not a {kind.DESCRIPTOR.name}") from error


def _check_fields(content: memoryview, limits: Limits) -> None:
    """Count the fields of a request before protobuf makes an object of each, and the numbers in fields."""
    numbers, count, left = 0, 0, [(content, PARTS)]
    while left:
        message, parts = left.pop()
        for field, part in fields(message):
            count += 1
            if count > MAX_FIELDS:
                raise RefusedError(400, f"the request has more than {MAX_FIELDS:,} fields")
            if field in parts:
                left.append((part, parts[field]))
                numbers += len(part) if parts is PARTS[5] and field == 5 else 0
    messages.check_memory(NUMBER_BYTES * numbers, limits)


def read_request(message: Any) -> InferRequest:
    """The request in a ModelInferRequest."""
    if len(message.inputs) > MAX_INPUTS or len(message.outputs) > MAX_INPUTS:
        raise RefusedError(400, f"the request has more than {MAX_INPUTS} tensors")
    messages.check_id(message.id)
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
        _check_contents(one, raw=bool(raw))
        if raw:
            content = memoryview(raw[position])
            inputs[one.name] = tensors.from_bytes(one.name, one.datatype, shape, content)
        else:
            numbers = getattr(one.contents, CONTENTS.get(one.datatype, "bytes_contents"))
            inputs[one.name] = tensors.from_list(one.name, one.datatype, shape, numbers)
    chosen = {output.name: bool(raw) for output in message.outputs}
    return InferRequest(inputs, _parameters(message.parameters), dict(chosen), message.id)


def _check_contents(one: Any, *, raw: bool) -> None:
    """Refuse a tensor whose numbers are there twice, or in a field of another datatype."""
    expected = () if raw else (CONTENTS.get(one.datatype, "bytes_contents"),)
    for field, _ in one.contents.ListFields():
        if field.name not in expected:
            where = "raw_input_contents" if raw else CONTENTS.get(one.datatype, "another field")
            raise RefusedError(
                400, f"{short(one.name)} has numbers in {field.name}: send them in {where} only"
            )


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
