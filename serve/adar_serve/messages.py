"""Inference requests and responses: JSON, with tensors in JSON or as bytes after it."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import reason, short
from adar_serve import tensors
from adar_serve.limits import MIB, Limits
from adar_serve.refusals import RefusedError

HEADER_LENGTH = "inference-header-content-length"
MAX_INPUTS = 16
MAX_ID = 256  # characters of a request's id, which the response repeats, and of the name of a tensor
MAX_REPEATED = 4096  # bytes of JSON that is kept, because a client may send it again
PARSED_BYTES = {b",": 40, b"[": 100, b"{": 300}
"""Memory of a value, a list and an object, by the character that each of them needs in JSON."""

WRITTEN_BYTES = 80  # a number that is written as JSON: the object, its text, and the text as bytes
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class InferRequest:
    """A request for inference, of HTTP or gRPC."""

    inputs: Arrays
    parameters: Mapping[str, Any]
    outputs: dict[str, bool | None] = field(default_factory=dict)  # name -> as bytes; None: not said
    id: str = ""

    def as_bytes(self, name: str) -> bool:
        """Whether an output is sent as bytes after the JSON."""
        chosen = self.outputs.get(name)
        return bool(self.parameters.get("binary_data_output")) if chosen is None else chosen


@dataclass(frozen=True, eq=False)
class Answer:
    """The outputs of a model, and facts about the run."""

    model: str
    version: str
    id: str
    outputs: Arrays
    parameters: Mapping[str, Any]


class _Head(NamedTuple):
    """The JSON of a request. Requests may share it."""

    inputs: dict[str, dict[str, Any]]
    parameters: dict[str, Any]
    outputs: dict[str, bool | None]
    id: str


def parse(body: bytes, header_length: str | None, limits: Limits) -> InferRequest:
    """The request in a body. The header's value says where the JSON ends; without one, it is all JSON."""
    end = len(body) if header_length is None else _length(header_length, len(body))
    # A client that sends bytes often repeats the JSON before them.
    head = (_repeated_head if end < min(len(body), MAX_REPEATED) else _head)(body[:end], limits)
    binary = _Bytes(memoryview(body)[end:])
    inputs = {name: _tensor(name, tensor, binary) for name, tensor in head.inputs.items()}
    if binary.left:
        raise RefusedError(400, f"the body has {binary.left:,} bytes after the last tensor")
    return InferRequest(inputs, head.parameters, head.outputs, head.id)


def _head(text: bytes, limits: Limits) -> _Head:
    content = read_object(text, limits)
    listed, inputs = _list(content, "inputs"), dict[str, dict[str, Any]]()
    if len(listed) > MAX_INPUTS:
        raise RefusedError(400, f"inputs has more than {MAX_INPUTS} tensors")
    for one in listed:
        tensor = _object(one, "an input")
        name = _name(tensor, "an input")
        if name in inputs:
            raise RefusedError(400, f"the input {name} is there twice")
        inputs[name] = tensor
    return _Head(inputs, parameters(content), _outputs(content), _id(content))


_repeated_head = lru_cache(maxsize=64)(_head)


def read_object(text: bytes, limits: Limits) -> dict[str, Any]:
    """The JSON object in a body."""
    # The memory of the parsed values, or a little more: nothing is parsed to know it.
    check_memory(sum(size * text.count(mark) for mark, size in PARSED_BYTES.items()), limits)
    return _object(_parsed(text), "the request")


