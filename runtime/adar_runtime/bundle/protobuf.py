"""A minimal reader of the protobuf wire format, enough to check an ONNX file."""

from collections.abc import Iterator


def fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
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


def integers(packed: memoryview) -> Iterator[int]:
    """The numbers of a repeated integer field, packed or not."""
    at = 0
    while at < len(packed):
        value, at = _varint(packed, at)
        yield value
