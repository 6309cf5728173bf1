"""Checks that turn whatever was given into an array of the right kind, or say what is wrong with it."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError, reason, short

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
OWN: tuple[Literal["C"], Literal["W"]] = (
    "C",
    "W",
)  # contiguous and writeable: PyTorch warns of what may not be written to


def require(holds: bool, otherwise: str) -> None:
    """Raise a GraphError unless it holds."""
    if not holds:
        raise GraphError(otherwise)


def array(name: str, value: Any) -> NDArray[Any]:
    """Whatever numpy makes of it."""
    try:
        return np.asarray(value)
    except Exception as error:  # lists of unequal length, objects with an __array__ of their own, …
        raise GraphError(f"{name} is no array of numbers ({reason(error)})") from error


def matrix(name: str, value: Any) -> Floats:
    """Numbers [rows, columns]."""
    checked = floats(name, value)
    require(checked.ndim == 2, f"{name} has shape {list(checked.shape)}, not [rows, columns]")
    return checked


def floats(name: str, value: Any, *, unknown: bool = False) -> Floats:
    """Finite 32-bit numbers; with `unknown`, also NaN, for what is not known."""
    given = array(name, value)
    require(given.dtype.kind in "fiub", f"{name} holds {short(given.dtype)}, not numbers")
    with np.errstate(over="ignore"):
        converted = np.require(given, np.float32, OWN)
    finite = np.isfinite(converted) | np.isnan(converted) if unknown else np.isfinite(converted)
    if not finite.all():
        where = ", ".join(str(i) for i in np.argwhere(~finite)[0])
        raise GraphError(f"{name} has a value that is no finite 32-bit number, first at [{where}]")
    return converted


def integers(name: str, value: Any) -> Integers:
    """64-bit integers."""
    given = array(name, value)
    require(given.dtype.kind in "iu", f"{name} holds {short(given.dtype)}, not integers")
    if given.dtype == np.uint64 and given.size:
        require(int(given.max()) <= np.iinfo(np.int64).max, f"{name} has a value beyond 64-bit integers")
    return np.require(given, np.int64, OWN)


def mask(name: str, value: Any, outputs: int) -> Mask:
    """Booleans [splits, outputs], of one split or more."""
    given = np.atleast_2d(array(name, value))
    require(given.dtype == np.bool_, f"{name} holds {short(given.dtype)}, not booleans")
    require(
        given.ndim == 2 and given.shape[1] == outputs,
        f"{name} has shape {list(given.shape)}, not [splits, {outputs}]",
    )
    require(len(given) > 0, f"{name} has no splits: leave it out, or give at least one")
    return np.require(given, np.bool_, OWN)


def names(name: str, value: Any) -> tuple[str, ...]:
    """A list of strings."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    # Not by way of an array: it would give every string the room of the longest.
    strings = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    require(strings, f"{name} has to be a list of strings")
    return tuple(value)


def within(name: str, indices: Integers, limit: int, what: str) -> None:
    """All indices lie in [0, limit)."""
    if not indices.size:
        return
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= limit:
        raise GraphError(
            f"{name} has {low if low < 0 else high}, and there are {limit} {what} (0 to {limit - 1})"
        )
