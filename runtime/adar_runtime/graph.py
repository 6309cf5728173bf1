"""Graph: what a graph is, and every check on it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

ALL = "all"  # the part of a split that is all of it
NODE, EDGE, GRAPH = LEVELS = ("node", "edge", "graph")
"""What predictions are made for."""


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A matrix by its non-zero entries, row after row (CSR): for bag-of-words features."""

    starts: Integers  # [rows + 1]
    columns: Integers  # [entries]
    values: Floats  # [entries]
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        _set(self, starts=_integers("x_indptr", self.starts), columns=_integers("x_indices", self.columns))
        _set(self, values=_floats("x_data", self.values))
        rows, width = self.shape
        _require(rows >= 0 and width >= 0, f"x_shape is {self.shape}, and a shape has no negative side")
        _require(self.starts.shape == (rows + 1,), f"x_indptr has to have {rows + 1} entries for {rows} rows")
        _require(
            self.columns.shape == self.values.shape and self.values.ndim == 1,
            "x_indices and x_data differ in length",
        )
        ordered = (
            self.starts[0] == 0 and self.starts[-1] == len(self.values) and (np.diff(self.starts) >= 0).all()
        )
        _require(bool(ordered), "x_indptr has to rise from 0 to the number of entries in x_data")
        _within("x_indices", self.columns, width, "columns")

    def dense(self, start: int, stop: int) -> Floats:
        """Rows start to stop with their zeros; entries given twice add up."""
        rows = np.repeat(np.arange(stop - start), np.diff(self.starts[start : stop + 1]))
        entries = slice(self.starts[start], self.starts[stop])
        block = np.zeros((stop - start, self.shape[1]), np.float32)
        np.add.at(block, (rows, self.columns[entries]), self.values[entries])
        return block


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with features, and whatever else is known about it. Building one checks it.

    Numbers are brought to float32 and int64; a value that does not fit, an index beyond the graph or
    a NaN is a GraphError that says where.

    What is predicted is counted by `outputs` (k): each of the nodes, each of the `pairs` of nodes
    (level "edge"), or the graph itself (level "graph").
    """

    features: Floats | SparseRows  # [n, f]
    edge_index: Integers  # [2, m], row 0 source, row 1 target
    labels: Integers | Floats | None = None  # [k] classes, -1 where unknown; or [k, c] numbers (regression)
    train_mask: Mask | None = None  # [splits, k], as are the other two
    val_mask: Mask | None = None
    test_mask: Mask | None = None
    target_features: Floats | None = None  # [c, f], descriptions of the classes
    class_names: tuple[str, ...] | None = None  # [c]
    pairs: Integers | None = None  # [2, k], nodes whose link is to be judged
    level: str = NODE

    def __post_init__(self) -> None:
        if not isinstance(self.features, SparseRows):
            _set(self, features=_matrix("x", self.features))
        _require(self.nodes > 0, "the graph is empty: x has no rows")
        _require(self.width > 0, "x has no columns: every node needs at least one feature")
        _set(self, edge_index=self._node_pairs("edge_index", self.edge_index))
        if self.pairs is not None:
            _set(self, pairs=self._node_pairs("pairs", self.pairs), level=EDGE)
        _require(self.level in LEVELS, f"level is {self.level!r}, not one of {', '.join(LEVELS)}")
        _require(self.level != EDGE or self.pairs is not None, "level is 'edge', and there are no pairs")
        if self.labels is not None:
            _set(self, labels=self._labels(self.labels))
        for name in ("train_mask", "val_mask", "test_mask"):
            mask = getattr(self, name)
            if mask is not None:
                _set(self, **{name: self._mask(name, mask)})
        if self.target_features is not None:
            targets = _matrix("target_x", self.target_features)
            _require(len(targets) > 0, "target_x has no rows: describe at least one class")
            _require(
                targets.shape[1] == self.width,
                f"target_x has {targets.shape[1]} columns, x has {self.width}: they have to be of one space",
            )
            _set(self, target_features=targets)
        if self.class_names is not None:
            _set(self, class_names=tuple(str(name) for name in self.class_names))

    @property
    def nodes(self) -> int:
        return self.features.shape[0]

    @property
    def edges(self) -> int:
        return self.edge_index.shape[1]

    @property
    def width(self) -> int:
        """f, the number of feature columns."""
        return self.features.shape[1]

    @property
    def outputs(self) -> int:
        """k, how many things are predicted."""
        if self.pairs is not None:
            return self.pairs.shape[1]
        return self.nodes if self.level == NODE else 1

    @property
    def regression(self) -> bool:
        """Whether the labels are numbers to come close to, not classes."""
        return self.labels is not None and self.labels.dtype == np.float32

    @property
    def targets(self) -> int:
        """c: how many classes or attributes the descriptions name or, without any, the labels show."""
        if self.target_features is not None:
            return len(self.target_features)
        if self.labels is None or not self.labels.size:
            return 0
        return self.labels.shape[1] if self.regression else int(self.labels.max()) + 1

    def rows(self, start: int, stop: int) -> Floats:
        """Features of the nodes start to stop, dense."""
        if isinstance(self.features, SparseRows):
            return self.features.dense(start, min(stop, self.nodes))
        return self.features[start:stop]

    def labelled(self, name: str, split: int = 0) -> Mask | None:
        """Which outputs of a part ("train", "val", "test", "all") have a known label; None if none has."""
        if self.labels is None:
            return None
        everything = np.ones((split + 1, self.outputs), np.bool_)
        masks: Mask | None = everything if name == ALL else getattr(self, f"{name}_mask")
        if masks is None:
            return None
        if not 0 <= split < len(masks):
            raise GraphError(f"there is no split {split}: the graph has splits 0 to {len(masks) - 1}")
        chosen: Mask = masks[split] if self.regression else masks[split] & (self.labels >= 0)
        return chosen if chosen.any() else None

    def _node_pairs(self, name: str, value: Any) -> Integers:
        pairs = _integers(name, value)
        _require(pairs.ndim == 2 and len(pairs) == 2, f"{name} has shape {list(pairs.shape)}, not [2, edges]")
        _within(name, pairs, self.nodes, "nodes")
        return pairs

    def _labels(self, value: Any) -> Integers | Floats:
        value, what = np.asarray(value), {NODE: "nodes", EDGE: "pairs", GRAPH: "graph"}[self.level]
        labels = _floats("y", value) if value.dtype.kind == "f" else _integers("y", value)
        _require(
            labels.ndim in (1, 2) and len(labels) == self.outputs,
            f"y has shape {list(labels.shape)}, not one label for each of {self.outputs} {what}",
        )
        if labels.dtype == np.float32:
            return labels.reshape(self.outputs, -1)
        labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
        _require(labels.ndim == 1, "y has several columns of integers; numbers to come close to are floats")
        _require(not labels.size or int(labels.min()) >= -1, "y has a label below -1; -1 stands for unknown")
        return labels

    def _mask(self, name: str, mask: Any) -> Mask:
        mask = np.atleast_2d(np.asarray(mask))
        _require(mask.dtype == np.bool_, f"{name} holds {mask.dtype}, not booleans")
        _require(
            mask.ndim == 2 and mask.shape[1] == self.outputs,
            f"{name} has shape {list(mask.shape)}, not [splits, {self.outputs}]",
        )
        return np.ascontiguousarray(mask)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise GraphError(otherwise)


def _set(frozen: object, **values: object) -> None:
    """Put the checked, converted value in place of the given one."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


