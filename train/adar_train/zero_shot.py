"""The zero-shot variant: an untrained model equals a cosine between features and target descriptions.

Directions learned on some graphs do not transfer to other graphs (benchmarks/recipe.md). A few scalars do:
how much to smooth over neighbours, how fast targets follow their nodes, and how sharp attention is. So every
map starts at the identity and stays there, and training learns only these scalars.

The first states depend on the whole graph. Classes usually differ in the directions in which the nodes differ
most, so columns are weighted by the fourth root of the nodes' covariance. The mean of all nodes is biased
towards large classes. So each target attends to the nodes, and nodes are measured from the mean over targets
of the attended nodes, where all classes count equally. This uses no label and learns nothing, so it works on
unseen graphs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from adar_runtime.graph import Graph
from adar_train.cell import (
    InputTransformation,
    LocalMessages,
    ModelConfig,
    Nonlinear,
    Velocity,
    attend,
    split_kernels,
)
from adar_train.sparse import SparseMatrix

if TYPE_CHECKING:
    from adar_train.model import AdaR

FIRST_TEMPERATURE = 20.0  # factor of the cosines in every softmax of an untrained model
FIRST_RATE, FIRST_TARGET_RATE = 2.0, 0.5  # of smoothing, before training
ROOT_STEPS = 12  # of Newton's iteration; directions with less than 1e-4 of the variance come out too small
RIDGE = 1e-2  # share of the mean variance added to all directions: with few nodes, most have only rounding
TINY = 1e-12  # avoids a division by zero when all nodes are equal


def is_zero(layer: nn.Linear) -> bool:
    """Return whether a layer is zero and frozen, so that its products can be skipped."""
    return (
        not layer.weight.requires_grad
        and not layer.weight.any()
        and (layer.bias is None or not layer.bias.any())
    )


class ZeroShotInput(InputTransformation):
    """f_in, then `place_rows`."""

    by_row = False

    def first_log_length(self) -> nn.Parameter:
        """Return the logarithm of a length for which softmax(inner) = softmax(FIRST_TEMPERATURE · cosine)."""
        length = (FIRST_TEMPERATURE * self.out_features**0.5) ** 0.5
        return nn.Parameter(torch.tensor(length).log())

    def place(self, nodes: Tensor, targets: Tensor, log_length: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weight, centre and scale nodes [n, d] and described targets [c, d]."""
        assert log_length is not None
        return place_rows(nodes, targets, log_length.exp())


class ZeroShotNonlinear(Nonlinear):
    """NL of a message as a residual: x + LeakyReLU(Linear(x)), with a linear layer that starts at zero."""

    def __init__(self, columns: int) -> None:
        super().__init__(columns)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x if is_zero(self.linear) else x + super().forward(x)

    def diffuse(self, x_in: Tensor, x_sur: Tensor) -> Tensor:
        """Compute ψ(X_sur, X_in) · NL(X_in) [k, d]."""
        return attend(x_sur, x_in) @ self(x_in)


