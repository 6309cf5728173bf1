"""The clock: a small ONNX model that supplies the step inputs of the cell from a table on the device.

Each call reads one row of the table and moves on to the next row. The table and the row index are in device
memory, so no step needs data from the host. A CUDA graph that was captured once therefore uses new times in
every replay: the row index is read at replay, not at capture.

The model is written as protobuf by hand, because building engines does not require the `onnx` package.
"""

from adar_runtime.bundle.signature import STEP

ROWS = 256  # of the table; the host refills the table when all rows are used
TABLE, TICK, NEXT_TICK, CODE = "table", "tick", "next_tick", "step_code"
CLOCK = "clock"

_OPSET, _IR_VERSION = 17, 8
_FLOAT, _INT32, _INT64 = 1, 6, 7  # onnx.TensorProto.DataType


def row_width(hidden: int) -> int:
    """Number of columns of the table: the step encoding, then the scalars of a move."""
    return hidden + len(STEP)


def clock_model(hidden: int) -> bytes:
    """The ONNX model (table, tick) -> (step_code, the scalars of STEP, tick + 1)."""
    width = row_width(hidden)
    graph = b"".join(
        [
            _node("Gather", [TABLE, TICK], ["row"], axis=0),
            _node("Split", ["row", "widths"], [CODE, *STEP], axis=1),
            _node("Add", [TICK, "one"], [NEXT_TICK]),
            _field(2, CLOCK),
            _constant("widths", _INT64, [hidden, *(1 for _ in STEP)], 8),
            _constant("one", _INT32, [1], 4),
            _port(11, TABLE, _FLOAT, [ROWS, width]),
            _port(11, TICK, _INT32, [1]),
            _port(12, CODE, _FLOAT, [1, hidden]),
            *(_port(12, name, _FLOAT, [1, 1]) for name in STEP),
            _port(12, NEXT_TICK, _INT32, [1]),
        ]
    )
    opset = _field(1, "") + _field(2, _OPSET)
    return _field(1, _IR_VERSION) + _field(2, "adar-deploy") + _field(7, graph) + _field(8, opset)


def _node(operator: str, inputs: list[str], outputs: list[str], axis: int | None = None) -> bytes:
    """A NodeProto, as a field of the GraphProto."""
    names = [_field(1, name) for name in inputs] + [_field(2, name) for name in outputs]
    node = b"".join(names) + _field(3, outputs[0]) + _field(4, operator)
    if axis is not None:
        node += _field(5, _field(1, "axis") + _field(3, axis) + _field(20, 2))
    return _field(1, node)


def _constant(name: str, kind: int, numbers: list[int], size: int) -> bytes:
    """A one-dimensional TensorProto, as an initializer of the GraphProto."""
    data = b"".join(number.to_bytes(size, "little") for number in numbers)
    return _field(5, _field(1, len(numbers)) + _field(2, kind) + _field(8, name) + _field(9, data))


def _port(number: int, name: str, kind: int, shape: list[int]) -> bytes:
    """A ValueInfoProto, as an input (field 11) or output (field 12) of the GraphProto."""
    dimensions = b"".join(_field(1, _field(1, size)) for size in shape)
    tensor = _field(1, kind) + _field(2, dimensions)
    return _field(number, _field(1, name) + _field(2, _field(1, tensor)))


def _field(number: int, value: int | str | bytes) -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
