"""AdaR as the paper writes it, in the usual PyG manner: what our arrangement is measured against.

The same function and the same weights as adar_train.model, term by term: every layer over a
concatenation takes the concatenation, the step encoding is repeated for each node, and a neighbour
sum gathers one row of 3d columns per edge and adds it up with scatter_add_.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from adar_runtime.schedule import step_code
from adar_train import AdaR, GraphTensors, ModelConfig, State
from adar_train.model import GlobalMessages, Model, Nonlinear, Velocity


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of all rows over √d. Ours is not used, for it is part of what is compared."""
    return a @ b.T / a.shape[1] ** 0.5


def attend(a: Tensor, b: Tensor) -> Tensor:
    """ψ: how much each row of a takes from each row of b."""
    return inner(a, b).softmax(dim=1)


class PlainNonlinear(nn.Module):
    """Linear, then LeakyReLU."""

    def __init__(self, ours: Nonlinear) -> None:
        super().__init__()
        self.linear = ours.linear

    def forward(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(self.linear(x))


class PlainVelocity(nn.Module):
    """NL([current rep. ‖ relation ‖ step info.]) with one layer over the three."""

    def __init__(self, ours: Velocity) -> None:
        super().__init__()
        parts = [ours.representation.weight, ours.relation.weight, ours.step.weight]
        self.mix = nn.Linear(sum(part.shape[1] for part in parts), len(parts[0]))
        with torch.no_grad():
            self.mix.weight.copy_(torch.cat(parts, dim=1))
            self.mix.bias.copy_(ours.step.bias)
        self.norm, self.dropout, self.out = ours.norm, ours.dropout, ours.out

    def forward(self, representation: Tensor, relation: Tensor, step: Tensor) -> Tensor:
        steps = step.expand(len(representation), -1)  # 1 Sᵀ
        mixed = self.mix(torch.cat([representation, relation, steps], dim=1))
        return self.out(self.dropout(functional.leaky_relu(self.norm(mixed))))


class PlainGlobalMessages(nn.Module):
    """GlobMP, Eqs. glob-mp-np to glob-mp-pn."""

    def __init__(self, ours: GlobalMessages) -> None:
        super().__init__()
        self.value = PlainNonlinear(ours.value)
        self.refined = None if ours.refined is None else PlainNonlinear(ours.refined)
        self.velocity = PlainVelocity(ours.velocity)

    def forward(
        self, x_in: Tensor, x_sur: Tensor, x_cond: Tensor, step: Tensor, dt: float
    ) -> tuple[Tensor | None, Tensor]:
        g = attend(x_sur, x_in) @ self.value(x_in)
        g = attend(x_sur, x_sur) @ g
        x_sur = x_sur + self.velocity(g, inner(x_sur, x_cond), step) * dt
        if self.refined is None:
            return None, x_sur
        return attend(x_in, x_sur) @ self.refined(g), x_sur


class PlainAdaR(Model):
    """Takes over the weights of an AdaR. Do not train both: some of their layers are the same objects.

    `per_edge` transforms each message where PyG's MessagePassing.message has it, once for every edge
    that it is sent along, as Eq. local-mp reads. Without, it is done once for every node.
    """

    def __init__(self, ours: AdaR, *, per_edge: bool = False) -> None:
        super().__init__()
        self.per_edge = per_edge
        cell = ours.cell
        self.config: ModelConfig = ours.config
        self.start = ours  # for its input transformation, which both do alike
        self.node_abstraction = PlainGlobalMessages(cell.node_abstraction)
        self.target_abstraction = PlainGlobalMessages(cell.target_abstraction)
        self.target_update = PlainGlobalMessages(cell.target_update)
        self.message = PlainNonlinear(cell.message)
        self.velocity = PlainVelocity(cell.velocity)

    def trajectory(self, graph: GraphTensors, times: Iterable[float]) -> Iterator[State]:
        """The states at each of `times`, as AdaR's."""
        self.velocity.dropout.redraw()
        state = self.start.encode(graph.features, graph.target_features)
        yield state
        for now, then in pairwise(times):
            step = torch.from_numpy(step_code(now, self.config.hidden)).to(state.nodes)
            state = self.step(state, graph.edge_index, step, then - now)
            yield state

    def step(self, state: State, edge_index: Tensor, step: Tensor, dt: float) -> State:
        """Eqs. pnode-graph, pnode-target, cnode, local and gnode."""
        h, c, pn, pc = state
        m_pn, pn = self.node_abstraction(h, pn, pn, step, dt)
        _, pc = self.target_abstraction(c, pc, pc, step, dt)
        m_cn, c = self.target_update(h, c, pn, step, dt)
        local = self.local(torch.cat([m_pn, m_cn, h], dim=1), edge_index)  # [n, 3d]
        return State(h + self.velocity(local, inner(h, pc), step) * dt, c, pn, pc)

    def local(self, messages: Tensor, edge_index: Tensor) -> Tensor:
        """Eq. local-mp."""
        source, target = edge_index
        sent = self.message(messages[source]) if self.per_edge else self.message(messages)[source]  # [m, 3d]
        sums = torch.zeros_like(messages).scatter_add_(0, target[:, None].expand_as(sent), sent)
        count = torch.bincount(target, minlength=len(messages))[:, None]
        return (messages + sums) / (count + 1)
