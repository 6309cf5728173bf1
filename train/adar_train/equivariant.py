"""The equivariant variant: gates that depend on invariants decide how far nodes and targets move.

A weight matrix acts on directions, and directions differ from graph to graph. Here, the directions come from
the graph itself (neighbours, targets, what targets gather), and a small network decides how much of each is
used. It reads only quantities that do not change when all columns are rotated. So one set of weights serves
graphs with any features (`adar_runtime.in_context` brings them to d columns).

Shapes: n nodes, c targets, d columns.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from adar_runtime.graph import Graph
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.in_context.start import start
from adar_runtime.loop.schedule import step_code
from adar_train.alignments import ALIGNMENTS, COSINE_MARGIN
from adar_train.cell import ModelConfig, State, inner
from adar_train.sparse import SparseMatrix

NODE_INVARIANTS = 17
TARGET_INVARIANTS = 5
DIRECTIONS = 5  # of a node: neighbours, own targets, gathered, targets of the neighbours, zero
WIDTH = 32
COLUMNS = 64  # d of the pretrained model
TINY = 1e-6


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """Compute the cosine of each row of a [k, d] with the same row of b, 0 for rows of zeros: [k, 1]."""
    squares = a.square().sum(dim=1, keepdim=True) * b.square().sum(dim=1, keepdim=True)
    return (a * b).sum(dim=1, keepdim=True) / (squares + TINY**2).sqrt()


class Gates(nn.Module):
    """Invariants and time → gates: two layers of 32 with LayerNorm. The last layer starts at zero."""

    def __init__(self, invariants: int, gates: int, hidden: int, *, step_info: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(invariants, WIDTH, bias=False)
        self.step = nn.Linear(hidden, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second_norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, gates)
        for zero in (self.out.weight, self.out.bias):
            nn.init.zeros_(zero)
        if not step_info:
            nn.init.zeros_(self.step.weight).requires_grad_(False)

    def forward(self, invariants: Tensor, step: Tensor) -> Tensor:
        """Compute gates [k, g] from invariants [k, i] and the step encoding [d]."""
        x = functional.leaky_relu(self.norm(self.first(invariants) + self.step(step)))
        x = functional.leaky_relu(self.second_norm(self.second(x)))
        return self.out(x)


class EquivariantCell(nn.Module):
    """One step: velocities of nodes and targets as gated differences of vectors that every graph has."""

    def __init__(self, hidden: int, *, step_info: bool = True) -> None:
        super().__init__()
        self.hidden = hidden
        self.node_gates = Gates(NODE_INVARIANTS, DIRECTIONS, hidden, step_info=step_info)
        self.target_gates = Gates(TARGET_INVARIANTS, 1, hidden, step_info=step_info)

    def forward(
        self, h: Tensor, c: Tensor, known: Tensor, neighbours: SparseMatrix, share: Tensor, step: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the velocities of the nodes [n, d] and of the targets [c, d].

        `known` [n, c] has 1 for known classes, and `share` [n, 1] is 1 / (|N(v)| + 1).
        """
        is_known = known.sum(dim=1, keepdim=True)  # [n, 1]
        psi = (1 - is_known) * inner(h, c).softmax(dim=1) + known  # clamped ψ(H, C) [n, c]
        around = 1 - share  # |N| / (|N| + 1)
        mean = (neighbours @ torch.cat([h, psi, is_known], dim=1)) * (share / (around + TINY))
        h_n, psi_n, known_n = torch.split(mean, [h.shape[1], psi.shape[1], 1], dim=1)
        sizes = psi.sum(dim=0)[:, None]  # [c, 1]
        gathered = (psi.T @ h) / (sizes + TINY)  # what each target gathers [c, d]
        own, through, pulled = psi @ c, psi_n @ c, psi @ gathered  # [n, d]
        node_invariants = self.invariants(
            h, psi, psi_n, known_n, is_known, share, (h_n, own, pulled, through)
        )
        gates = self.node_gates(node_invariants, step)
        g = gates.chunk(DIRECTIONS, dim=1)
        v_h = (
            g[0] * around * (h_n - h)
            + g[1] * (own - h)
            + g[2] * (pulled - h)
            + g[3] * around * (through - h)
            + g[4] * h
        )
        shares = sizes / len(h)
        likeness = cosines(c, gathered)
        count = torch.full_like(shares, 1 / len(c))
        purity = psi.square().sum(dim=1).mean().expand_as(shares)
        agreement = (psi * psi_n).sum(dim=1).mean().expand_as(shares)
        target_invariants = torch.cat([shares, likeness, count, purity, agreement], dim=1)
        v_c = self.target_gates(target_invariants, step) * (gathered - c)
        return v_h, v_c

    def invariants(
        self,
        h: Tensor,
        psi: Tensor,
        psi_n: Tensor,
        known_n: Tensor,
        is_known: Tensor,
        share: Tensor,
        vectors: tuple[Tensor, ...],
    ) -> Tensor:
        """Compute what the gates of a node read [n, NODE_INVARIANTS]."""
        agreement = (psi * psi_n).sum(dim=1, keepdim=True)
        prior = psi.mean(dim=0)
        chance = prior.square().sum().expand_as(share)
        squares = h.square().sum(dim=1, keepdim=True)
        return torch.cat(
            [
                psi.amax(dim=1, keepdim=True),
                psi.square().sum(dim=1, keepdim=True),
                psi_n.amax(dim=1, keepdim=True),
                psi_n.square().sum(dim=1, keepdim=True),
                agreement,
                *(cosines(h, vector) for vector in vectors),
                squares / (squares.mean() + TINY),
                share,
                share.sqrt(),
                is_known,
                known_n,
                agreement.mean().expand_as(share),
                chance,
                torch.full_like(share, 1 / psi.shape[1]),
            ],
            dim=1,
        )


