"""`Graph` and `SparseRows`: the user's data, checked when it is built."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from adar_runtime import summaries
from adar_runtime.errors import GraphError, short, warn
from adar_runtime.graph import _checks as checks
from adar_runtime.graph._checks import Floats, Ids, Integers, Mask, require
from adar_runtime.graph.feature_encoding import FeatureEncoding
from adar_runtime.graph.limits import MAX_CLASSES, MAX_COLUMNS

NODE, EDGE, GRAPH = LEVELS = ("node", "edge", "graph")
"""What predictions are made for: each node, each pair of nodes, or the whole graph."""

PARTS = ("train", "val", "test")
"""The parts of a split."""

ALL = "all"
"""All outputs, as the name of a part."""

MASKS = tuple(f"{part}_mask" for part in PARTS)
"""The mask fields of a `Graph`."""


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A sparse matrix in CSR layout, for features with many zeros such as bags of words.

    Row i has the values `values[starts[i] : starts[i + 1]]` in the columns
    `columns[starts[i] : starts[i + 1]]`. Columns may be in any order. Entries that are given twice add up.

    Args:
        starts: [rows + 1] integers, from 0 to the number of entries (scipy: `indptr`).
        columns: [entries] integers, the column of each entry (scipy: `indices`).
        values: [entries] finite numbers (scipy: `data`).
        shape: (rows, columns) of the matrix.

    Raises:
        GraphError: The arrays do not describe a matrix of this shape.

    Examples:
        >>> SparseRows([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3)).dense(0, 2).tolist()
        [[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]
    """

    starts: Integers
    columns: Integers
    values: Floats
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        _set(self, starts=checks.integers("x_indptr", self.starts))
        _set(self, columns=checks.integers("x_indices", self.columns))
        _set(self, values=checks.floats("x_data", self.values))
        rows, width = self.shape
        require(rows >= 0 and width >= 0, f"x_shape is {self.shape}: sizes must not be negative")
        require(width <= MAX_COLUMNS, f"x has {width:,} columns; at most {MAX_COLUMNS:,} are supported")
        require(self.starts.shape == (rows + 1,), f"x_indptr must have {rows + 1} entries for {rows} rows")
        require(
            self.columns.shape == self.values.shape and self.values.ndim == 1,
            "x_indices and x_data differ in length",
        )
        ordered = self.starts[0] == 0 and self.starts[-1] == len(self.values) and checks.rises(self.starts)
        require(bool(ordered), "x_indptr must increase from 0 to the number of entries in x_data")
        checks.check_range("x_indices", self.columns, width, "columns")
        self._sort()

    def dense(self, start: int, stop: int) -> Floats:
        """Rows start … stop - 1 as a dense matrix [stop - start, columns]."""
        rows = np.repeat(np.arange(stop - start), np.diff(self.starts[start : stop + 1]))
        entries = slice(self.starts[start], self.starts[stop])
        block = np.zeros((stop - start, self.shape[1]), np.float32)
        block[rows, self.columns[entries]] = self.values[entries]
        return block

    def take(self, rows: Integers) -> "SparseRows":
        """Some rows, in this order."""
        counts = np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(counts)])
        entries = np.repeat(self.starts[rows] - starts[:-1], counts) + np.arange(starts[-1])
        return SparseRows(starts, self.columns[entries], self.values[entries], (len(rows), self.shape[1]))

    def _sort(self) -> None:
        """Sort the columns of every row, and add up entries that are given twice."""
        rows, width = self.shape
        rising = np.ones(len(self.columns) + 1, np.bool_)  # is the column above that of the entry before?
        np.greater(self.columns[1:], self.columns[:-1], out=rising[1:-1])
        rising[self.starts] = True  # the first entry of a row
        if rising.all():
            return
        position = np.repeat(np.arange(rows), np.diff(self.starts))
        position *= width
        position += self.columns
        unique, entry = np.unique(position, return_inverse=True)
        sums = np.bincount(entry, self.values, len(unique))
        _set(self, values=checks.floats("x_data, after equal entries are added,", sums))
        _set(self, columns=unique % width)
        _set(self, starts=np.concatenate([[0], np.cumsum(np.bincount(unique // width, minlength=rows))]))


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with node features and, optionally, labels, splits and class descriptions.

    All arguments are checked and converted to float32, int64 or bool when a graph is built. An array of the
    right type is not copied: do not change it afterwards. Shapes use
    n nodes, f features, m edges, c classes and k outputs. A model predicts k outputs: n for the level
    "node", one per pair for "edge", and 1 for "graph".

    Args:
        features: [n, f] finite numbers.
        edge_index: [2, m] node ids, row 0 the sources, row 1 the targets. A node receives messages along
            its incoming edges only: give both directions for an undirected graph.
        labels: [k] classes from 0, -1 where unknown; or [k, c] floats for regression, NaN where unknown.
        train_mask: [splits, k] booleans, the outputs to train on; [k] is one split.
        val_mask: Same, the outputs to validate on.
        test_mask: Same, the outputs to test on.
        target_features: [c, f] descriptions of the classes, for zero-shot models.
        class_names: [c] strings.
        pairs: [2, k] node ids, the pairs to predict. Sets the level "edge".
        level: "node", "edge" or "graph": what a prediction is made for.
        ids: [n] integers or strings, the name of each node in the user's data. Predictions carry them.
        feature_encoding: How a table's columns became the features. A model keeps it for later tables.
        edge_weight: [m] positive numbers, one per edge. A node averages the messages of its neighbours with
            these weights; its own message has the weight 1. Weights of repeated edges add up.

    Raises:
        GraphError: An argument has the wrong shape or type, an id is out of range, or a value is not finite.

    Examples:
        >>> graph = Graph(features=[[1.0], [2.0], [3.0]], edge_index=[[0, 1], [1, 2]], labels=[0, 1, -1])
        >>> graph.nodes, graph.edges, graph.targets
        (3, 2, 2)
    """

    features: Floats | SparseRows
    edge_index: Integers
    labels: Integers | Floats | None = None
    train_mask: Mask | None = None
    val_mask: Mask | None = None
    test_mask: Mask | None = None
    target_features: Floats | None = None
    class_names: tuple[str, ...] | None = None
    pairs: Integers | None = None
    level: str = NODE
    ids: Ids | None = None
    feature_encoding: FeatureEncoding | None = None
    edge_weight: Floats | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.features, SparseRows):
            _set(self, features=checks.matrix("x", self.features))
        require(self.nodes > 0, "the graph is empty: x has no rows")
        require(self.width > 0, "x has no columns: every node needs at least one feature")
        require(
            self.width <= MAX_COLUMNS, f"x has {self.width:,} columns; at most {MAX_COLUMNS:,} are supported"
        )
        _set(self, edge_index=self._node_pairs("edge_index", self.edge_index))
        if self.edge_weight is not None:
            _set(self, edge_weight=checks.edge_weights(self.edge_weight, self.edges))
        if self.pairs is not None:
            require(self.level != GRAPH, "level is 'graph', but pairs are given: omit one of the two")
            _set(self, pairs=self._node_pairs("pairs", self.pairs), level=EDGE)
            require(self.outputs > 0, "pairs is empty: give at least one pair of nodes")
        require(self.level in LEVELS, f"level is {short(self.level)!r}, not one of {', '.join(LEVELS)}")
        require(self.level != EDGE or self.pairs is not None, "level is 'edge', but pairs is missing")
        self._check_masks()
        self._check_targets()
        self._check_origin()

    def _check_masks(self) -> None:
        given = {name: getattr(self, name) for name in MASKS if getattr(self, name) is not None}
        masks = {name: checks.mask(name, value, self.outputs) for name, value in given.items()}
        splits = {name: len(mask) for name, mask in masks.items()}
        if len(set(splits.values())) > 1:
            found = ", ".join(f"{name} {count}" for name, count in splits.items())
            raise GraphError(f"the masks have different numbers of splits: {found}")
        _set(self, **masks)

    def _check_targets(self) -> None:
        if self.labels is not None:
            _set(self, labels=self._labels(self.labels))
        in_labels = self._targets_in_labels()
        if self.target_features is not None:
            targets = checks.matrix("target_x", self.target_features)
            require(len(targets) > 0, "target_x has no rows: describe at least one class")
            require(
                targets.shape[1] == self.width,
                f"target_x has {targets.shape[1]} columns, but x has {self.width}: they must be equal",
            )
            require(
                in_labels == len(targets) if self.regression else in_labels <= len(targets),
                f"target_x describes {len(targets)} classes, but y has {in_labels:,}",
            )
            _set(self, target_features=targets)
        require(
            self.targets <= MAX_CLASSES,
            f"the graph has {self.targets:,} classes; at most {MAX_CLASSES:,} are supported",
        )
        if self.class_names is not None:
            _set(self, class_names=checks.names("class_names", self.class_names))

    def _check_origin(self) -> None:
        if self.ids is not None:
            _set(self, ids=checks.ids(self.ids, self.nodes))
        if self.feature_encoding is not None:
            width = self.feature_encoding.width
            require(
                width == self.width, f"feature_encoding describes {width:,} columns; x has {self.width:,}"
            )

    def __repr__(self) -> str:
        return summaries.line("Graph", summaries.graph_facts(self))

    def _repr_html_(self) -> str:
        return summaries.table("Graph", summaries.graph_facts(self))

    @property
    def nodes(self) -> int:
        """n, the number of nodes."""
        return self.features.shape[0]

    @property
    def edges(self) -> int:
        """m, the number of edges."""
        return self.edge_index.shape[1]

    @property
    def width(self) -> int:
        """f, the number of feature columns."""
        return self.features.shape[1]

    @property
    def outputs(self) -> int:
        """k, the number of predictions."""
        if self.pairs is not None:
            return self.pairs.shape[1]
        return self.nodes if self.level == NODE else 1

    @property
    def output_ids(self) -> Ids | None:
        """The ids of the nodes [k] or of the pairs [2, k]; None without ids, or for one output per graph."""
        if self.ids is None or self.level == GRAPH:
            return None
        return self.ids if self.pairs is None else self.ids[self.pairs]

    @property
    def regression(self) -> bool:
        """Whether the labels are regression targets, not classes."""
        return self.labels is not None and self.labels.dtype == np.float32

    @property
    def targets(self) -> int:
        """c, the number of classes or regression targets: of `target_features`, or else of the labels."""
        return self._targets_in_labels() if self.target_features is None else len(self.target_features)

    def _targets_in_labels(self) -> int:
        if self.labels is None:
            return 0
        return self.labels.shape[1] if self.regression else int(self.labels.max()) + 1

    def rows(self, start: int, stop: int) -> Floats:
        """Features of the nodes start … stop - 1 as a dense matrix [stop - start, f]."""
        if isinstance(self.features, SparseRows):
            return self.features.dense(start, min(stop, self.nodes))
        return self.features[start:stop]

    def labelled(self, part: str, split: int = 0) -> Mask | None:
        """Find the outputs of a part that have a known label.

        Args:
            part: "train", "val", "test" or "all".
            split: Number of the split, from 0.

        Returns:
            [k] booleans; None if no output of the part has a label.

        Raises:
            GraphError: The graph has no such split.
        """
        if self.labels is None:
            return None
        masks: Mask | None = None if part == ALL else getattr(self, f"{part}_mask")
        if masks is None and part != ALL:
            return None
        if masks is not None and not 0 <= split < len(masks):
            raise GraphError(f"split {split} does not exist: the graph has splits 0 to {len(masks) - 1}")
        known = ~np.isnan(self.labels).any(axis=1) if self.regression else self.labels >= 0
        chosen: Mask = np.asarray(known) if masks is None else masks[split] & known
        return chosen if chosen.any() else None

    def _node_pairs(self, name: str, value: Any) -> Integers:
        pairs = checks.integers(name, value)
        hint = ": transpose it" if pairs.ndim == 2 and pairs.shape[1] == 2 else ""
        require(
            pairs.ndim == 2 and len(pairs) == 2, f"{name} has shape {list(pairs.shape)}, not [2, edges]{hint}"
        )
        checks.check_range(name, pairs, self.nodes, "ids")
        return pairs

    def _labels(self, value: Any) -> Integers | Floats:
        value, what = checks.array("y", value), {NODE: "nodes", EDGE: "pairs", GRAPH: "graph"}[self.level]
        numbers = value.dtype.kind == "f"
        labels = checks.floats("y", value, allow_nan=True) if numbers else checks.integers("y", value)
        require(
            labels.ndim in (1, 2) and len(labels) == self.outputs and labels.size > 0,
            f"y has shape {list(labels.shape)}, not one label for each of {self.outputs} {what}",
        )
        if labels.dtype == np.float32:
            if labels.ndim == 1 and _are_whole(labels):
                warn(
                    "y holds whole numbers as floats, so they are read as regression targets: save y as "
                    f"integers if they are classes, or with shape [{self.outputs}, 1] if they are not"
                )
            return labels.reshape(self.outputs, -1)
        labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
        require(labels.ndim == 1, "y has several columns of integers; regression targets must be floats")
        require(int(labels.min()) >= -1, "y contains a label below -1; use -1 for unknown")
        return labels


def _are_whole(values: Floats | Integers) -> bool:
    """Whether all known values are whole numbers, and some are known."""
    known = values[~np.isnan(values)]
    return known.size > 0 and bool((known == np.floor(known)).all())


def _set(frozen: object, **values: object) -> None:
    """Replace arguments of a frozen dataclass by their checked, converted values."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)
