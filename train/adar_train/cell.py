"""One step of AdaR, in the order of the paper's appendix "Implementation of MP".

Equation names in the comments are the labels of the paper. Shapes: n nodes, c targets, p proxies,
d hidden columns, f features. n, c and the edges are free: the same weights serve any graph.

Two things differ from a literal transcription, and both are the same function:

* A linear layer over a concatenation [a ‖ b] is written as the sum of a layer over a and one over b.
  The step encoding then is one bias row, not n copies of itself.
* The node messages M = [M_pn ‖ M_cn ‖ H] are kept as two factors (see `Cell.local`). All that is
  ever done with M itself is linear, so the n × 3d matrix is never built, and the sum over neighbours
  runs over d columns instead of 3d.

What passes over all nodes is computed by `fused`, whose functions each are one expression. Isotropic models
have more terms and fewer layers at work; for them the passes are written out here.

Where the paper leaves a choice: ψ and the relations are scaled by 1/√d, and the NL of a velocity is
Linear → LayerNorm → LeakyReLU → Linear.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from adar_runtime.errors import UsageError
from adar_runtime.graph import NODE
from adar_train import fused_autograd as fused
from adar_train.alignments import COSINE_MARGIN
from adar_train.sparse import SparseMatrix


@dataclass(frozen=True)
class ModelConfig:
    """What has to be known to build the model before its weights are loaded."""

    features: int  # f, columns of the node features
    targets: int | None  # c learned targets, or None where their descriptions are given as features
    hidden: int = 64  # d
    proxies: int = 32  # p, of each of the two kinds
    dropout: float = 0.2  # of the nodes
    input_dropout: float = 0.0  # of the features
    level: str = NODE  # what predictions are made for
    regression: bool = False  # scores are numbers, not weights of classes
    alignment: str = COSINE_MARGIN  # the scalar that an exit watches
    # For targets that are described: start every map at the identity and place nodes and targets by what the
    # graph says of its own space, so that an untrained model is a cosine of features and descriptions (see
    # placing.py): what transfer to unseen graphs starts from.
    isotropic: bool = False
    # The paper's ablations:
    step_info: bool = True  # whether a velocity depends on the time
    relation: bool = True  # whether it depends on the relations with targets
    unit_step: bool = False  # whether every step takes a time of 1, whatever the budget

    def __post_init__(self) -> None:
        if self.isotropic and self.targets is not None:
            raise UsageError("an isotropic model has described targets, not learned ones")


class State(NamedTuple):
    """All that one step hands to the next."""

    nodes: Tensor  # H [n, d]
    targets: Tensor  # C [c, d]
    node_proxies: Tensor  # P^(n) [p, d]
    target_proxies: Tensor  # P^(c) [p, d]


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of all rows, scaled by 1/√d so that softmax does not saturate as d grows."""
    scale = a.shape[1] ** -0.5
    return (a * scale) @ b.T if len(a) < len(b) else a @ (b * scale).T  # the fewer rows are scaled


def attend(a: Tensor, b: Tensor) -> Tensor:
    """ψ of the appendix: how much each row of a takes from each row of b."""
    return inner(a, b).softmax(dim=1)


class Nonlinear(nn.Module):
    """NL where a message is transformed: linear, then LeakyReLU. An isotropic one adds that to its input."""

    def __init__(self, columns: int, *, isotropic: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(columns, columns)
        self.isotropic = isotropic
        if isotropic:
            nn.init.zeros_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)

    @property
    def silent(self) -> bool:
        """An isotropic one that was never trained: it only hands its input on."""
        return self.isotropic and is_silent(self.linear)

    def forward(self, x: Tensor) -> Tensor:
        if self.silent:
            return x
        changed = functional.leaky_relu(self.linear(x))
        return x + changed if self.isotropic else changed

    def diffuse(self, x_in: Tensor, x_sur: Tensor) -> Tensor:
        """ψ(X_sur, X_in) · NL(X_in): [k, d]."""
        if self.isotropic:
            return attend(x_sur, x_in) @ self(x_in)
        return fused.diffuse(x_sur, x_in, self.linear.weight, self.linear.bias)


