"""Where nodes and described targets of an isotropic model stand at t = 0: by what the graph says of itself.

Directions in which the nodes of a graph differ much are those that its classes differ in, more often than
not, so columns are weighted by the fourth root of the nodes' covariance. And the mean of all nodes leans
towards large classes: nodes are measured from the mean over targets of what each of them gathers, in which
all classes count alike. No label is looked at, nothing is learned, and both hold for graphs never seen.
"""

import torch
from torch import Tensor

ROOT_STEPS = 12  # of Newton's iteration; directions with less than 1e-4 of the variance come out too small
RIDGE = 1e-2  # of the mean variance, given to all: few nodes leave most directions with nothing but rounding
TINY = 1e-12  # keeps nodes that are all alike from being divided by zero


def placed(nodes: Tensor, targets: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides weighted and measured from their middle, every row of that length."""
    nodes, targets = (rows - rows.mean(dim=0) for rows in (nodes, targets))
    weights = fourth_root(nodes.detach())
    nodes, targets = nodes @ weights, of_length(length, targets @ weights)
    likeness = (targets * nodes.shape[1] ** -0.5) @ of_length(length, nodes).T  # [c, n]
    gathered = likeness.softmax(dim=1) @ nodes
    return of_length(length, nodes - gathered.mean(dim=0)), targets


def of_length(length: Tensor, rows: Tensor) -> Tensor:
    """Every row brought to that length."""
    return rows * (length / (rows.square().sum(dim=1, keepdim=True) + TINY).sqrt())


def fourth_root(rows: Tensor) -> Tensor:
    """Of the covariance of centred rows [d, d], up to a factor."""
    covariance = rows.T @ rows
    return root(root(covariance + RIDGE * covariance.diagonal().mean() * _one(covariance)))


def root(matrix: Tensor) -> Tensor:
    """The square root of a positive matrix, up to a factor; by products alone, which every backend has.

    Newton's iteration (the coupled form of Denman and Beavers, without inverses): y → m^½ and z → m^-½.
    """
    one = _one(matrix)
    y, z = matrix / (matrix.square().sum().sqrt() + TINY), one
    for _ in range(ROOT_STEPS):
        change = 1.5 * one - 0.5 * (z @ y)
        y, z = y @ change, change @ z
    return y


def _one(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
