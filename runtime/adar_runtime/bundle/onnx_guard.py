"""Checks an ONNX file before ONNX Runtime loads it, without the `onnx` package.

A model from a stranger may contain weights and standard operators, nothing else. External data would make the
runtime open a path that the file chooses. Another operator domain could name a custom kernel. A nested graph
could be the body of an endless loop.
The check reads the file as protobuf wire format. Each message may contain only the fields listed below: a
field that is not listed is not known to be safe.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from adar_runtime.bundle import pack
from adar_runtime.bundle.manifest import OnnxFile
from adar_runtime.bundle.protobuf import fields, integers
from adar_runtime.errors import BundleError, short
from adar_runtime.files import read_bundle_file

MAX_BYTES = 2**31  # protobuf's own limit for one ONNX file
MAX_OPERATORS = 10_000  # a cell has about 200
MAX_NUMBERS = 2**31  # in one weight: more do not fit into a file
MAX_FIELDS = 200_000  # in all messages, so that the check takes a moment at most
DOMAINS = ("", "ai.onnx")
ORT_CONFIG = b"ort_config"  # metadata with settings of the session, such as a file to write
ORT_FORMAT = b"ORTM"  # at byte 4: ONNX Runtime's own format, which it would load instead of ONNX

# Field numbers of onnx.proto, by message: those that are checked further, and those that hold plain values.
_MODEL_GRAPH, _MODEL_METADATA = 7, 14
_MODEL_FACTS = {1, 2, 3, 4, 5, 6, 8}  # versions, producer, opsets
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_GRAPH_FACTS = {2, 10, 11, 12, 13, 14, 16}  # name, doc, inputs, outputs, shapes, annotations, metadata
_NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN = 4, 5, 7
_NODE_FACTS = {1, 2, 3, 6, 9}  # inputs, outputs, names, metadata
_ATTRIBUTE_TENSORS = {5, 10}
_ATTRIBUTE_FACTS = {1, 2, 3, 4, 7, 8, 9, 13, 14, 15, 20}  # name, numbers, strings, types
_TENSOR_DIMS, _TENSOR_EXTERNAL_DATA, _TENSOR_LOCATION = 1, 13, 14
_TENSOR_FACTS = {2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16}  # type, data, names, data location, metadata

_REFUSED = {
    ("model", 20): "training steps",
    ("model", 25): "custom operators",
    ("graph", 15): "sparse weights",
    ("attribute", 6): "a nested graph",
    ("attribute", 11): "a nested graph",
    ("attribute", 21): "function attributes",
    ("attribute", 22): "sparse weights",
    ("attribute", 23): "sparse weights",
    ("tensor", 13): "weights in another file",
}


def read_onnx_file(folder: Path, expected: OnnxFile) -> bytes:
    """The content of an ONNX file, if it is the one that the manifest describes and safe to load."""
    name = str(folder / short(expected.file))
    limit = min(expected.bytes, MAX_BYTES)
    try:
        content = (pack.read_member if pack.is_pack(folder) else _read)(folder, expected.file, limit)
        if len(content) != expected.bytes:
            raise BundleError(_sizes(len(content), expected.bytes))
    except BundleError as error:
        raise BundleError(f"{name}: {error}") from error
    except OSError as error:
        raise BundleError(f"{name} cannot be read: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest() != expected.sha256:
        raise BundleError(f"{name} was changed after it was exported: its sha256 is not the manifest's")
    check(name, content)
    return content


def _read(folder: Path, file: str, limit: int) -> bytes:
    path = folder / file
    if not path.is_file():
        raise BundleError("the bundle has no such file; export it again")
    size = path.stat().st_size
    if size > limit:
        raise BundleError(_sizes(size, limit))
    return read_bundle_file(path, limit)


def _sizes(found: int, expected: int) -> str:
    return f"{found} bytes where the manifest says {short(expected)}"


def check(name: str, content: bytes) -> None:
    """Raise a BundleError unless the file is plain ONNX that contains all of its data."""
    if content[4:8] == ORT_FORMAT:
        raise BundleError(f"{name} is in ONNX Runtime's own format, not in ONNX: refused")
    try:
        _Guard(name).model(memoryview(content))
    except (IndexError, ValueError) as error:
        raise BundleError(f"{name} is not a complete ONNX file") from error


class _Guard:
    def __init__(self, name: str) -> None:
        self._name = name
        self._operators = self._fields_seen = 0

    def _fields(self, message: memoryview) -> Iterator[tuple[int, memoryview]]:
        for each in fields(message):
            self._count()
            yield each

    def _count(self) -> None:
        self._fields_seen += 1
        if self._fields_seen > MAX_FIELDS:
            raise BundleError(f"{self._name} has more than {MAX_FIELDS:,} parts: refused")

    def model(self, message: memoryview) -> None:
        graphs = 0
        for field, value in self._fields(message):
            if field == _MODEL_GRAPH:
                graphs += 1
                self._graph(value)
            elif field == _MODEL_METADATA:
                self._metadata(value)
            elif field not in _MODEL_FACTS:
                self._refuse("model", field)
        if graphs != 1:
            raise BundleError(f"{self._name} holds {graphs} graphs, not one: refused")

    def _metadata(self, message: memoryview) -> None:
        """With ORT_LOAD_CONFIG_FROM_MODEL=1, ONNX Runtime takes its settings from here."""
        if any(bytes(value) == ORT_CONFIG for _, value in self._fields(message)):
            raise BundleError(f"{self._name} has settings for ONNX Runtime: refused")

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
                bytes(value).decode()  # raises unless it is text
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

    def _numbers(self, numbers: int, dimensions: memoryview) -> int:
        for side in integers(dimensions):
            self._count()
            numbers *= max(1, side)  # a dimension of 0 must not hide the others
            if numbers > MAX_NUMBERS:
                raise BundleError(f"{self._name} has a weight of more than {MAX_NUMBERS:,} numbers: refused")
        return numbers

    def _refuse(self, message: str, field: int) -> None:
        found = _REFUSED.get(
            (message, field), f"a {message} field that no bundle needs (field {short(field)})"
        )
        raise BundleError(f"{self._name} has {found}: refused")
