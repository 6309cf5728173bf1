"""Hypothesis strategies for graphs: valid and invalid values for every argument of `Graph`."""

import os
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from adar_runtime import Graph

FEATURES = 6  # of `described_bundle`
EXAMPLES = int(os.environ.get("ADAR_EXAMPLES", "25"))
many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES
    < 100,  # the default run is the same for everybody; torture looks elsewhere each time
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

SMALL_NUMBERS = [0.0, -0.0, 1.0, -1.5, 3.25, 1e-45, 1e-38, 1e-8]
EXTREME_NUMBERS = [np.nan, np.inf, -np.inf, 1e4, 1e30, -1e30, 3e38, 1e300]
INDICES = [-1, -(2**31), -(2**63), 2**31, 2**32, 2**63 - 1]
TYPES = ["<f4", ">f4", "<f8", ">f8", "<f2", "<i4", ">i8", "|u1", "|b1"]


class Drawn(NamedTuple):
    """Arguments of a Graph, and whether they are valid."""

    arguments: dict[str, Any]
    valid: bool

    def graph(self) -> Graph:
        return Graph(**self.arguments)


def with_layout(array: NDArray[Any], how: str) -> NDArray[Any]:
    """The same numbers in another memory layout."""
    if how == "columns first":
        return np.asfortranarray(array)
    if how == "every second":
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if how == "backwards":
        return np.ascontiguousarray(array[::-1])[::-1]
    if how == "read-only":
        array = array.copy()
        array.setflags(write=False)
    return array


layouts = st.sampled_from(["plain", "columns first", "every second", "backwards", "read-only"])


@st.composite
def numbers(draw: st.DrawFn, rows: int, *, wild: bool) -> NDArray[Any]:
    """Features, of any type and layout."""
    size = rows * FEATURES
    values = draw(
        st.lists(
            st.sampled_from(SMALL_NUMBERS + (EXTREME_NUMBERS if wild else [])), min_size=size, max_size=size
        )
    )
    with np.errstate(all="ignore"):
        array = np.array(values).reshape(rows, FEATURES)
        if not wild or np.isfinite(array).all():
            array = array.astype(draw(st.sampled_from(TYPES)))
    return with_layout(array, draw(layouts))


@st.composite
def edges(draw: st.DrawFn, nodes: int, *, wild: bool) -> NDArray[Any]:
    """Edges of a named shape, or any edges, some of them repeated."""
    some = np.arange(nodes)
    kind = draw(st.sampled_from(["any", "none", "star", "chain", "complete", "loops"]))
    if kind == "none" or not nodes:
        return np.zeros((2, 0), draw(st.sampled_from([np.int64, np.int32, np.uint8])))
    if kind == "star":
        found = np.stack([some, np.zeros_like(some)])
    elif kind == "chain":
        found = np.stack([some[:-1], some[1:]])
    elif kind == "complete":
        found = np.stack([np.repeat(some, nodes), np.tile(some, nodes)])
    elif kind == "loops":
        found = np.stack([some, some])
    else:
        index = st.integers(0, nodes - 1)
        if wild and draw(st.booleans()):
            index |= st.sampled_from([*INDICES, nodes])
        pairs = draw(st.lists(st.tuples(index, index), max_size=30))
        found = np.array(pairs, np.int64).reshape(-1, 2).T
    small = not found.size or 0 <= found.min() <= found.max() < 128
    dtype = draw(st.sampled_from(["<i8", ">i8", "<i4", "|u1", "<u8"] if small else ["<i8", ">i8"]))
    return with_layout(found.astype(dtype), draw(layouts))


@st.composite
def graphs(draw: st.DrawFn, *, wild: bool = False, targets: int | None = None) -> Drawn:
    """Arguments of a graph with described targets."""
    nodes = draw(st.integers(0 if wild else 1, 12))
    count = targets or draw(st.sampled_from([1, 2, 5]))
    given: dict[str, Any] = {
        "features": draw(numbers(nodes, wild=wild)),
        "edge_index": draw(edges(nodes, wild=wild)),
        "target_features": draw(numbers(count, wild=wild)),
    }
    if wild and draw(st.booleans()):
        length = draw(st.integers(0, 14))
        given["train_mask"] = np.ones(length, draw(st.sampled_from([np.bool_, np.int64])))
    return Drawn(given, _is_valid(nodes, given))


def _is_valid(nodes: int, given: dict[str, Any]) -> bool:
    """The checks of a Graph, written again in the simplest way."""
    edges, mask = given["edge_index"], given.get("train_mask")
    with np.errstate(all="ignore"):
        finite = all(
            np.isfinite(given[name].astype(np.float32)).all() for name in ("features", "target_features")
        )
    inside = all(0 <= int(index) < nodes for index in edges.reshape(-1))
    masked = mask is None or (mask.dtype == np.bool_ and len(mask) == nodes)
    return nodes > 0 and finite and inside and masked
