"""The topology of an ONNX model: operators, attributes, element types and wiring, without weights and sizes.

Two models with the same fingerprint run the same operators on values that are wired in the same way. The
names of intermediate values and the opset do not matter. The sizes of the weights are listed beside the
fingerprint, because they depend on the dimensions of the bundle.

The reader is strict: protobuf libraries ignore a field of the wrong wire type, and take the last of two
values of one field. A file that another reader could understand differently has no topology.
"""

import hashlib
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from adar_runtime.bundle.manifest import Port
from adar_runtime.bundle.protobuf import BYTES, FIXED32, VARINT, integers, typed_fields
from adar_runtime.bundle.signature import Ports

# Element types of onnx.proto: the name of each, and the bytes of a number.
TYPES = {
    1: ("float32", 4),
    3: ("int8", 1),
    6: ("int32", 4),
    7: ("int64", 8),
    9: ("bool", 1),
    10: ("float16", 2),
    16: ("bfloat16", 2),
}
MAX_INTEGERS = 8  # in one weight of integers: axes, indices and shapes have one to three
MAX_PARTS = 2_000  # operators or weights: an exported model has at most 300

Fields = dict[int, list[memoryview]]
_ONE, _MANY = False, True
_TEXT, _TEXTS, _NUMBER = (BYTES, _ONE), (BYTES, _MANY), (VARINT, _ONE)
_NUMBERS = (None, _MANY)  # packed or not

# The fields that each message may have: its wire type, and whether it may be repeated.
_MODEL = {1: _NUMBER, 2: _TEXT, 3: _TEXT, 4: _TEXT, 5: _NUMBER, 6: _TEXT, 7: _TEXT, 8: _TEXTS, 14: _TEXTS}
_OPSET = {1: _TEXT, 2: _NUMBER}
_GRAPH = {1: _TEXTS, 2: _TEXT, 5: _TEXTS, 10: _TEXT, 11: _TEXTS, 12: _TEXTS, 16: _TEXTS}
_NODE = {1: _TEXTS, 2: _TEXTS, 3: _TEXT, 4: _TEXT, 5: _TEXTS, 6: _TEXT, 7: _TEXT, 9: _TEXTS}
_ATTRIBUTE = {
    1: _TEXT,
    2: (FIXED32, _ONE),
    3: _NUMBER,
    4: _TEXT,
    8: _NUMBERS,
    13: _TEXT,
    20: _NUMBER,
}
_TENSOR = {1: _NUMBERS, 2: _NUMBER, 8: _TEXT, 9: _TEXT, 12: _TEXT, 14: _NUMBER, 16: _TEXTS}
_VALUE = {1: _TEXT, 2: _TEXT, 3: _TEXT, 4: _TEXTS}
_TYPE = {1: _TEXT, 6: _TEXT}
_TENSOR_TYPE = {1: _NUMBER, 2: _TEXT}
_SHAPE = {1: _TEXTS}
_SIDE = {1: _NUMBER, 2: _TEXT, 3: _TEXT}
_FLOAT, _INT, _STRING, _INTS = 1, 2, 3, 7  # the types of an attribute, and its fields:
_ATTRIBUTE_FIELD = {_FLOAT: 2, _INT: 3, _STRING: 4, _INTS: 8}


class NoTopologyError(Exception):
    """The file has something that no exported model has."""


class Weight(NamedTuple):
    """Sizes of one weight and, if the weight has integers, its values."""

    sides: tuple[int, ...]
    values: tuple[int, ...] | None = None


class Topology(NamedTuple):
    """What a model computes, apart from its weights."""

    fingerprint: str
    weights: list[Weight]  # in the order of their first use; integers at each use
    operators: set[tuple[str, str]]  # operators, and the element type of the first output of each
    ports: Ports
    opset: int


