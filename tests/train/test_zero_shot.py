"""Where nodes and described targets stand before the first step."""

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


def test_a_root_times_itself_is_the_matrix() -> None:
    rows, _ = sides(50, 1, 8)
    matrix = rows.T @ rows
    squared = root(matrix) @ root(matrix)
    assert torch.allclose(squared, matrix / matrix.norm(), atol=1e-6)


def test_directions_count_by_the_fourth_root_of_their_variance() -> None:
    """Against NumPy's eigenvectors, and a centre found in a loop over targets."""
    nodes, targets = sides(200, 3, 6)
    h, c = (x.numpy() - x.numpy().mean(axis=0) for x in (nodes, targets))
    variances, directions = np.linalg.eigh(h.T @ h)
    variances += RIDGE * variances.mean()
    weights = directions * variances**0.25 @ directions.T
    h, c = h @ weights, c @ weights

    def long(x):
        return 10 * x / np.linalg.norm(x, axis=1, keepdims=True)

    gathered = []
    for target in long(c):
        share = np.exp(long(h) @ target / 6**0.5)
        gathered.append(share @ h / share.sum())
    got_nodes, got_targets = place_rows(nodes, targets, LENGTH)
    assert np.allclose(got_targets, long(c), atol=1e-4)
    assert np.allclose(got_nodes, long(h - np.mean(gathered, axis=0)), atol=1e-4)


def test_nothing_depends_on_the_axes_that_are_chosen() -> None:
    nodes, targets = sides(80, 4, 5)
    turn, _ = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))
    straight = [rows @ turn for rows in place_rows(nodes, targets, LENGTH)]
    for a, b in zip(straight, place_rows(nodes @ turn, targets @ turn, LENGTH), strict=True):
        assert torch.allclose(a, b, atol=1e-8)


@pytest.mark.parametrize(("nodes", "targets"), [(1, 1), (1, 3), (4, 1), (3, 2)])
def test_few_rows_and_rows_all_alike_stay_finite(nodes: int, targets: int) -> None:
    for rows in (sides(nodes, targets, 8), (torch.ones(nodes, 8).double(), torch.zeros(targets, 8).double())):
        assert all(side.isfinite().all() for side in place_rows(*rows, LENGTH))


def test_learned_targets_have_no_description_to_be_placed_by() -> None:
    with pytest.raises(UsageError, match="described targets"):
        AdaR(ModelConfig(3, 2, variant="zero-shot"))
