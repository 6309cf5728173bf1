"""Convert the arguments of a `Graph` to arrays of the right type, or raise a GraphError that says why not."""

import sys
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError, reason, short
from adar_runtime.graph.limits import MAX_NAME, MAX_SPLITS

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Ids = NDArray[np.int64] | NDArray[np.str_]
# Contiguous and writeable: PyTorch warns about read-only arrays.
SURROGATES = range(0xD800, 0xE000)  # halves of UTF-16 pairs, which are not characters
LAYOUT: tuple[Literal["C"], Literal["W"]] = ("C", "W")


def require(condition: bool, message: str) -> None:
    """Raise a GraphError unless the condition holds."""
    if not condition:
        raise GraphError(message)


def array(name: str, value: Any) -> NDArray[Any]:
    """Any value as a numpy array."""
    if np.ma.is_masked(value):  # numpy would use the values behind the mask
        raise GraphError(
            f"{name} has masked values: replace them, such as {name}.filled(-1) for unknown labels"
        )
    try:
        return np.asarray(value)
    except Exception as error:  # lists of unequal length, objects with their own __array__, …
        raise GraphError(f"{name} is not an array of numbers ({reason(error)})") from error


def matrix(name: str, value: Any) -> Floats:
    """Numbers [rows, columns]."""
    checked = floats(name, value)
    require(checked.ndim == 2, f"{name} has shape {list(checked.shape)}, not [rows, columns]")
    return checked


def floats(name: str, value: Any, *, allow_nan: bool = False) -> Floats:
    """Finite 32-bit numbers; with `allow_nan`, also NaN for unknown values."""
    given = array(name, value)
    require(given.dtype.kind in "fiub", f"{name} holds {short(given.dtype)}, not numbers")
    with np.errstate(over="ignore"):
        converted = np.require(given, np.float32, LAYOUT)
    finite = np.isfinite(converted)
    if allow_nan:
        finite |= np.isnan(converted)
    if not finite.all():
        where = ", ".join(str(i) for i in np.unravel_index(int(finite.argmin()), finite.shape))
        raise GraphError(f"{name} contains a value that is not a finite 32-bit number, first at [{where}]")
    return converted


def edge_weights(value: Any, edges: int) -> Floats:
    """One positive, finite 32-bit number for each edge, [edges]; [edges, 1] is taken too."""
    given = array("edge_weight", value)
    require(given.dtype.kind in "fiu", f"edge_weight holds {short(given.dtype)}, not numbers")
    require(
        given.shape in ((edges,), (edges, 1)),
        f"edge_weight has shape {list(given.shape)}, not one weight for each of {edges:,} edges",
    )
    with np.errstate(over="ignore"):
        converted = np.require(given.reshape(-1), np.float32, LAYOUT)
    valid = np.isfinite(converted) & (converted > 0)
    if not valid.all():
        edge = int(valid.argmin())
        raise GraphError(
            f"edge {edge} has the weight {given.flat[edge]}; edge weights must be positive and finite "
            "32-bit numbers (remove an edge that should not count)"
        )
    return converted


def integers(name: str, value: Any) -> Integers:
    """64-bit integers."""
    given = array(name, value)
    hint = f": convert it, such as {name}.astype(int) or {name}.long()" if given.dtype.kind == "f" else ""
    require(given.dtype.kind in "iu", f"{name} holds {short(given.dtype)}, not integers{hint}")
    if given.dtype == np.uint64 and given.size:
        require(int(given.max()) <= np.iinfo(np.int64).max, f"{name} contains a value beyond 64-bit integers")
    return np.require(given, np.int64, LAYOUT)


def rises(numbers: NDArray[Any], *, strictly: bool = False) -> bool:
    """Whether no number is smaller than the one before; `strictly`: each one is larger.

    Compared, not subtracted: a difference wraps around beyond 64 bits, and `np.repeat` writes outside its
    memory if such differences are its counts.
    """
    compare = np.greater if strictly else np.greater_equal
    return bool(compare(numbers[1:], numbers[:-1]).all())