def read_topology(content: bytes) -> Topology:
    """Read the topology of an ONNX file.

    Raises:
        NoTopologyError: The file has something that no exported model has.
        ValueError, IndexError: The file is not complete.
    """
    model = _read(memoryview(content), _MODEL)
    opsets = [_read(entry, _OPSET) for entry in model.get(8, [])]
    if len(opsets) != 1 or _text(opsets[0], 1):
        raise NoTopologyError("operators of another domain")
    graph = _read(_first(model, 7), _GRAPH)
    if max(map(len, graph.values()), default=0) > MAX_PARTS:
        raise NoTopologyError(f"more than {MAX_PARTS:,} operators or weights")
    return _Reader(graph).topology(_number(opsets[0], 2))


class _Reader:
    """Walks the operators in the order of the file, and numbers values as they appear."""

    def __init__(self, graph: Fields) -> None:
        self._graph = graph
        self._lines: list[str] = []
        self._weights: list[Weight] = []
        self._operators: set[tuple[str, str]] = set()
        self._values: dict[str, tuple[str, str]] = {}  # what a name stands for in a line, and its type
        self._constants: dict[str, tuple[str, Weight]] = {}  # the type of each weight, and its sizes
        self._used: set[str] = set()

    def topology(self, opset: int) -> Topology:
        inputs = tuple(map(_port, self._graph.get(11, [])))
        outputs = tuple(map(_port, self._graph.get(12, [])))
        for port in inputs:
            self._define(port.name, f"input {_described(port)}", port.type)
        for weight in self._graph.get(5, []):
            fields = _read(weight, _TENSOR)
            name = _text(fields, 8)
            if name in self._values or name in self._constants:
                raise NoTopologyError(f"two values with the name {name!r}")
            self._constants[name] = _weight(fields)
        for node in self._graph.get(1, []):
            self._node(_read(node, _NODE))
        for port in outputs:
            self._lines.append(repr((_described(port), self._value(port.name))))
        if len(self._used) < len(self._constants):
            raise NoTopologyError("weights that no operator uses")
        fingerprint = hashlib.sha256("\n".join(self._lines).encode()).hexdigest()
        return Topology(fingerprint, self._weights, self._operators, Ports(inputs, outputs), opset)

    def _define(self, name: str, value: str, type: str) -> None:
        if not name or name in self._values or name in self._constants:
            raise NoTopologyError(f"two values with the name {name!r}")
        self._values[name] = value, type

    def _value(self, name: str) -> str:
        """How a line refers to a value."""
        if name in self._values:
            return self._values[name][0]
        if not name:
            return "-"  # an optional input that is left out
        if name not in self._constants:
            raise NoTopologyError(f"a value {name!r} that nothing computes")
        self._used.add(name)
        element, weight = self._constants[name]
        if weight.values is not None:  # a number of the topology, such as an axis
            return self._integers(element, weight)
        self._weights.append(weight)
        self._values[name] = f"w{len(self._weights)}:{element}:{len(weight.sides)}", element
        return self._values[name][0]

    def _integers(self, type: str, weight: Weight) -> str:
        self._weights.append(weight)
        return f"{type}:{len(weight.sides)}"

    def _type(self, name: str) -> str:
        if name in self._constants:
            return self._constants[name][0]
        return self._values[name][1] if name in self._values else "no type"

    def _node(self, fields: Fields) -> None:
        if _text(fields, 7):
            raise NoTopologyError("operators of another domain")
        operator = _text(fields, 4)
        names = [bytes(name).decode() for name in fields.get(1, [])]
        inputs = [self._value(name) for name in names]
        attributes: dict[str, str] = {}
        cast_to = None
        for message in fields.get(5, []):
            attribute = _read(message, _ATTRIBUTE)
            name, kind = _text(attribute, 1), _number(attribute, 20)
            if name in attributes or set(attribute) - {1, 13, 20} != {_ATTRIBUTE_FIELD.get(kind)}:
                raise NoTopologyError(f"an attribute {name!r} with two values or none")
            if kind == _INTS and name == "axes" and operator.startswith("Reduce"):
                # From opset 18 on, the axes are an input. Both are the same topology.
                axes = tuple(_signed(n) for part in attribute[8] for n in integers(part))
                inputs.append(self._integers("int64", Weight((len(axes),), axes)))
            else:
                attributes[name] = _attribute(attribute, kind)
                if operator == "Cast" and name == "to":
                    cast_to = TYPES.get(_number(attribute, 3), ("?", 0))[0]
        outputs = [bytes(name).decode() for name in fields.get(2, [])]
        # Not joined: a name must not be able to imitate two names.
        self._lines.append(repr((operator, sorted(attributes.items()), inputs, len(outputs))))
        element = cast_to or self._result_type(operator, names)
        self._operators.add((operator, element))
        for index, name in enumerate(outputs):
            self._define(name, f"v{len(self._lines)}.{index}", element)

    def _result_type(self, operator: str, names: list[str]) -> str:
        """The element type that an operator computes in."""
        if operator in ("Shape", "Size") or not names or not names[0]:
            return "int64"
        return self._type(names[1 if operator in ("DequantizeLinear", "Where") else 0])


