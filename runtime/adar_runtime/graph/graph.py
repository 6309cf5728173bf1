"""Graph: what a graph is, and every check on it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, short
from adar_runtime.graph import checks
from adar_runtime.graph.checks import Floats, Integers, Mask, require
from adar_runtime.graph.limits import MAX_CLASSES, MAX_COLUMNS

__all__ = ["EDGE", "GRAPH", "LEVELS", "MASKS", "NODE", "Floats", "Graph", "Integers", "Mask", "SparseRows"]

ALL = "all"  # the part of a split that is all of it
NODE, EDGE, GRAPH = LEVELS = ("node", "edge", "graph")
"""What predictions are made for."""

PARTS = ("train", "val", "test")
"""The parts of a split."""

MASKS = tuple(f"{part}_mask" for part in PARTS)


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A matrix by its non-zero entries, row after row (CSR): for bag-of-words features."""

    starts: Integers  # [rows + 1]
    columns: Integers  # [entries]
    values: Floats  # [entries]
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        _set(self, starts=checks.integers("x_indptr", self.starts))
        _set(self, columns=checks.integers("x_indices", self.columns))
        _set(self, values=checks.floats("x_data", self.values))
        rows, width = self.shape
        require(rows >= 0 and width >= 0, f"x_shape is {self.shape}, and a shape has no negative side")
        require(width <= MAX_COLUMNS, f"x has {width:,} columns: up to {MAX_COLUMNS:,} work")
        require(self.starts.shape == (rows + 1,), f"x_indptr has to have {rows + 1} entries for {rows} rows")
        require(
            self.columns.shape == self.values.shape and self.values.ndim == 1,
            "x_indices and x_data differ in length",
        )
        ordered = (
            self.starts[0] == 0 and self.starts[-1] == len(self.values) and (np.diff(self.starts) >= 0).all()
        )
        require(bool(ordered), "x_indptr has to rise from 0 to the number of entries in x_data")
        checks.within("x_indices", self.columns, width, "columns")
        self._sort()

    def dense(self, start: int, stop: int) -> Floats:
        """Rows start to stop with their zeros."""
        rows = np.repeat(np.arange(stop - start), np.diff(self.starts[start : stop + 1]))
        entries = slice(self.starts[start], self.starts[stop])
        block = np.zeros((stop - start, self.shape[1]), np.float32)
        block[rows, self.columns[entries]] = self.values[entries]
        return block

    def _sort(self) -> None:
        """Bring every row's columns into order, each once; entries given twice add up."""
        rows, width = self.shape
        place = np.repeat(np.arange(rows), np.diff(self.starts)) * width + self.columns
        if (np.diff(place) > 0).all():
            return
        unique, entry = np.unique(place, return_inverse=True)
        _set(self, values=np.bincount(entry, self.values, len(unique)).astype(np.float32))
        _set(self, columns=unique % width)
        _set(self, starts=np.concatenate([[0], np.cumsum(np.bincount(unique // width, minlength=rows))]))


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with features, and whatever else is known about it. Building one checks it.

    Numbers are brought to float32 and int64; a value that does not fit, an index beyond the graph or
    a NaN, but in a label that is a number, is a GraphError that says where.

    What is predicted is counted by `outputs` (k): each of the nodes, each of the `pairs` of nodes
    (level "edge"), or the graph itself (level "graph").
    """

    features: Floats | SparseRows  # [n, f]
    edge_index: Integers  # [2, m], row 0 source, row 1 target
    # [k] classes, -1 where unknown; or [k, c] numbers (regression), with a NaN where unknown
    labels: Integers | Floats | None = None
    train_mask: Mask | None = None  # [splits, k], as are the other two
    val_mask: Mask | None = None
    test_mask: Mask | None = None
    target_features: Floats | None = None  # [c, f], descriptions of the classes
    class_names: tuple[str, ...] | None = None  # [c]
    pairs: Integers | None = None  # [2, k], nodes whose link is to be judged
    level: str = NODE

    def __post_init__(self) -> None:
        if not isinstance(self.features, SparseRows):
            _set(self, features=checks.matrix("x", self.features))
        require(self.nodes > 0, "the graph is empty: x has no rows")
        require(self.width > 0, "x has no columns: every node needs at least one feature")
        require(self.width <= MAX_COLUMNS, f"x has {self.width:,} columns: up to {MAX_COLUMNS:,} work")
        _set(self, edge_index=self._node_pairs("edge_index", self.edge_index))
        if self.pairs is not None:
            _set(self, pairs=self._node_pairs("pairs", self.pairs), level=EDGE)
            require(self.outputs > 0, "pairs is empty: there is nothing to judge")
        require(self.level in LEVELS, f"level is {short(self.level)!r}, not one of {', '.join(LEVELS)}")
        require(self.level != EDGE or self.pairs is not None, "level is 'edge', and there are no pairs")
        self._check_masks()
        self._check_targets()

    def _check_masks(self) -> None:
        given = {name: getattr(self, name) for name in MASKS if getattr(self, name) is not None}
        masks = {name: checks.mask(name, value, self.outputs) for name, value in given.items()}
        splits = {name: len(mask) for name, mask in masks.items()}
        if len(set(splits.values())) > 1:
            found = ", ".join(f"{name} {count}" for name, count in splits.items())
            raise GraphError(f"the masks differ in their number of splits: {found}")
        _set(self, **masks)

    def _check_targets(self) -> None:
        if self.labels is not None:
            _set(self, labels=self._labels(self.labels))
        shown = self._shown()
        if self.target_features is not None:
            targets = checks.matrix("target_x", self.target_features)
            require(len(targets) > 0, "target_x has no rows: describe at least one class")
            require(
                targets.shape[1] == self.width,
                f"target_x has {targets.shape[1]} columns, x has {self.width}: they have to be of one space",
            )
            require(
                shown == len(targets) if self.regression else shown <= len(targets),
                f"target_x describes {len(targets)} classes, and y speaks of {shown:,}",
            )
            _set(self, target_features=targets)
        require(
            self.targets <= MAX_CLASSES, f"there are {self.targets:,} classes: up to {MAX_CLASSES:,} work"
        )
        if self.class_names is not None:
            _set(self, class_names=checks.names("class_names", self.class_names))

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
        return self._shown() if self.target_features is None else len(self.target_features)

    def _shown(self) -> int:
        """How many targets the labels show."""
        if self.labels is None:
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
        known = ~np.isnan(self.labels).any(axis=1) if self.regression else self.labels >= 0
        chosen: Mask = masks[split] & known
        return chosen if chosen.any() else None

    def _node_pairs(self, name: str, value: Any) -> Integers:
        pairs = checks.integers(name, value)
        require(pairs.ndim == 2 and len(pairs) == 2, f"{name} has shape {list(pairs.shape)}, not [2, edges]")
        checks.within(name, pairs, self.nodes, "nodes")
        return pairs

    def _labels(self, value: Any) -> Integers | Floats:
        value, what = checks.array("y", value), {NODE: "nodes", EDGE: "pairs", GRAPH: "graph"}[self.level]
        numbers = value.dtype.kind == "f"
        labels = checks.floats("y", value, unknown=True) if numbers else checks.integers("y", value)
        require(
            labels.ndim in (1, 2) and len(labels) == self.outputs and labels.size > 0,
            f"y has shape {list(labels.shape)}, not one label for each of {self.outputs} {what}",
        )
        if labels.dtype == np.float32:
            return labels.reshape(self.outputs, -1)
        labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
        require(labels.ndim == 1, "y has several columns of integers; numbers to come close to are floats")
        require(int(labels.min()) >= -1, "y has a label below -1; -1 stands for unknown")
        return labels


def _set(frozen: object, **values: object) -> None:
    """Put the checked, converted value in place of the given one."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)