class ZeroShotVelocity(Velocity):
    """The standard velocity plus a pull towards the messages and a decay of the state, at learned rates."""

    def __init__(self, representation: int, config: ModelConfig, dropout: float = 0.0) -> None:
        super().__init__(representation, config, dropout)
        d = config.hidden
        self.rates = nn.Parameter(torch.zeros(2))  # pull, decay
        self.representation.weight.data = torch.eye(d).repeat(1, representation // d)  # sum of the parts

    def forward(self, projected: Tensor, relation: Tensor, step: Tensor, current: Tensor) -> Tensor:
        """Compute the velocity [k, d]; see `Velocity.forward`."""
        pull, decay = self.rates
        nonlinear = (
            current.new_zeros(())
            if is_zero(self.out)
            else super().forward(projected, relation, step, current)  # [k, d]
        )
        return nonlinear + pull * projected - decay * current


class ZeroShotLocalMessages(LocalMessages):
    """LocalMP with a residual NL, of M = [a M_pn ‖ b M_cn ‖ c H] with learned parts (a, b, c)."""

    def __init__(self, columns: int) -> None:
        super().__init__(columns)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def first_parts(self) -> nn.Parameter:
        """Return the parts (a, b, c) of an untrained model: H only."""
        return nn.Parameter(torch.tensor([0.0, 0.0, 1.0]))

    def forward(
        self,
        h: Tensor,
        surrogates: tuple[Tensor, Tensor],
        values: tuple[Tensor, Tensor],
        project: Tensor,
        neighbours: SparseMatrix,
        share: Tensor,
        parts: Tensor | None,
    ) -> Tensor:
        """Compute [n, d]; see `LocalMessages.forward`."""
        assert parts is not None
        rows = torch.cat([self.linear.weight, project]).T.chunk(3)  # rows for M_pn, M_cn and H [d, 4d]
        pn, cn, own = (part * of_part for part, of_part in zip(parts, rows, strict=True))
        kernels = split_kernels([values[0] @ pn, own, values[1] @ cn], self.linear.weight, project)
        left = torch.cat([attend(h, surrogates[0]), h, attend(h, surrogates[1])], dim=1)  # [n, p + d + c]
        projected = sent = left @ kernels[1]  # M Wᵀ [n, d]
        if not is_zero(self.linear):
            changed = functional.leaky_relu(torch.addmm(self.linear.bias, left, kernels[0]))  # [n, 3d]
            sent = projected + functional.linear(changed, project)  # NL(M) Wᵀ [n, d]
        return (projected + neighbours @ sent) * share


def place_rows(nodes: Tensor, targets: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Weight the columns of both sides, measure nodes from their centre, and scale every row to `length`."""
    nodes, targets = (rows - rows.mean(dim=0) for rows in (nodes, targets))  # [n, d], [c, d]
    weights = fourth_root(nodes.detach())  # [d, d]
    nodes, targets = nodes @ weights, scale_rows(length, targets @ weights)
    likeness = (targets * nodes.shape[1] ** -0.5) @ scale_rows(length, nodes).T  # [c, n]
    gathered = likeness.softmax(dim=1) @ nodes  # [c, d]
    return scale_rows(length, nodes - gathered.mean(dim=0)), targets


def scale_rows(length: Tensor, rows: Tensor) -> Tensor:
    """Scale every row to `length`."""
    return rows * (length / (rows.square().sum(dim=1, keepdim=True) + TINY).sqrt())


def fourth_root(rows: Tensor) -> Tensor:
    """Compute the fourth root of the covariance of centred rows [d, d], up to a factor."""
    covariance = rows.T @ rows
    return root(root(covariance + RIDGE * covariance.diagonal().mean() * _identity(covariance)))


def root(matrix: Tensor) -> Tensor:
    """Compute the square root of a positive matrix up to a factor, with products only.

    Every backend has products. Newton's iteration in the coupled form of Denman and Beavers without inverses:
    y → m^½ and z → m^-½.
    """
    one = _identity(matrix)
    y, z = matrix / (matrix.square().sum().sqrt() + TINY), one
    for _ in range(ROOT_STEPS):
        change = 1.5 * one - 0.5 * (z @ y)
        y, z = y @ change, change @ z
    return y


def _identity(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def initialise(model: "AdaR", graphs: Sequence[Graph]) -> None:
    """Set the input map to the features' principal directions, and train only rates and scales."""
    model.input.weight.copy_(torch.from_numpy(_principal_directions(graphs, model.config.hidden)))
    nn.init.zeros_(model.input.bias)
    velocity, target_velocity = model.cell.velocity, model.cell.target_update.velocity
    assert isinstance(velocity, ZeroShotVelocity)
    assert isinstance(target_velocity, ZeroShotVelocity)
    velocity.rates.fill_(FIRST_RATE)
    target_velocity.rates.fill_(FIRST_TARGET_RATE)
    trained = velocity.rates, target_velocity.rates, model.cell.parts, model.log_length
    for weight in model.parameters():
        weight.requires_grad_(any(weight is one for one in trained))


def _principal_directions(graphs: Sequence[Graph], count: int) -> NDArray[np.float32]:
    """Compute the leading directions [count, f] of the nodes' variance; all graphs count equally."""
    total = np.zeros((graphs[0].width,) * 2)
    for graph in graphs:
        rows = graph.rows(0, graph.nodes)
        total += np.cov(rows, rowvar=False)
    _, directions = np.linalg.eigh(total)
    leading = np.zeros((count, graphs[0].width), np.float32)  # surplus columns stay at zero
    leading[: directions.shape[1]] = directions.T[::-1][:count]
    return leading