def _matrix(name: str, value: Any) -> Floats:
    matrix = _floats(name, value)
    _require(matrix.ndim == 2, f"{name} has shape {list(matrix.shape)}, not [rows, columns]")
    return matrix


def _floats(name: str, value: Any) -> Floats:
    array = np.asarray(value)
    _require(array.dtype.kind in "fiub", f"{name} holds {array.dtype}, not numbers")
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(array, dtype=np.float32)
    finite = np.isfinite(converted)
    if not finite.all():
        where = ", ".join(str(i) for i in np.argwhere(~finite)[0])
        raise GraphError(f"{name} has a value that is no finite 32-bit number, first at [{where}]")
    return converted


def _integers(name: str, value: Any) -> Integers:
    array = np.asarray(value)
    _require(array.dtype.kind in "iu", f"{name} holds {array.dtype}, not integers")
    if array.dtype == np.uint64 and array.size:
        _require(int(array.max()) <= np.iinfo(np.int64).max, f"{name} has a value beyond 64-bit integers")
    return np.ascontiguousarray(array, dtype=np.int64)


def _within(name: str, indices: Integers, limit: int, what: str) -> None:
    """All indices lie in [0, limit)."""
    if not indices.size:
        return
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= limit:
        raise GraphError(
            f"{name} has {low if low < 0 else high}, and there are {limit} {what} (0 to {limit - 1})"
        )
