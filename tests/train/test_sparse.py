"""Sparse products and their gradients equal the dense ones."""

import numpy as np
import pytest
import torch

from adar_runtime.graph.neighbours import Neighbours
from adar_train.sparse import SparseMatrix
from tests.runtime.test_graph import sparse


@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
def test_products_and_gradients_equal_the_dense_ones(density: float) -> None:
    random = np.random.default_rng(0)
    dense = np.where(random.random((7, 5)) < density, random.normal(size=(7, 5)), 0).astype(np.float32)
    x = torch.rand(5, 3, requires_grad=True)
    ours, theirs = SparseMatrix(sparse(dense)) @ x, torch.from_numpy(dense) @ x
    assert torch.allclose(ours, theirs, atol=1e-6)
    upstream = torch.rand(7, 3)
    for gradients in zip(*(torch.autograd.grad(y, x, upstream) for y in (ours, theirs)), strict=True):
        assert torch.allclose(*gradients, atol=1e-6)


@pytest.mark.parametrize("edges", [0, 30])
def test_neighbour_sums_and_their_gradients(edges: int) -> None:
    neighbours = Neighbours.of(np.random.default_rng(0).integers(0, 8, (2, edges)), 8)
    adjacency = torch.zeros(8, 8)
    adjacency[neighbours.targets, neighbours.sources] = 1
    x = torch.rand(8, 4, requires_grad=True)
    ours, theirs = SparseMatrix(neighbours) @ x, adjacency @ x
    assert torch.allclose(ours, theirs)
    upstream = torch.rand(8, 4)
    for gradients in zip(*(torch.autograd.grad(y, x, upstream) for y in (ours, theirs)), strict=True):
        assert torch.allclose(*gradients)
