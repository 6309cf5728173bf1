"""The weights of edges in tables and in the edge attributes of NetworkX graphs."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, short
from adar_runtime.graph import Floats

WEIGHT_COLUMN = "weight"


def read_weights(values: Sequence[Any], locate: Callable[[int], str]) -> Floats:
    """The weights of edges from cells or attributes. An error says which edge, in the words of `locate`."""
    with np.errstate(over="ignore", under="ignore"):
        weights = np.array([_number(value) for value in values], np.float64).astype(np.float32)
    valid = np.isfinite(weights) & (weights > 0)
    if not valid.all():
        edge = int(valid.argmin())
        raise GraphError(
            f"{locate(edge)}: the weight of the edge is {short(repr(values[edge]))}, not a positive and "
            f"finite 32-bit number; rename {WEIGHT_COLUMN!r} if these are not weights, or remove edges that "
            "should not count"
        )
    return weights


def _number(value: Any) -> float:
    try:
        return 0.0 if isinstance(value, str) and "_" in value else float(value)  # Python reads 1_0 as 10
    except (TypeError, ValueError, OverflowError):
        return 0.0  # refused, as every weight that is not positive