def parameters(content: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a request or tensor; none if it has none."""
    return _object(content.get("parameters") or {}, "parameters")


def check_memory(needed: int, limits: Limits) -> None:
    """Refuse numbers that would take more memory as Python objects than the server allows."""
    if needed > limits.json * MIB:
        raise RefusedError(
            413,
            f"as JSON or fields, the numbers would take more than {limits.json} MiB in memory: send and "
            "receive tensors as bytes, or a smaller graph",
        )


def check_answer(arrays: Iterable[NDArray[Any]], limits: Limits) -> None:
    """Refuse to write so many numbers as JSON or as fields of a message."""
    check_memory(sum(WRITTEN_BYTES * array.size for array in arrays), limits)


def encode(request: InferRequest, answer: Answer, limits: Limits) -> tuple[bytes, int | None]:
    """The body of the response, and the length of its JSON if tensors follow the JSON."""
    import msgspec  # as in `_parsed`

    check_answer((array for name, array in answer.outputs.items() if not request.as_bytes(name)), limits)
    described, binary = [], list[bytes]()
    for name, array in answer.outputs.items():
        tensor: dict[str, Any] = {
            "name": name,
            "datatype": tensors.datatype_of(array),
            "shape": list(array.shape),
        }
        if request.as_bytes(name):
            binary.append(np.ascontiguousarray(array).tobytes())
            tensor["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            tensor["data"] = array.ravel().tolist()
        described.append(tensor)
    content: dict[str, Any] = {
        "model_name": answer.model,
        "model_version": answer.version,
        "outputs": described,
    }
    content |= {"parameters": dict(answer.parameters)} | ({"id": answer.id} if answer.id else {})
    header = msgspec.json.encode(content)  # `json` would stop all threads ten times as long
    return b"".join([header, *binary]), len(header) if binary else None


class _Bytes:
    """The bytes after the JSON, which the inputs take in order."""

    def __init__(self, content: memoryview) -> None:
        self._content = content

    @property
    def left(self) -> int:
        return len(self._content)

    def take(self, name: str, size: object) -> memoryview:
        if type(size) is not int or not 0 <= size <= self.left:
            raise RefusedError(400, f"binary_data_size of {name} is not a number of bytes of the body")
        taken, self._content = self._content[:size], self._content[size:]
        return taken


def _tensor(name: str, tensor: Mapping[str, Any], binary: _Bytes) -> NDArray[Any]:
    datatype, shape, size = tensor.get("datatype"), tensor.get("shape"), parameters(tensor)
    if "binary_data_size" in size:
        if "data" in tensor:
            raise RefusedError(400, f"{name} has data and binary_data_size: send one of them")
        return tensors.from_bytes(name, datatype, shape, binary.take(name, size["binary_data_size"]))
    return tensors.from_list(name, datatype, shape, tensor.get("data"))


def _length(given: str, most: int) -> int:
    if not given.isascii() or not given.isdecimal() or len(given) > 18 or int(given) > most:
        raise RefusedError(400, f"{HEADER_LENGTH} is not a number of bytes of the body")
    return int(given)


def _parsed(text: bytes) -> Any:
    found = _quickly_parsed(text)
    if found is not None:
        return found
    # The text has a duplicate key, a colon inside a string, or a mistake, which this reader explains.
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        message = "nested too deeply" if isinstance(error, RecursionError) else reason(error)
        raise RefusedError(400, f"the body is not JSON ({message})") from error


def _quickly_parsed(text: bytes) -> Any:
    """The values, or None. They are freed in that case, so that they are not in memory twice."""
    import msgspec  # only a server reads JSON: the model of Triton has no such package

    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        found = msgspec.json.decode(text)  # ten times as fast as `json` with numbers
        if _keys(found) == text.count(b":"):  # every key has a colon, so that none is there twice
            return found
    return None


def _keys(value: Any) -> int:
    """The number of keys of an object and of those in it, without those in lists that begin with numbers."""
    if isinstance(value, dict):
        return len(value) + sum(map(_keys, value.values()))
    return sum(map(_keys, value)) if isinstance(value, list) and value and isinstance(value[0], dict) else 0


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a duplicate key")
    return found


def _outputs(content: Mapping[str, Any]) -> dict[str, bool | None]:
    found: dict[str, bool | None] = {}
    listed = _list(content, "outputs")
    if len(listed) > MAX_INPUTS:
        raise RefusedError(400, f"outputs has more than {MAX_INPUTS} tensors")
    for one in listed:
        output = _object(one, "an output")
        as_bytes = parameters(output).get("binary_data")
        found[_name(output, "an output")] = None if as_bytes is None else bool(as_bytes)
    return found


def _id(content: Mapping[str, Any]) -> str:
    found = content.get("id", "")
    check_id(found)
    return found


def check_id(given: object) -> None:
    """Refuse an id that the response cannot repeat."""
    if not isinstance(given, str) or len(given) > MAX_ID or not given.isprintable():
        raise RefusedError(400, f"id is not a text of at most {MAX_ID} characters")


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RefusedError(400, f"{what} is not a JSON object")
    return value


def _list(content: Mapping[str, Any], key: str) -> list[Any]:
    found = content.get(key) or []
    if not isinstance(found, list):
        raise RefusedError(400, f"{key} is not a list")
    return found


def _name(tensor: Mapping[str, Any], what: str) -> str:
    found = tensor.get("name")
    if not isinstance(found, str) or not 0 < len(found) <= MAX_ID:
        raise RefusedError(400, f"{what} has no name of 1 to {MAX_ID} characters: {short(found)!r}")
    return found
