"""The features of any graph in a fixed number of columns: unit rows, seen along the graph's own directions.

A pretrained model cannot know the columns of a new graph. Its cell only uses inner products of rows, so any
rotation of the columns gives the same predictions. The d leading directions of the smoothed rows keep most of
what the inner products say.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from adar_runtime.graph import Floats, Graph
from adar_runtime.graph.smoothing import Smoothing
from adar_runtime.interruption import interruption_point

ITERATIONS = 3  # of the subspace iteration; the leading directions hardly change after two
SHORT = 1e-18  # the square of a smaller length loses digits in float32
NUMBERS_AT_ONCE = 2**24  # of the features: sparse rows are dense in blocks of this size


@dataclass(frozen=True)
class UnitRows:
    """The features X of a graph with rows of length 1 (rows of zeros stay zero), as a factor of products."""

    graph: Graph

    def times(self, matrix: Floats) -> Floats:
        """X @ matrix, [n, k]."""
        return np.concatenate([unit_rows(block) @ matrix for _, block in self._blocks()])

    def transposed_times(self, matrix: Floats) -> Floats:
        """Xᵀ @ matrix, [f, k]."""
        total = np.zeros((self.graph.width, matrix.shape[1]), np.float32)
        for rows, block in self._blocks():
            total += unit_rows(block).T @ matrix[rows]
        return total

    def _blocks(self) -> Iterator[tuple[slice, Floats]]:
        size = max(1, NUMBERS_AT_ONCE // self.graph.width)
        for start in range(0, self.graph.nodes, size):
            interruption_point()
            yield slice(start, start + size), self.graph.rows(start, start + size)


def leading_directions(rows: UnitRows, smoothing: Smoothing, count: int, first: Floats) -> Floats:
    """An orthonormal basis [f, count]: the rows of `first` [k, f], then directions of most smoothed variance.

    With at most `count` feature columns, the basis is the unit matrix and nothing is lost.
    """
    width = rows.graph.width
    if width <= count:
        return np.eye(width, count, dtype=np.float32)
    kept = min(len(first), count)
    basis = np.random.default_rng(0).standard_normal((width, count)).astype(np.float32)
    basis[:, :kept] = first[:kept].T
    for _ in range(ITERATIONS):
        basis = np.linalg.qr(basis)[0]
        basis[:, kept:] = rows.transposed_times(smoothing(rows.times(basis[:, kept:])))
    return np.linalg.qr(basis)[0].astype(np.float32)


def unit_rows(rows: Floats) -> Floats:
    """Rows scaled to length 1. Rows of zeros stay zero."""
    interruption_point()
    lengths = _lengths(rows)
    extreme = ~((lengths > SHORT) & (lengths < np.inf))[:, 0]
    if extreme.any():  # bring the rows into the range whose squares are float32 numbers
        rows = rows.copy()
        largest = np.abs(rows[extreme]).max(axis=1, keepdims=True)
        rows[extreme] /= np.where(largest > 0, largest, 1)
        lengths[extreme] = _lengths(rows[extreme])
    lengths[lengths == 0] = 1
    return rows / lengths


def _lengths(rows: Floats) -> Floats:
    with np.errstate(over="ignore", under="ignore"):
        lengths: Floats = np.linalg.norm(rows, axis=1, keepdims=True)
    return lengths