class TrajectoryDropout(nn.Module):
    """Dropout whose mask is drawn once a trajectory, so that the velocity stays one field all along it."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self._mask: Tensor | None = None

    def redraw(self) -> None:
        """Forget the mask: a new trajectory begins."""
        self._mask = None

    def mask(self, x: Tensor) -> Tensor | None:
        """What x is multiplied with, or None where nothing is dropped."""
        if not self.training or not self.p:
            return None
        if self._mask is None:
            self._mask = functional.dropout(torch.ones_like(x), self.p)
        return self._mask

    def forward(self, x: Tensor) -> Tensor:
        mask = self.mask(x)
        return x if mask is None else x * mask


class Velocity(nn.Module):
    """NL of Eq. velocity: [current rep. ‖ relation ‖ step info.] -> a velocity.

    The layer norm bounds it: the relations are quadratic in the state, and without it a model that
    was trained for 8 steps overflows when it is run for more. The last layer gives it a sign and
    starts at zero, so an untrained model leaves every state where the input transformation put it.
    """

    def __init__(self, representation: int, config: ModelConfig, dropout: float = 0.0) -> None:
        super().__init__()
        d = config.hidden
        self.representation = nn.Linear(representation, d, bias=False)
        self.relation = nn.Linear(config.proxies, d, bias=False)
        self.step = nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)
        self.dropout = TrajectoryDropout(dropout)
        self.out = nn.Linear(d, d, bias=False)
        nn.init.zeros_(self.out.weight)
        self.rates = nn.Parameter(torch.zeros(2)) if config.isotropic else None
        if config.isotropic:  # the parts of the representation, added up
            self.representation.weight.data = torch.eye(d).repeat(1, representation // d)
        if not config.step_info:
            _freeze_at_zero(self.step.weight)
        if not config.relation:
            _freeze_at_zero(self.relation.weight)

    @property
    def silent(self) -> bool:
        """An isotropic one of which only the rates are at work."""
        return self.rates is not None and is_silent(self.out)

    def forward(self, projected: Tensor, relation: Tensor, step: Tensor, current: Tensor) -> Tensor:
        """`projected` is what `self.representation` makes of the messages, `current` is what moves."""
        v = current.new_zeros(()) if self.silent else self.nonlinear(projected, relation, step)
        if self.rates is None:
            return v
        pull, decay = self.rates  # towards the messages, away from itself: smoothing, at a learned rate
        return v + pull * projected - decay * current

    def nonlinear(self, projected: Tensor, relation: Tensor, step: Tensor) -> Tensor:
        """Linear → LayerNorm → LeakyReLU → Linear, the first being over all three."""
        first = projected, relation, self.relation.weight, self.step(step)  # their sum: [k, d]
        norm = self.norm.weight, self.norm.bias, self.norm.eps
        return fused.bounded(first, norm, self.dropout.mask(projected), self.out.weight)


class GlobalMessages(nn.Module):
    """GlobMP: X_in -> X_sur -> X_in, and the update of the surrogates X_sur on the way."""

    def __init__(self, config: ModelConfig, *, collects: bool) -> None:
        super().__init__()
        d = config.hidden
        self.value = Nonlinear(d, isotropic=config.isotropic)
        self.velocity = Velocity(d, config)
        self.refined = Nonlinear(d, isotropic=config.isotropic) if collects else None

    def absorb(
        self, x_in: Tensor, x_sur: Tensor, x_cond: Tensor, step: Tensor, dt: float
    ) -> tuple[Tensor, Tensor]:
        """Diffuse and refine: the surrogates' global features Ĝ [k, d], and the updated surrogates."""
        g = self.value.diffuse(x_in, x_sur)  # Eq. glob-mp-np: [k, d]
        g = attend(x_sur, x_sur) @ g  # Eq. glob-mp-agg: [k, d]
        v = self.velocity(self.velocity.representation(g), inner(x_sur, x_cond), step, x_sur)
        return g, torch.add(x_sur, v, alpha=dt)  # Eq. glob-mp-update

    def values(self, g: Tensor) -> Tensor:
        """NL(Ĝ) [k, d] of Eq. glob-mp-pn, whose other factor is ψ(X_in, X_sur) [n, k]."""
        assert self.refined is not None
        return self.refined(g)