def mask(name: str, value: Any, outputs: int) -> Mask:
    """Booleans [splits, outputs]; [outputs] is taken as one split."""
    given = np.atleast_2d(array(name, value))
    require(given.dtype == np.bool_, f"{name} holds {short(given.dtype)}, not booleans")
    require(
        given.ndim == 2 and given.shape[1] == outputs,
        f"{name} has shape {list(given.shape)}, not [splits, {outputs}]",
    )
    require(len(given) > 0, f"{name} has no splits: omit it, or give at least one")
    require(
        len(given) <= MAX_SPLITS, f"{name} has {len(given):,} splits; at most {MAX_SPLITS:,} are supported"
    )
    return np.require(given, np.bool_, LAYOUT)


def ids(value: Any, nodes: int) -> Ids:
    """The id of each node [nodes]: different integers, or different strings that are not empty."""
    found = readable_ids(value, nodes)
    _check_different(found.tolist())
    return found


def readable_ids(value: Any, nodes: int) -> Ids:
    """Integers or valid strings [nodes], which may be equal: a part of a large graph is not compared."""
    given = array("ids", value)
    if given.dtype.kind in "OT":  # a column of pandas, or numpy's strings of variable length
        require(all(isinstance(each, str) for each in given.ravel()), "ids must be integers or strings")
        given = given.astype(np.str_)
    require(
        given.shape == (nodes,), f"ids has shape {list(given.shape)}, not one id for each of {nodes} nodes"
    )
    if given.dtype.kind in "iu":
        found: Ids = integers("ids", given)
    else:
        require(given.dtype.kind == "U", f"ids holds {short(given.dtype)}, not integers or strings")
        codes = np.ascontiguousarray(given).view(np.dtype(np.uint32).newbyteorder(given.dtype.byteorder))
        valid = (codes <= sys.maxunicode) & ((codes < SURROGATES.start) | (codes >= SURROGATES.stop))
        require(bool(valid.all()), "ids contains characters that are not valid Unicode text")
        found = np.require(given, given.dtype.newbyteorder("="), LAYOUT)
    return found


def _check_different(found: list[Any]) -> None:
    if len(set(found)) == len(found) and "" not in found:
        return
    position: dict[Any, int] = {}
    for node, each in enumerate(found):
        if each == "":
            raise GraphError(f"ids[{node}] is empty: give every node an id")
        if each in position:
            raise GraphError(f"ids contains {short(repr(each))} twice, at nodes {position[each]} and {node}")
        position[each] = node


class Names(tuple[str, ...]):
    """Strings that `names` has checked. Many graphs can share them without another check."""

    __slots__ = ()


def names(name: str, value: Any) -> Names:
    """A list of strings."""
    if isinstance(value, Names):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = _strings(name, value)
    # Not converted to an array: every string would then take the memory of the longest.
    strings = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    require(strings, f"{name} must be a list of strings")
    for position, each in enumerate(value):
        if not _is_text(each):
            raise GraphError(f"{name}[{position}] contains characters that are not valid Unicode text")
        if len(each) > MAX_NAME:
            raise GraphError(
                f"{name}[{position}] ({each[:30]!r}…) has {len(each):,} characters; at most {MAX_NAME:,} are "
                "supported: give it a shorter name"
            )
    return Names(value)


def _strings(name: str, value: NDArray[Any]) -> list[Any]:
    if value.dtype.kind == "U" and value.size:  # numpy keeps 4 bytes per character and does not check them
        codes = np.ascontiguousarray(value).view(np.dtype(np.uint32).newbyteorder(value.dtype.byteorder))
        valid = int(codes.max(initial=0)) <= sys.maxunicode
        require(valid, f"{name} contains characters that are not valid Unicode text")
    return value.tolist()


def _is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8; lone surrogates cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_range(name: str, indices: Integers, count: int, what: str) -> None:
    """Raise a GraphError unless all indices are in 0 … count - 1."""
    if not indices.size:
        return
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= count:
        wrong = low if low < 0 else high
        if not count:
            raise GraphError(f"{name} contains {wrong}, but there are no {what}")
        hint = "; are the ids 1-based?" if low >= 1 and high == count else ""
        raise GraphError(f"{name} contains {wrong}, but valid {what} are 0–{count - 1}{hint}")
