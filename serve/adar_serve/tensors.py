"""Tensors of the Open Inference Protocol: numbers in JSON or in bytes <-> numpy arrays, checked first."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import short
from adar_serve.refusals import RefusedError

DATATYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        "UINT8": "u1",
        "UINT16": "<u2",
        "UINT32": "<u4",
        "UINT64": "<u8",
        "INT8": "i1",
        "INT16": "<i2",
        "INT32": "<i4",
        "INT64": "<i8",
        "FP16": "<f2",
        "FP32": "<f4",
        "FP64": "<f8",
    }.items()
}
"""The datatypes of numbers. Models of this server take no texts and no booleans."""

NAMES = {datatype: name for name, datatype in DATATYPES.items()}
MAX_DIMENSIONS = 4


def datatype_of(array: NDArray[Any]) -> str:
    """The protocol's name of an array's type."""
    return NAMES[array.dtype]


def from_bytes(name: str, datatype: object, shape: object, content: memoryview) -> NDArray[Any]:
    """An array from the bytes of its numbers, in order of rows and little-endian. Nothing is copied."""
    kind, sizes = _kind(name, datatype), _sizes(name, shape)
    needed = math.prod(sizes) * kind.itemsize
    if len(content) != needed:
        raise RefusedError(
            400, f"{name} has {len(content):,} bytes, but its shape and datatype need {needed:,}"
        )
    return np.frombuffer(content, kind).reshape(sizes)


def from_list(name: str, datatype: object, shape: object, data: object) -> NDArray[Any]:
    """An array from numbers in a list: flat, or nested like the shape."""
    kind, sizes = _kind(name, datatype), _sizes(name, shape)
    numbers = list(_flat(name, data, sizes)) if _is_nested(data) else data
    if not isinstance(numbers, Sequence) or isinstance(numbers, str | bytes):
        raise RefusedError(400, f"{name}.data is not a list of numbers")
    if len(numbers) != math.prod(sizes):
        raise RefusedError(
            400,
            f"{name} has {len(numbers):,} numbers, but its shape {list(sizes)} needs {math.prod(sizes):,}",
        )
    allowed = {int, float} if kind.kind == "f" else {int}
    if not allowed.issuperset(map(type, numbers)):
        raise RefusedError(400, f"{name}.data contains a value that is not a number of the type {datatype}")
    try:
        with np.errstate(over="ignore"):  # infinite numbers are refused with the graph
            return np.fromiter(numbers, kind, len(numbers)).reshape(sizes)
    except (OverflowError, ValueError) as error:
        raise RefusedError(400, f"{name}.data contains a number beyond the type {datatype}") from error


def _is_nested(data: object) -> bool:
    return isinstance(data, list) and bool(data) and isinstance(data[0], list)


def _flat(name: str, data: object, sizes: tuple[int, ...]) -> Iterator[object]:
    """The numbers of lists that are nested like the shape, in order."""
    if not sizes:
        yield data
        return
    if not isinstance(data, list) or len(data) != sizes[0]:
        raise RefusedError(400, f"{name}.data is nested, but not like its shape: send one list")
    for each in data:
        yield from _flat(name, each, sizes[1:])


def _kind(name: str, datatype: object) -> np.dtype[Any]:
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise RefusedError(
            400, f"{name} has the datatype {short(datatype)!r}: send one of {', '.join(DATATYPES)}"
        )
    return DATATYPES[datatype]


def _sizes(name: str, shape: object) -> tuple[int, ...]:
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) > MAX_DIMENSIONS:
        raise RefusedError(400, f"{name}.shape is not a list of at most {MAX_DIMENSIONS} sizes")
    if any(type(size) is not int or not 0 <= size < 2**40 for size in shape):
        raise RefusedError(400, f"{name}.shape contains a value that is not a size")
    if 0 in shape and math.prod(max(1, size) for size in shape) >= 2**40:  # numpy multiplies the others
        raise RefusedError(400, f"{name}.shape is too large")
    return tuple(shape)
