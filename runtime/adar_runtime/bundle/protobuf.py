"""A minimal reader of the protobuf wire format, enough to check an ONNX file."""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


def fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The (field number, content) pairs of a protobuf message; a varint's content is its bytes."""
    return ((field, content) for field, _, content in typed_fields(message))


def typed_fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """The (field number, wire type, content) of each field. Weights of any size are skipped, not copied."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        field, wire = key >> 3, key & 7
        start = at
        if wire == VARINT:
            _, at = _varint(message, at)
        elif wire == FIXED64:
            at += 8
        elif wire == BYTES:
            length, start = _varint(message, at)
            at = start + length
        elif wire == FIXED32:
            at += 4
        else:
            raise ValueError(f"wire type {wire}")
        if at > end:
            raise ValueError("a field runs past the end")
        yield field, wire, message[start:at]


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = message[at]
    if value < 0x80:  # most numbers of an ONNX file
        return value, at + 1
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
