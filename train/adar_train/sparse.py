"""Products with a constant sparse matrix: sums over neighbours, and bag-of-words features."""

from copy import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from adar_runtime.graph import SparseRows
from adar_runtime.graph.neighbours import Neighbours

Layout = tuple[Tensor, Tensor, Tensor | None]
"""columns [entries], starts [rows], values [entries]; without values, all entries are 1."""


class SparseMatrix:
    """The sparse matrix A in `A @ x`, for dense x [columns, d].

    The product is PyTorch's `embedding_bag`, a sum over ragged lists of rows. On a CPU it is many times
    faster than scatter_add. The backward pass of `embedding_bag` would scatter; here the gradient is the
    same product with Aᵀ, whose layout is built once.
    """

    def __init__(self, rows: SparseRows | Neighbours, device: torch.device | str = "cpu") -> None:
        if isinstance(rows, Neighbours):
            self.shape = (rows.nodes, rows.nodes)
            forward, backward = _layout(rows), _layout(rows.reversed())
            self._order = None  # needed for dropout, which neighbours do not have
        else:
            order = np.argsort(rows.columns, kind="stable")
            self.shape = rows.shape
            forward, backward = _layout(rows), _layout(_transposed(rows, order))
            self._order = torch.from_numpy(order).to(device)
        self._forward, self._backward = _to(forward, device), _to(backward, device)

    def __matmul__(self, x: Tensor) -> Tensor:
        return _Product.apply(x, *self._forward, *self._backward)  # type: ignore[no-untyped-call]

    def with_ones(self) -> "SparseMatrix":
        """The matrix with 1 in place of each value."""
        ones = copy(self)
        ones._forward, ones._backward = (*self._forward[:2], None), (*self._backward[:2], None)
        return ones

    def times(self, x: Tensor) -> Tensor:
        """A x without autograd, for code that computes the gradient itself."""
        return bag(x, *self._forward)

    def transposed_times(self, x: Tensor) -> Tensor:
        """Aᵀ x without autograd: the gradient of `times`."""
        return bag(x, *self._backward)

    def dropped(self, p: float) -> "SparseMatrix":
        """The matrix after dropout of its values with probability p."""
        columns, starts, values = self._forward
        if not p or values is None:
            return self
        values = functional.dropout(values, p)
        dropped = copy(self)
        dropped._forward = (columns, starts, values)
        dropped._backward = (*self._backward[:2], values[self._order])
        return dropped


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, columns: Tensor, starts: Tensor, values: Tensor | None, *transposed: Tensor
    ) -> Tensor:
        ctx.transposed = transposed
        return bag(x, columns, starts, values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return bag(grad, *ctx.transposed), *[None] * 6


def bag(x: Tensor, columns: Tensor, starts: Tensor, values: Tensor | None = None) -> Tensor:
    """The sum of the rows of x in each list of `columns`, without autograd; a list begins at each start."""
    if values is not None:
        values = values.to(x.dtype)
    # Detached: otherwise embedding_bag prepares its own backward pass, which takes longer than the sum.
    rows = x.detach().contiguous()
    return functional.embedding_bag(columns, rows, starts, mode="sum", per_sample_weights=values)


def _layout(rows: SparseRows | Neighbours) -> Layout:
    if isinstance(rows, Neighbours):
        weights = None if rows.weights is None else torch.from_numpy(rows.weights)
        return torch.from_numpy(rows.sources), torch.from_numpy(rows.starts[:-1]), weights
    return torch.from_numpy(rows.columns), torch.from_numpy(rows.starts[:-1]), torch.from_numpy(rows.values)


def _to(layout: Layout, device: torch.device | str) -> Layout:
    columns, starts, values = layout
    return columns.to(device), starts.to(device), None if values is None else values.to(device)


def _transposed(rows: SparseRows, order: NDArray[np.int64]) -> SparseRows:
    row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.starts))
    counts = np.bincount(rows.columns, minlength=rows.shape[1])
    starts = np.concatenate([[0], np.cumsum(counts)])
    return SparseRows(starts, row[order], rows.values[order], (rows.shape[1], rows.shape[0]))
