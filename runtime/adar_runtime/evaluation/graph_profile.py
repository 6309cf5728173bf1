"""Statistics of graphs: features, degrees and classes, in a size that does not grow with the graph.

A bundle keeps the statistics of its training graphs, so that `drift` can compare other graphs with them. A
graph holds no missing values: tables encode them as a column that is 1 where a value is missing, and the mean
of that column is the missing share.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from adar_runtime.graph import Floats, Graph, Integers, SparseRows

VERSION = 1
ROWS = 10_000  # nodes that are read, of all graphs together
GRAPHS = 100  # graphs that are read, of more than that evenly chosen ones
LEAST_ROWS = 100  # of each graph
NUMBERS = 2**24  # features that are read, so that wide graphs are read from fewer nodes
COLUMNS = 64  # columns with statistics of their own: those with the largest spread
QUANTILES = np.arange(1, 10) / 10
DEGREE, LENGTH, FILLED = "degree", "length of the features", "share of non-zero features"
OF_ROWS = (DEGREE, LENGTH, FILLED)
"""Statistics of a node as a whole. They cover the columns that have none of their own."""


def profile(graphs: Sequence[Graph], split: int = 0) -> dict[str, Any]:
    """The statistics of these graphs together, as JSON values.

    Args:
        graphs: Graphs with the same features.
        split: Number of the split; the class shares are those of its training part.

    Returns:
        Sizes, one entry per kept column and per statistic of `OF_ROWS`, and the class shares.
    """
    chosen = graphs[:: -(-len(graphs) // GRAPHS)]
    views = [GraphView(graph, ROWS // len(chosen)) for graph in chosen]
    means, squares = (sum(each) / len(views) for each in zip(*(v.moments() for v in views), strict=True))
    spread = np.maximum(squares - means**2, 0)
    kept = np.sort(np.argsort(-spread, kind="stable")[:COLUMNS])
    values = np.concatenate([view.columns(kept) for view in views])
    return {
        "version": VERSION,
        "nodes": sum(graph.nodes for graph in graphs),
        "edges": sum(graph.edges for graph in graphs),
        "columns": [{"column": int(c)} | _bins(values[:, i]) for i, c in enumerate(kept)],
        "rows": {name: _bins(np.concatenate([view.of_rows(name) for view in views])) for name in OF_ROWS},
        "classes": _class_shares(graphs, split),
    }


def _bins(values: Floats) -> dict[str, Any]:
    """Mean, spread, range and the shares between the deciles. Equal deciles are one boundary.

    The boundaries are exact: of a feature with few values, a rounded one would move all nodes to another bin.
    """
    boundaries = np.unique(np.quantile(values, QUANTILES, method="nearest"))
    counts = np.bincount(np.searchsorted(boundaries, values, "left"), minlength=len(boundaries) + 1)
    return {
        "count": len(values),
        "mean": round_digits(values.mean(dtype=np.float64)),
        "std": round_digits(values.std(dtype=np.float64)),
        "zeros": round_digits((values == 0).mean()),
        "low": float(values.min()),
        "high": float(values.max()),
        "boundaries": [float(value) for value in boundaries],
        "shares": [round_digits(share) for share in counts / len(values)],
    }


def _class_shares(graphs: Sequence[Graph], split: int) -> list[float] | None:
    """The share of each class among the labels to train on; None without classes."""
    labels = []
    for graph in graphs:
        mask = graph.labelled("train", split) if graph.train_mask is not None else graph.labelled("all")
        if graph.regression:
            return None
        if mask is not None and graph.labels is not None:
            labels.append(graph.labels[mask])
    if not labels:
        return None
    return class_shares(np.concatenate(labels), max(graph.targets for graph in graphs))


def class_shares(classes: Any, count: int) -> list[float]:
    """The share of each of `count` classes."""
    return [round_digits(share) for share in np.bincount(classes, minlength=count) / len(classes)]


def round_digits(value: Any) -> float:
    """Six digits: enough to compare, and short."""
    return float(f"{float(value):.6g}")


class GraphView:
    """A sample of the nodes of a graph. The same graph always gives the same sample."""

    def __init__(self, graph: Graph, rows: int = ROWS) -> None:
        self._graph = graph
        most = max(LEAST_ROWS, min(rows, NUMBERS // graph.width))
        random = np.random.default_rng(0)
        few = graph.nodes <= most
        self._rows: Integers = (
            np.arange(graph.nodes) if few else np.sort(random.integers(0, graph.nodes, most))
        )
        self._degrees = np.bincount(graph.edge_index[1], minlength=graph.nodes)[self._rows]
        self._dense = None if isinstance(graph.features, SparseRows) else graph.features[self._rows]
        self._entries = self._sparse(graph.features) if isinstance(graph.features, SparseRows) else None

    def _sparse(self, x: SparseRows) -> tuple[Integers, Integers, Floats]:
        """Row of the sample, column and value of each entry of the sampled rows."""
        counts = x.starts[self._rows + 1] - x.starts[self._rows]
        first = np.repeat(x.starts[self._rows + 1] - np.cumsum(counts), counts)
        entries = first + np.arange(counts.sum())
        return np.repeat(np.arange(len(counts)), counts), x.columns[entries], x.values[entries]

    def moments(self) -> tuple[Floats, Floats]:
        """Mean, and mean of the squares, of every column [f]."""
        if self._entries is None:
            rows = self._dense
            assert rows is not None
            return rows.mean(axis=0, dtype=np.float64), (rows**2).mean(axis=0, dtype=np.float64)
        _, columns, values = self._entries
        width = self._graph.width
        sums = (np.bincount(columns, power, width) / len(self._rows) for power in (values, values**2))
        return tuple(sums)  # type: ignore[return-value]

    def columns(self, chosen: Any) -> Floats:
        """The values of these columns [sampled nodes, columns]."""
        if self._dense is not None:
            return self._dense[:, chosen]
        assert self._entries is not None
        rows, columns, values = self._entries
        position = np.full(self._graph.width, -1)
        position[chosen] = np.arange(len(chosen))
        kept = position[columns] >= 0
        found = np.zeros((len(self._rows), len(chosen)), np.float32)
        found[rows[kept], position[columns[kept]]] = values[kept]
        return found

    def of_rows(self, name: str) -> Floats:
        """A statistic of `OF_ROWS` for each sampled node."""
        if name == DEGREE:
            return self._degrees.astype(np.float32)
        if self._dense is not None:
            x = self._dense
            squares = np.square(x, dtype=np.float64)  # the square of a large float32 is not a float32
            found = np.sqrt(squares.sum(axis=1)) if name == LENGTH else (x != 0).mean(axis=1)
        else:
            assert self._entries is not None
            rows, _, values = self._entries
            squares = np.square(values, dtype=np.float64)
            sums = np.bincount(rows, squares if name == LENGTH else values != 0, len(self._rows))
            found = np.sqrt(sums) if name == LENGTH else sums / self._graph.width
        return np.minimum(found, np.finfo(np.float32).max).astype(np.float32)