def _described(port: Port) -> str:
    return f"{port.name}:{port.type}:{len(port.shape)}"


def _attribute(attribute: Fields, kind: int) -> str:
    """An attribute as the fingerprint sees it: floating-point numbers count as weights."""
    if kind == _FLOAT:
        return "float"
    if kind == _INT:
        return str(_signed(_number(attribute, 3)))
    if kind == _STRING:
        return repr(_text(attribute, 4))
    return str([_signed(number) for part in attribute[8] for number in integers(part)])


def _weight(fields: Fields) -> tuple[str, Weight]:
    """The element type and sizes of a weight, all of whose numbers are in the file as raw bytes."""
    element, width = TYPES.get(_number(fields, 2), ("", 0))
    sides = tuple(_signed(side) for part in fields.get(1, []) for side in integers(part))
    raw = fields[9][0] if 9 in fields else memoryview(b"")
    if not element or min(sides, default=0) < 0 or len(raw) != prod(sides) * width or _number(fields, 14):
        raise NoTopologyError("a weight whose numbers are not in the file")
    if not element.startswith("int") or element == "int8":
        return element, Weight(sides)
    if prod(sides) > MAX_INTEGERS:
        raise NoTopologyError("a large weight of integers")
    values = (int.from_bytes(raw[at : at + width], "little", signed=True) for at in range(0, len(raw), width))
    return element, Weight(sides, tuple(values))


def _port(message: memoryview) -> Port:
    """An input or output, as ONNX Runtime describes it."""
    fields = _read(message, _VALUE)
    tensor = _read(_read(_first(fields, 2), _TYPE).get(1, [memoryview(b"")])[0], _TENSOR_TYPE)
    sides = (_read(side, _SIDE) for side in _read(_first(tensor, 2), _SHAPE).get(1, []))
    element, _ = TYPES.get(_number(tensor, 1), ("?", 0))
    return Port(_text(fields, 1), element, tuple(map(_side, sides)))


def _side(fields: Fields) -> int | str:
    """A number or a name. Of both, other readers take the last."""
    if 1 in fields and 2 in fields:
        raise NoTopologyError("an input or output with two sizes")
    return _text(fields, 2) if 2 in fields else _number(fields, 1)


def _read(message: memoryview, allowed: Mapping[int, tuple[int | None, bool]]) -> Fields:
    """The fields of a message by number, if each is allowed, of its wire type, and not repeated."""
    found: Fields = {}
    for field, wire, content in typed_fields(message):
        if field not in allowed:
            raise NoTopologyError(f"field {field}")
        expected, repeated = allowed[field]
        if wire != expected and (expected is not None or wire not in (VARINT, BYTES)):
            raise NoTopologyError(f"field {field} with wire type {wire}")
        if field not in found:
            found[field] = [content]
        elif repeated:
            found[field].append(content)
        else:
            raise NoTopologyError(f"field {field} twice")
    return found


def _first(fields: Fields, field: int) -> memoryview:
    return fields[field][0] if field in fields else memoryview(b"")


def _text(fields: Fields, field: int) -> str:
    return bytes(fields[field][0]).decode() if field in fields else ""


def _number(fields: Fields, field: int) -> int:
    return next(integers(fields[field][0])) if field in fields else 0


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
