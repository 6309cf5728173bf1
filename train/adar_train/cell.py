"""The cell of AdaR: one step of the recurrence, in the order of the paper's appendix "Implementation of MP".

Comments name the paper's equations by their labels and give the shape of each tensor: n nodes, c targets,
p proxies, d hidden columns, f features, k surrogates (p proxies or c targets). The weights do not depend on
n, c or the edges, so one model serves any graph.

The code differs from the formulas in two places. Both are the same function:

* A linear layer over a concatenation [a ‖ b] is the sum of a layer over a and a layer over b. The step
  encoding is then one bias row instead of n equal rows.
* The node messages M = [M_pn ‖ M_cn ‖ H] [n, 3d] are kept as two factors (see `LocalMessages`). M is only
  multiplied by matrices, so M is never built, and neighbours are summed over d columns instead of 3d.

Passes over all nodes are single autograd operations of `fused_autograd`.

Choices that the paper leaves open: ψ and the relations are scaled by 1/√d, and the NL of a velocity is
Linear → LayerNorm → LeakyReLU → Linear.

The standard classes are here, those of the other variant in `zero_shot.py`; `variants.py` names both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from adar_runtime.errors import UsageError
from adar_runtime.graph import NODE, Graph
from adar_runtime.graph.smoothing import MAX_ROUNDS
from adar_train import fused_autograd as fused
from adar_train.alignments import COSINE_MARGIN
from adar_train.sparse import SparseMatrix

if TYPE_CHECKING:
    from adar_train.model import AdaR

STANDARD, ZERO_SHOT = "standard", "zero-shot"
COLUMN, COMMON = SCALINGS = ("column", "common")
HIDDEN, PROXIES = 64, 32  # the default sizes


@dataclass(frozen=True)
class ModelConfig:
    """The settings of a model, needed to build it before its weights are loaded.

    Args:
        features: Number of feature columns of a node, f.
        targets: Number of learned targets (classes), c. None if the graph describes its targets by features.
        hidden: Number of columns of a state, d.
        proxies: Number of node proxies and number of target proxies, p.
        dropout: Dropout rate of the node states.
        input_dropout: Dropout rate of the features.
        feature_scaling: How features are scaled before training. "column" gives every column unit spread;
            "common" gives all columns one factor, so that rare words stay small.
        input_norm: Whether the first state of each node gets zero mean and unit spread over its columns, so
            that a node with long features (many or frequent words) has no larger numbers than others.
        smoothing: Number of rounds in which nodes are averaged with their neighbours before the first step,
            as in GCN (`adar_runtime.graph.smoothing`). 0 turns smoothing off.
        level: What predictions are made for: "node", "edge" or "graph".
        regression: True if labels are numbers, False if labels are classes.
        alignment: Name of the scalar that the stop rules read, a key of `adar_train.alignments.ALIGNMENTS`.
        variant: A key of `adar_train.variants.VARIANTS`: "standard", or "zero-shot" for described targets.
        step_info: False removes the time from the velocities (an ablation of the paper, like the next two).
        relation: False removes the relations with targets from the velocities.
        unit_step: True gives every step a time of 1 for any budget.
        edge_weights: Whether messages are averaged with the weights of the edges, 1 if a graph has none.

    Example:
        >>> ModelConfig(features=7, targets=2, hidden=32).proxies
        32
    """

    features: int
    targets: int | None
    hidden: int = HIDDEN
    proxies: int = PROXIES
    dropout: float = 0.2
    input_dropout: float = 0.0
    feature_scaling: str = COLUMN
    input_norm: bool = False
    smoothing: int = 0
    level: str = NODE
    regression: bool = False
    alignment: str = COSINE_MARGIN
    variant: str = STANDARD
    step_info: bool = True
    relation: bool = True
    unit_step: bool = False
    edge_weights: bool = False

    def __post_init__(self) -> None:
        if self.feature_scaling not in SCALINGS:
            raise UsageError(
                f"unknown feature_scaling {self.feature_scaling!r}: choose one of {', '.join(SCALINGS)}"
            )
        if not 0 <= self.smoothing <= MAX_ROUNDS:
            raise UsageError(f"smoothing is {self.smoothing}, but it must be 0 to {MAX_ROUNDS} rounds")


def current_settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Translate settings of an older version: `isotropic` was the field before `variant`."""
    settings = dict(saved)
    if "isotropic" in settings:
        settings["variant"] = ZERO_SHOT if settings.pop("isotropic") else STANDARD
    return settings


class State(NamedTuple):
    """The state of the recurrence at one time.

    Attributes:
        nodes: Representations of the nodes, H [n, d].
        targets: Representations of the targets, C [c, d].
        node_proxies: Proxies of the nodes, P^(n) [p, d].
        target_proxies: Proxies of the targets, P^(c) [p, d].
    """

    nodes: Tensor
    targets: Tensor
    node_proxies: Tensor
    target_proxies: Tensor


