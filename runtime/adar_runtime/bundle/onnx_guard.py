"""Looks into an ONNX file before ONNX Runtime does, without the `onnx` package.

A graph from outside may hold weights and standard operators, nothing else. External data would make
the runtime open a path of the file's choosing; another operator domain could name a custom kernel; a graph
within a graph could be the body of a loop without end.
The file is walked as protobuf wire format, and of each message only the fields listed below may be
there: what this file does not know of, it cannot vouch for.
"""

from collections.abc import Iterator

from adar_runtime.bundle.protobuf import fields, integers
from adar_runtime.errors import BundleError, short

MAX_OPERATORS = 10_000  # a cell has about 200
MAX_NUMBERS = 2**31  # of one weight: more do not fit into a file
MAX_FIELDS = 200_000  # of all messages: what takes no more than a moment to walk through
DOMAINS = ("", "ai.onnx")
ORT_FORMAT = b"ORTM"  # at byte 4: ONNX Runtime's own format, which it would read in place of ONNX

# Field numbers of onnx.proto, by message: those that are walked, and those that hold plain facts.
_MODEL_GRAPH, _MODEL_FACTS = 7, {1, 2, 3, 4, 5, 6, 8, 14}  # versions, producer, opsets, metadata
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_GRAPH_FACTS = {2, 10, 11, 12, 13, 14, 16}  # name, doc, inputs, outputs, shapes, annotations, metadata
_NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN = 4, 5, 7
_NODE_FACTS = {1, 2, 3, 6, 9}  # inputs, outputs, names, metadata
_ATTRIBUTE_TENSORS = {5, 10}
_ATTRIBUTE_FACTS = {1, 2, 3, 4, 7, 8, 9, 13, 14, 15, 20}  # name, numbers, strings, types
_TENSOR_DIMS, _TENSOR_EXTERNAL_DATA, _TENSOR_LOCATION = 1, 13, 14
_TENSOR_FACTS = {2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16}  # type, data, names, that it is in here, metadata

_REFUSED = {
    ("model", 20): "training steps",
    ("model", 25): "operators of its own",
    ("graph", 15): "sparse weights",
    ("attribute", 6): "a graph within a graph",
    ("attribute", 11): "a graph within a graph",
    ("attribute", 21): "attributes of a function",
    ("attribute", 22): "sparse weights",
    ("attribute", 23): "sparse weights",
    ("tensor", 13): "weights in another file",
}


def check(name: str, content: bytes) -> None:
    """Raise a BundleError unless the file is plain ONNX that carries all of its own data."""
    if content[4:8] == ORT_FORMAT:
        raise BundleError(f"{name} is in ONNX Runtime's own format, not in ONNX: refused")
    try:
        _Guard(name).model(memoryview(content))
    except (IndexError, ValueError) as error:
        raise BundleError(f"{name} is not a whole ONNX file") from error


class _Guard:
    def __init__(self, name: str) -> None:
        self._name = name
        self._operators = self._walked = 0

    def _fields(self, message: memoryview) -> Iterator[tuple[int, memoryview]]:
        for each in fields(message):
            self._count()
            yield each

    def _count(self) -> None:
        self._walked += 1
        if self._walked > MAX_FIELDS:
            raise BundleError(f"{self._name} has more than {MAX_FIELDS:,} parts: refused")

    def model(self, message: memoryview) -> None:
        graphs = 0
        for field, value in self._fields(message):
            if field == _MODEL_GRAPH:
                graphs += 1
                self._graph(value)
            elif field not in _MODEL_FACTS:
                self._refuse("model", field)
        if graphs != 1:
            raise BundleError(f"{self._name} holds {graphs} graphs, not one: refused")

    def _graph(self, message: memoryview) -> None:
        for field, value in self._fields(message):
            if field == _GRAPH_NODE:
                self._node(value)
            elif field == _GRAPH_INITIALIZER:
                self._tensor(value)
            elif field not in _GRAPH_FACTS:
                self._refuse("graph", field)

    def _node(self, message: memoryview) -> None:
        self._operators += 1
        if self._operators > MAX_OPERATORS:
            raise BundleError(f"{self._name} has more than {MAX_OPERATORS:,} operators: refused")
        for field, value in self._fields(message):
            if field == _NODE_DOMAIN:
                domain = bytes(value).decode()
                if domain not in DOMAINS:
                    raise BundleError(f"{self._name} uses operators of {short(domain)!r}: refused")
            elif field == _NODE_OPERATOR:
                bytes(value).decode()  # or it is no name
            elif field == _NODE_ATTRIBUTE:
                self._attribute(value)
            elif field not in _NODE_FACTS:
                self._refuse("node", field)

    def _attribute(self, message: memoryview) -> None:
        for field, value in self._fields(message):
            if field in _ATTRIBUTE_TENSORS:
                self._tensor(value)
            elif field not in _ATTRIBUTE_FACTS:
                self._refuse("attribute", field)

    def _tensor(self, message: memoryview) -> None:
        numbers = 1
        for field, value in self._fields(message):
            if field == _TENSOR_DIMS:
                numbers = self._numbers(numbers, value)
            elif field == _TENSOR_LOCATION and bytes(value) != b"\0":
                self._refuse("tensor", _TENSOR_EXTERNAL_DATA)
            elif field not in _TENSOR_FACTS:
                self._refuse("tensor", field)

    def _numbers(self, numbers: int, sides: memoryview) -> int:
        for side in integers(sides):
            self._count()
            numbers *= max(1, side)  # a side of 0 hides no other
            if numbers > MAX_NUMBERS:
                raise BundleError(f"{self._name} has a weight of more than {MAX_NUMBERS:,} numbers: refused")
        return numbers

    def _refuse(self, message: str, field: int) -> None:
        found = _REFUSED.get((message, field), f"what no {message} of a bundle needs (field {short(field)})")
        raise BundleError(f"{self._name} has {found}: refused")
