"""Messages between this process and the child: a JSON object, and arrays as raw bytes.

Nothing is unpickled: the child runs a model that nobody has checked. The parent says which shapes it expects,
and allocates nothing else.
"""

import json
import os
import select
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]
TYPES = ("float32", "int32", "int64", "uint8", "bool")
MAX_HEADER = 2**20
_LENGTH = struct.Struct("<I")
_PIECE = 2**20


class BadMessageError(Exception):
    """The other side has ended, is too slow, or sent something unexpected."""


class Channel:
    """Two file descriptors, one to read from and one to write to."""

    def __init__(self, read: int, write: int) -> None:
        self._read_from, self._write_to = read, write

    def send(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Send an object and arrays."""
        listed = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
        text = json.dumps({**header, "arrays": listed}).encode()
        self._write(_LENGTH.pack(len(text)) + text)
        for array in arrays.values():
            if array.size:
                self._write(_bytes(np.ascontiguousarray(array)))

    def receive(
        self, seconds: float | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> tuple[dict[str, Any], Arrays]:
        """The next message, within so many seconds. With `shapes`, arrays must be float32 of these shapes."""
        deadline = None if seconds is None else time.monotonic() + seconds
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if length > MAX_HEADER:
            raise BadMessageError("a header that is too long")
        try:
            header = json.loads(bytes(self._read(length, deadline)))
            listed = [
                (str(name), str(kind), tuple(map(int, shape))) for name, kind, shape in header["arrays"]
            ]
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise BadMessageError("a message that cannot be read") from error
        if shapes is not None and listed:
            for name, _, shape in listed:
                if shape != shapes.get(name):
                    raise WrongShapeError(name, shape, shapes.get(name))
        arrays = {}
        for name, kind, shape in listed:
            if kind not in TYPES or (shapes is not None and kind != "float32"):
                raise BadMessageError(f"an array of {kind}")
            arrays[name] = np.empty(shape, kind)
            if arrays[name].size:
                self._read_into(_bytes(arrays[name]), deadline)
        return header, arrays

    def _write(self, content: bytes | memoryview) -> None:
        left = memoryview(content)
        while len(left):
            try:
                left = left[os.write(self._write_to, left[:_PIECE]) :]
            except OSError as error:
                raise BadMessageError("the other side has ended") from error

    def _read(self, count: int, deadline: float | None) -> bytearray:
        content = bytearray(count)
        self._read_into(memoryview(content), deadline)
        return content

    def _read_into(self, target: memoryview, deadline: float | None) -> None:
        while len(target):
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self._read_from], [], [], left)[0]:
                    raise TimeoutError
            piece = os.read(self._read_from, min(len(target), _PIECE))
            if not piece:
                raise BadMessageError("the other side has ended")
            target[: len(piece)] = piece
            target = target[len(piece) :]


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


class WrongShapeError(BadMessageError):
    """An output of another shape than the bundle's dimensions say."""

    def __init__(self, name: str, shape: tuple[int, ...], expected: tuple[int, ...] | None) -> None:
        super().__init__(f"the bundle returned {name} of shape {list(shape)}, not {list(expected or ())}")