class Cell(nn.Module):
    """One step of the recurrence: the five lines of the appendix's "Velocity Computing"."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d = config.hidden
        self.node_abstraction = GlobalMessages(config, collects=True)
        self.target_abstraction = GlobalMessages(config, collects=False)
        self.target_update = GlobalMessages(config, collects=True)
        self.message = Nonlinear(3 * d, isotropic=config.isotropic)
        # Only nodes are dropped: noise on the few proxies or targets would be noise on all nodes at once.
        self.velocity = Velocity(3 * d, config, config.dropout)
        # How much of M_pn, M_cn and H is in a message.
        self.parts = nn.Parameter(torch.tensor([0.0, 0.0, 1.0])) if config.isotropic else None

    def forward(
        self, state: State, neighbours: SparseMatrix, share: Tensor, step: Tensor, dt: float
    ) -> State:
        """`neighbours` is A [n, n], `share` [n, 1] holds 1 / (|N(v)| + 1), `step` [d] encodes t_{s-1}."""
        nodes, c, pn, pc = state
        h = fused.multiplied(nodes)

        # Eq. pnode-graph (Graph-node Abs.)
        g, pn_next = self.node_abstraction.absorb(h, pn, pn, step, dt)
        values_pn = self.node_abstraction.values(g)  # [p, d]

        # Eq. pnode-target (Target Abs.)
        _, pc_next = self.target_abstraction.absorb(c, pc, pc, step, dt)

        # Eq. cnode (Target Rep. Update), conditioned on the updated node proxies
        g, c_next = self.target_update.absorb(h, c, pn_next, step, dt)
        values_cn = self.target_update.values(g)  # [c, d]

        # Eq. local (Local MP.), of M = [M_pn ‖ M_cn ‖ H] = [ψ(H, P^(n)) V_pn ‖ ψ(H, C) V_cn ‖ H]
        local = self.local(h, (pn_next, c_next), (values_pn, values_cn), neighbours, share)  # [n, d]

        # Eq. gnode (Node Rep. Update), the relation is with the updated target proxies
        v = self.velocity(local, inner(h, pc_next), step, nodes)
        return State(torch.add(nodes, v, alpha=dt), c_next, pn_next, pc_next)

    def local(
        self,
        h: Tensor,
        surrogates: tuple[Tensor, Tensor],
        values: tuple[Tensor, Tensor],
        neighbours: SparseMatrix,
        share: Tensor,
    ) -> Tensor:
        """Eq. local-mp and then the velocity's first layer W, which moves inside the sum.

        W · (M + A NL(M)) / (|N| + 1) = (M Wᵀ + A (NL(M) Wᵀ)) / (|N| + 1), with M = left @ right.
        """
        message, project = self.message.linear, self.velocity.representation
        to_message, own = self.right_times(values, message.weight, project.weight)
        if not self.message.isotropic:
            kernels = to_message, own
            return fused.local_messages(
                h, surrogates, kernels, message.bias, project.weight, neighbours, share
            )
        pn, c = surrogates
        left = torch.cat([attend(h, pn), h, attend(h, c)], dim=1)  # [n, p + d + c]
        sent = own = left @ own  # M Wᵀ [n, d]
        if not self.message.silent:
            sent = own + project(functional.leaky_relu(torch.addmm(message.bias, left, to_message)))
        return (own + neighbours @ sent) * share

    def right_times(self, values: tuple[Tensor, Tensor], *weights: Tensor) -> tuple[Tensor, ...]:
        """For each W, right @ Wᵀ [p + d + c, out]: what makes M Wᵀ of left = [ψ(H, P^(n)) ‖ H ‖ ψ(H, C)]."""
        pn, cn, h = torch.cat(weights).T.chunk(3)  # the rows that meet M_pn, M_cn and H
        if self.parts is not None:
            pn, cn, h = (part * rows for part, rows in zip(self.parts, (pn, cn, h), strict=True))
        products = torch.cat([values[0] @ pn, h, values[1] @ cn])
        return torch.split(products, [len(weight) for weight in weights], dim=1)


def is_silent(layer: nn.Linear) -> bool:
    """Whether a layer is zero and stays so."""
    return (
        not layer.weight.requires_grad
        and not layer.weight.any()
        and (layer.bias is None or not layer.bias.any())
    )


def _freeze_at_zero(weight: Tensor) -> None:
    nn.init.zeros_(weight)
    weight.requires_grad_(False)
