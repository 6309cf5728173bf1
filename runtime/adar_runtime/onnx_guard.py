"""Looks into an ONNX file before ONNX Runtime does, without the `onnx` package.

A graph from outside may hold weights and standard operators, nothing else. External data would make
the runtime open a path of the file's choosing; another operator domain could name a custom kernel.
The file is walked as protobuf wire format: the few field numbers below are all that is needed.
"""

from collections.abc import Iterator

from adar_runtime.errors import BundleError

MAX_OPERATORS = 100_000
MAX_DEPTH = 32
DOMAINS = ("", "ai.onnx")

# Field numbers of onnx.proto, by message.
_MODEL_GRAPH, _MODEL_FUNCTIONS = 7, 25
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_SPARSE_INITIALIZER = 1, 5, 15
_NODE_ATTRIBUTE, _NODE_DOMAIN = 5, 7
_ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = 5, 6, 10, 11
_TENSOR_EXTERNAL_DATA, _TENSOR_DATA_LOCATION = 13, 14


def check(name: str, content: bytes) -> None:
    """Raise a BundleError unless the file is plain ONNX that carries all of its own data."""
    guard = _Guard(name)
    try:
        guard.model(memoryview(content))
    except (IndexError, ValueError) as error:
        raise BundleError(f"{name} is not a whole ONNX file") from error


class _Guard:
    def __init__(self, name: str) -> None:
        self._name = name
        self._operators = 0

    def model(self, message: memoryview) -> None:
        for field, value in _fields(message):
            if field == _MODEL_GRAPH:
                self._graph(value, depth=0)
            elif field == _MODEL_FUNCTIONS:
                raise BundleError(f"{self._name} defines operators of its own: refused")

    def _graph(self, message: memoryview, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise BundleError(f"{self._name} nests graphs more than {MAX_DEPTH} deep: refused")
        for field, value in _fields(message):
            if field == _GRAPH_NODE:
                self._node(value, depth)
            elif field == _GRAPH_INITIALIZER:
                self._tensor(value)
            elif field == _GRAPH_SPARSE_INITIALIZER:
                raise BundleError(f"{self._name} holds sparse weights: refused")

    def _node(self, message: memoryview, depth: int) -> None:
        self._operators += 1
        if self._operators > MAX_OPERATORS:
            raise BundleError(f"{self._name} has more than {MAX_OPERATORS:,} operators: refused")
        for field, value in _fields(message):
            if field == _NODE_DOMAIN and bytes(value).decode() not in DOMAINS:
                raise BundleError(f"{self._name} uses operators of {bytes(value).decode()!r}: refused")
            if field == _NODE_ATTRIBUTE:
                self._attribute(value, depth)

    def _attribute(self, message: memoryview, depth: int) -> None:
        for field, value in _fields(message):
            if field in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS):
                self._tensor(value)
            elif field in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
                self._graph(value, depth + 1)

    def _tensor(self, message: memoryview) -> None:
        for field, value in _fields(message):
            if field == _TENSOR_EXTERNAL_DATA or (field == _TENSOR_DATA_LOCATION and bytes(value) != b"\0"):
                raise BundleError(f"{self._name} keeps its weights in another file: refused")


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The (field number, content) pairs of a protobuf message; a varint's content is its bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        field, wire = key >> 3, key & 7
        start = at
        if wire == 0:
            _, at = _varint(message, at)
        elif wire == 1:
            at += 8
        elif wire == 2:
            length, start = _varint(message, at)
            at = start + length
        elif wire == 5:
            at += 4
        else:
            raise ValueError(f"wire type {wire}")
        if at > len(message):
            raise ValueError("a field runs past the end")
        yield field, message[start:at]


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
