"""Read Thrift's compact protocol, in which Parquet writes its headers, into dictionaries of plain values.

A Parquet library allocates what these headers ask for, and follows their nesting without a limit. This reader
looks at them first.
"""

from typing import Any

MAX_DEPTH = 16  # of nested structures: Parquet needs about 6
MAX_VALUES = 500_000  # of one structure
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)


class ThriftReader:
    """Reads one structure from bytes. Every malformed input is a ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data, self.position, self._left = data, 0, MAX_VALUES

    def struct(self, depth: int = MAX_DEPTH) -> dict[int, Any]:
        """The fields of a structure by their numbers. A field that is given twice is an error."""
        if not depth:
            raise ValueError("its header is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while True:
            header = self._byte()
            if not header:
                return fields
            number = number + (header >> 4) if header >> 4 else self._integer()
            if number in fields:
                raise ValueError("its header has a field twice")
            fields[number] = self._value(header & 15, depth)

    def _value(self, kind: int, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError("its header has too many values")
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == BYTE:
            return self._byte()
        if kind in (I16, I32, I64):
            return self._integer()
        if kind == DOUBLE:
            return self._bytes(8)
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind in (LIST, SET):
            return self._list(depth)
        if kind == STRUCT:
            return self.struct(depth - 1)
        raise ValueError("its header has a value of an unknown type")

    def _list(self, depth: int) -> list[Any]:
        header = self._byte()
        kind, size = header & 15, header >> 4
        size = self._varint() if size == 15 else size
        if size > len(self._data) - self.position:
            raise ValueError("its header has a list that is longer than the header")
        if kind in (TRUE, FALSE):  # in a list, each is a byte
            return [self._byte() == TRUE for _ in range(size)]
        return [self._value(kind, depth) for _ in range(size)]

    def _byte(self) -> int:
        if self.position >= len(self._data):
            raise ValueError("its header ends too early")
        self.position += 1
        return self._data[self.position - 1]

    def _bytes(self, size: int) -> bytes:
        start, self.position = self.position, self.position + size
        if self.position > len(self._data):
            raise ValueError("its header ends too early")
        return self._data[start : self.position]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("its header has an integer of more than 64 bits")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