@dataclass(frozen=True)
class PlacedGraph:
    """A graph as the model takes it: the closed-form start, the known classes and the edges."""

    first: State
    known: Tensor  # [n, c]
    neighbours: SparseMatrix
    share: Tensor  # [n, 1]

    @classmethod
    def of(cls, graph: Graph, columns: int = COLUMNS) -> "PlacedGraph":
        """Place a graph with class descriptions or with known labels."""
        placed, neighbours = start(graph, columns), Neighbours.in_graph(graph, weighted=False)
        none = torch.zeros(1, columns)
        first = State(torch.from_numpy(placed.nodes), torch.from_numpy(placed.targets), none, none)
        known, share = torch.from_numpy(placed.known), torch.from_numpy(neighbours.share)
        return cls(first, known, SparseMatrix(neighbours), share)


class EquivariantAdaR(nn.Module):
    """The pretrained model: closed-form start, equivariant cell and inner-product head."""

    def __init__(self, columns: int = COLUMNS, *, step_info: bool = True) -> None:
        super().__init__()
        self.config = ModelConfig(columns, None, hidden=columns, proxies=1, alignment=COSINE_MARGIN)
        self.cell = EquivariantCell(columns, step_info=step_info)

    def trajectory(self, graph: PlacedGraph, times: Iterable[float]) -> Iterator[State]:
        """Yield the state at each of `times`."""
        state = graph.first
        yield state
        for now, then in pairwise(times):
            step = torch.from_numpy(step_code(now, self.config.hidden))
            v_h, v_c = self.cell(state.nodes, state.targets, graph.known, graph.neighbours, graph.share, step)
            state = state._replace(
                nodes=state.nodes + v_h * (then - now), targets=state.targets + v_c * (then - now)
            )
            yield state

    def scores(self, state: State, _graph: PlacedGraph) -> Tensor:
        """Compute the scores before softmax, [n, c]."""
        return inner(state.nodes, state.targets)

    def alignment(self, state: State) -> Tensor:
        """Compute the scalar that the stop rules read."""
        return ALIGNMENTS[self.config.alignment](state.nodes, state.targets, None)
