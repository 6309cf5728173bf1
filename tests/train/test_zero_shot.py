"""The input of the zero-shot variant: the first states of nodes and described targets."""

import numpy as np
import pytest
import torch

from adar_runtime.errors import UsageError
from adar_train import AdaR, ModelConfig
from adar_train.zero_shot import RIDGE, place_rows, root

LENGTH = torch.tensor(10.0, dtype=torch.float64)


def sides(nodes: int, targets: int, columns: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    spread = torch.logspace(0, -1, columns, dtype=torch.float64)
    return tuple(torch.randn(n, columns, dtype=torch.float64) * spread for n in (nodes, targets))


def test_the_square_of_a_root_is_the_matrix() -> None:
    rows, _ = sides(50, 1, 8)
    matrix = rows.T @ rows
    squared = root(matrix) @ root(matrix)
    assert torch.allclose(squared, matrix / matrix.norm(), atol=1e-6)


def test_directions_are_weighted_by_the_fourth_root_of_their_variance() -> None:
    """Compared with NumPy's eigenvectors and a loop over targets."""
    nodes, targets = sides(200, 3, 6)
    h, c = (x.numpy() - x.numpy().mean(axis=0) for x in (nodes, targets))
    variances, directions = np.linalg.eigh(h.T @ h)
    variances += RIDGE * variances.mean()
    weights = directions * variances**0.25 @ directions.T
    h, c = h @ weights, c @ weights

    def scaled(x):
        return 10 * x / np.linalg.norm(x, axis=1, keepdims=True)

    gathered = []
    for target in scaled(c):
        share = np.exp(scaled(h) @ target / 6**0.5)
        gathered.append(share @ h / share.sum())
    got_nodes, got_targets = place_rows(nodes, targets, LENGTH)
    assert np.allclose(got_targets, scaled(c), atol=1e-4)
    assert np.allclose(got_nodes, scaled(h - np.mean(gathered, axis=0)), atol=1e-4)


def test_a_rotation_of_the_features_rotates_the_states() -> None:
    nodes, targets = sides(80, 4, 5)
    rotation, _ = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))
    rotated = [rows @ rotation for rows in place_rows(nodes, targets, LENGTH)]
    for a, b in zip(rotated, place_rows(nodes @ rotation, targets @ rotation, LENGTH), strict=True):
        assert torch.allclose(a, b, atol=1e-8)


@pytest.mark.parametrize(("nodes", "targets"), [(1, 1), (1, 3), (4, 1), (3, 2)])
def test_few_rows_and_equal_rows_stay_finite(nodes: int, targets: int) -> None:
    for rows in (sides(nodes, targets, 8), (torch.ones(nodes, 8).double(), torch.zeros(targets, 8).double())):
        assert all(side.isfinite().all() for side in place_rows(*rows, LENGTH))


def test_learned_targets_are_refused() -> None:
    with pytest.raises(UsageError, match="described targets"):
        AdaR(ModelConfig(3, 2, variant="zero-shot"))