@dataclass(frozen=True)
class Variant:
    """The classes that a model is built from. The exporter has one emitter for each of these classes."""

    input: "type[InputTransformation]"
    nonlinear: "type[Nonlinear]"
    velocity: "type[Velocity]"
    local: "type[LocalMessages]"
    initialise: Callable[["AdaR", Sequence[Graph]], None]  # sets weights from features and edges, not labels
    learned_targets: bool = True  # False: the variant needs described targets
    scaled_scores: bool = False  # True: scores are divided by √d


class InputTransformation(nn.Linear):
    """f_in: the affine map from features [·, f] to states [·, d], shared by nodes and target descriptions."""

    by_row = True  # whether each node's first state depends on this node only, so nodes can come in blocks

    def first_log_length(self) -> nn.Parameter | None:
        """Return the parameter `AdaR.log_length` or None. The model owns it, as saved runs name it so."""
        return None

    def place(self, nodes: Tensor, targets: Tensor, log_length: Tensor | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Move nodes [n, d] and described targets [c, d] after the map: here, not at all."""
        return nodes, targets


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Compute a bᵀ / √d, all inner products of rows. The scale keeps softmax from saturating as d grows."""
    scale = a.shape[1] ** -0.5
    return (a * scale) @ b.T if len(a) < len(b) else a @ (b * scale).T  # scale the smaller matrix


def attend(a: Tensor, b: Tensor) -> Tensor:
    """Compute ψ of the appendix: the weight of each row of b for each row of a."""
    return inner(a, b).softmax(dim=1)


class Nonlinear(nn.Module):
    """NL of a message: Linear → LeakyReLU."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.linear = nn.Linear(columns, columns)

    def forward(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(self.linear(x))

    def diffuse(self, x_in: Tensor, x_sur: Tensor) -> Tensor:
        """Compute ψ(X_sur, X_in) · NL(X_in) [k, d]."""
        return fused.diffuse(x_sur, x_in, self.linear.weight, self.linear.bias)


class TrajectoryDropout(nn.Module):
    """Dropout with one mask per trajectory, so that the velocity is one function along the trajectory."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self._mask: Tensor | None = None

    def redraw(self) -> None:
        """Forget the mask, because a new trajectory begins."""
        self._mask = None

    def mask(self, x: Tensor) -> Tensor | None:
        """Return the mask to multiply x with, or None if nothing is dropped."""
        if not self.training or not self.p:
            return None
        if self._mask is None:
            self._mask = functional.dropout(torch.ones_like(x), self.p)
        return self._mask

    def forward(self, x: Tensor) -> Tensor:
        mask = self.mask(x)
        return x if mask is None else x * mask


class Velocity(nn.Module):
    """NL of Eq. velocity: [current rep. ‖ relation ‖ step info.] → velocity.

    The layer norm bounds the velocity. Without it, a model trained for 8 steps overflows when it runs for
    more, because the relations are quadratic in the state. The last layer starts at zero, so an untrained
    model leaves every state where the input transformation put it.
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
        if not config.step_info:
            _freeze_at_zero(self.step.weight)
        if not config.relation:
            _freeze_at_zero(self.relation.weight)

    def forward(self, projected: Tensor, relation: Tensor, step: Tensor, current: Tensor) -> Tensor:  # noqa: ARG002
        """Compute the velocity [k, d] of the state `current` [k, d] at the time that `step` [d] encodes.

        `projected` [k, d] is the representation after the layer `representation`; `relation` is [k, p].
        """
        step = self.step(step)  # [d]
        first = projected, relation, self.relation.weight, step  # summed by the first layer: [k, d]
        norm = self.norm.weight, self.norm.bias, self.norm.eps
        return fused.bounded(first, norm, self.dropout.mask(projected), self.out.weight)  # [k, d]


class GlobalMessages(nn.Module):
    """GlobMP: X_in → X_sur → X_in, with the update of the surrogates X_sur."""

    def __init__(self, config: ModelConfig, variant: Variant, *, collects: bool) -> None:
        super().__init__()
        d = config.hidden
        self.value = variant.nonlinear(d)
        self.velocity = variant.velocity(d, config)
        self.refined = variant.nonlinear(d) if collects else None

    def absorb(
        self, x_in: Tensor, x_sur: Tensor, x_cond: Tensor, step: Tensor, dt: float
    ) -> tuple[Tensor, Tensor]:
        """Diffuse and refine. Return the global features Ĝ [k, d] and the updated surrogates [k, d]."""
        g = self.value.diffuse(x_in, x_sur)  # Eq. glob-mp-np: G = ψ(X_sur, X_in) NL(X_in) [k, d]
        return self.refine(g, x_sur, x_cond, step, dt)

    def refine(
        self, g: Tensor, x_sur: Tensor, x_cond: Tensor, step: Tensor, dt: float
    ) -> tuple[Tensor, Tensor]:
        """The part of `absorb` after the diffusion G [k, d]."""
        g = attend(x_sur, x_sur) @ g  # Eq. glob-mp-agg: Ĝ = ψ(X_sur, X_sur) G [k, d]
        v = self.velocity(self.velocity.representation(g), inner(x_sur, x_cond), step, x_sur)  # [k, d]
        return g, torch.add(x_sur, v, alpha=dt)  # Eq. glob-mp-update: X_sur + V Δt [k, d]

    def values(self, g: Tensor) -> Tensor:
        """Compute NL(Ĝ) [k, d] of Eq. glob-mp-pn. The other factor of M_glob is ψ(X_in, X_sur) [n, k]."""
        assert self.refined is not None
        return self.refined(g)


class LocalMessages(nn.Module):
    """LocalMP of Eq. local-mp, followed by the first layer W of the nodes' velocity.

    W moves inside the sum: W (M + A NL(M)) / (|N| + 1) = (M Wᵀ + A (NL(M) Wᵀ)) / (|N| + 1).
    M = [ψ(H, P^(n)) V_pn ‖ ψ(H, C) V_cn ‖ H] is the product of left = [ψ(H, P^(n)) ‖ H ‖ ψ(H, C)]
    [n, p + d + c] and a small right factor [p + d + c, 3d].
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.linear = nn.Linear(columns, columns)  # of NL

    def first_parts(self) -> nn.Parameter | None:
        """Return the parameter `Cell.parts` or None. The cell owns it, as saved runs name it so."""
        return None

    def forward(
        self,
        h: Tensor,
        surrogates: tuple[Tensor, Tensor],
        values: tuple[Tensor, Tensor],
        project: Tensor,
        neighbours: SparseMatrix,
        share: Tensor,
        parts: Tensor | None,  # noqa: ARG002
    ) -> Tensor:
        """Compute [n, d] from H [n, d], surrogates (P^(n), C), values (V_pn, V_cn) and W [d, 3d]."""
        pn, cn, own = torch.cat([self.linear.weight, project]).T.chunk(3)  # rows for M_pn, M_cn and H [d, 4d]
        kernels = split_kernels([values[0] @ pn, own, values[1] @ cn], self.linear.weight, project)
        return fused.local_messages(h, surrogates, kernels, self.linear.bias, project, neighbours, share)


def split_kernels(products: list[Tensor], message: Tensor, project: Tensor) -> tuple[Tensor, Tensor]:
    """Join the row blocks of right · [L ‖ W]ᵀ and split it: kernels [·, 3d] for M Lᵀ and [·, d] for M Wᵀ."""
    to_message, to_own = torch.split(torch.cat(products), [len(message), len(project)], dim=1)
    return to_message, to_own


class Cell(nn.Module):
    """One step of the recurrence: the five lines of the appendix's "Velocity Computing"."""

    def __init__(self, config: ModelConfig, variant: Variant) -> None:
        super().__init__()
        d = config.hidden
        self.node_abstraction = GlobalMessages(config, variant, collects=True)
        self.target_abstraction = GlobalMessages(config, variant, collects=False)
        self.target_update = GlobalMessages(config, variant, collects=True)
        self.message = variant.local(3 * d)
        # Dropout is for nodes only: noise on the few proxies or targets would reach all nodes at once.
        self.velocity = variant.velocity(3 * d, config, config.dropout)
        self.parts = self.message.first_parts()

    def forward(
        self, state: State, neighbours: SparseMatrix, share: Tensor, step: Tensor, dt: float
    ) -> State:
        """Return the state after a step of length `dt`.

        `neighbours` is A [n, n], `share` [n, 1] is 1 / (|N(v)| + 1), and `step` [d] encodes t_{s-1}.
        """
        nodes, c, pn, pc = state  # H [n, d], C [c, d], P^(n) [p, d], P^(c) [p, d]
        h = fused.multiplied(nodes)  # [n, d]

        # Eq. pnode-graph (Graph-node Abs.)
        g, pn_next = self.node_abstraction.absorb(h, pn, pn, step, dt)  # [p, d], [p, d]
        values_pn = self.node_abstraction.values(g)  # V_pn [p, d]

        # Eq. pnode-target (Target Abs.)
        _, pc_next = self.target_abstraction.absorb(c, pc, pc, step, dt)  # [p, d]

        # Eq. cnode (Target Rep. Update), conditioned on the updated node proxies
        g, c_next = self.target_update.absorb(h, c, pn_next, step, dt)  # [c, d], [c, d]
        values_cn = self.target_update.values(g)  # V_cn [c, d]

        # Eq. local (Local MP.) of M = [M_pn ‖ M_cn ‖ H], projected to d columns
        surrogates, values, project = (pn_next, c_next), (values_pn, values_cn), self.velocity.representation
        local = self.message(h, surrogates, values, project.weight, neighbours, share, self.parts)  # [n, d]

        # Eq. gnode (Node Rep. Update), with the relation to the updated target proxies [n, p]
        v = self.velocity(local, inner(h, pc_next), step, nodes)  # [n, d]
        return State(torch.add(nodes, v, alpha=dt), c_next, pn_next, pc_next)


def _freeze_at_zero(weight: Tensor) -> None:
    nn.init.zeros_(weight)
    weight.requires_grad_(False)
