"""The equivariant variant: gates that depend on invariants decide how far nodes and targets move.

A weight matrix acts on directions, and directions differ from graph to graph. Here, the directions come from
the graph itself (neighbours, targets, what targets gather), and a small network decides how much of each is
used. It reads only quantities that do not change when all columns are rotated. So one set of weights serves
graphs with any features (`adar_runtime.in_context` brings them to d columns).

Shapes: n nodes, c targets, d columns.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from adar_runtime.graph import Graph
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.in_context.start import start
from adar_runtime.loop.schedule import step_code
from adar_train.alignments import ALIGNMENTS, COSINE_MARGIN
from adar_train.cell import ModelConfig, State
from adar_train.sparse import SparseMatrix

DIRECTIONS = 5  # of a node: neighbours, own targets, gathered, targets of the neighbours, zero
TARGET_DIRECTIONS = 3  # of a target: gathered, gathered from confident nodes, mean of all nodes
WIDTH = 32
COLUMNS = 64  # d of the pretrained model
TINY = 1e-6
LARGE = 1e9
ENOUGH_LABELS = 4  # a class with k known labels has the trust k / (k + ENOUGH_LABELS)

PLAIN = ("length", "share", "root share", "classes")
"""Invariants of a node that do not compare it with targets or neighbours."""

NODE_INVARIANTS = (
    *("largest", "purity", "largest of neighbours", "purity of neighbours", "agreement"),
    *("cosine with neighbours", "cosine with own", "cosine with gathered", "cosine with through"),
    *("length", "share", "root share", "known", "known neighbours"),
    *("mean agreement", "chance", "classes", "right neighbours", "trust"),
)
TARGET_INVARIANTS = (
    *("size", "relative size", "cosine with gathered", "purity", "agreement", "trust"),
    *("classes", "mean purity", "mean agreement", "mean trust", "right neighbours"),
)

STEP_INFO, RELATIONS, INVARIANTS = "step-info", "relations", "invariants"
ABLATIONS = (STEP_INFO, RELATIONS, INVARIANTS)
"""What gates can be without: the time, what they read of other rows, or everything (constant gates)."""


class Gates(nn.Module):
    """Invariants and time → gates: two layers of 32 with LayerNorm. The last layer starts at zero."""

    def __init__(self, invariants: Sequence[str], gates: int, hidden: int, without: Collection[str]) -> None:
        super().__init__()
        self.first = nn.Linear(len(invariants), WIDTH, bias=False)
        self.step = nn.Linear(hidden, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second_norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, gates)
        for zero in (self.out.weight, self.out.bias):
            nn.init.zeros_(zero)
        if STEP_INFO in without or INVARIANTS in without:
            nn.init.zeros_(self.step.weight).requires_grad_(False)
        if INVARIANTS in without:
            nn.init.zeros_(self.first.weight).requires_grad_(False)
        if RELATIONS in without:
            kept = torch.tensor([float(name in PLAIN) for name in invariants])
            self.first.weight.data *= kept
            self.first.weight.register_hook(lambda gradient: gradient * kept)  # type: ignore[no-untyped-call]

    def forward(self, invariants: Tensor, step: Tensor) -> Tensor:
        """Compute gates [k, g] from invariants [k, i] and the step encoding [d]."""
        x = functional.leaky_relu(self.norm(self.first(invariants) + self.step(step)))
        x = functional.leaky_relu(self.second_norm(self.second(x)))
        return self.out(x)


class TaskGates(nn.ModuleList):
    """Two sets of gates: the first for graphs without known labels, the second for graphs with some.

    The second set does not read the time: it is better without it (benchmarks/pretrained.md).
    """

    def __init__(self, invariants: Sequence[str], gates: int, hidden: int, without: str | None) -> None:
        chosen = set() if without is None else {without}
        super().__init__(Gates(invariants, gates, hidden, each) for each in (chosen, chosen | {STEP_INFO}))


class EquivariantCell(nn.Module):
    """One step: velocities of nodes and targets as gated differences of vectors that every graph has."""

    def __init__(self, hidden: int, without: str | None = None) -> None:
        super().__init__()
        self.hidden = hidden
        self.node_gates = TaskGates(NODE_INVARIANTS, DIRECTIONS, hidden, without)
        self.target_gates = TaskGates(TARGET_INVARIANTS, TARGET_DIRECTIONS, hidden, without)

    def forward(self, h: Tensor, c: Tensor, graph: "PlacedGraph", step: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the velocities of the nodes [n, d] and of the targets [c, d].

        Mixtures of targets (ψ C and others) are never built for the nodes: lengths and inner products of
        mixtures are sums of [n, c] numbers, which is much less than [n, d].
        """
        known, share, nodes, count = graph.known, graph.share, graph.node_count, graph.class_count
        is_known = known.sum(dim=-1, keepdim=True)  # [n, 1]
        task = int(bool(is_known.any()))
        to_c = h @ c.mT  # inner products [n, c]
        free = (to_c * h.shape[-1] ** -0.5 + graph.absent).softmax(dim=-1)
        psi = (graph.present - is_known) * free + known  # clamped ψ(H, C) [n, c]
        around = 1 - share  # |N| / (|N| + 1)
        sent = torch.cat([h, psi, is_known], dim=-1)
        mean = (graph.neighbours @ sent.flatten(0, -2)).view_as(sent) * (share / (around + TINY))
        h_n, psi_n, known_n = torch.split(mean, [h.shape[-1], psi.shape[-1], 1], dim=-1)
        sharp, shared = psi.square(), psi * psi_n  # [n, c]
        sizes, sharp_sizes = (x.sum(dim=-2)[..., None] for x in (psi, sharp))  # [c, 1]
        gathered = (psi.mT @ h) / (sizes + TINY)  # what each target gathers [c, d]
        confident = (sharp.mT @ h) / (sharp_sizes + TINY)  # the same, mostly of confident nodes

        agreement, purity = shared.sum(dim=-1, keepdim=True), sharp.sum(dim=-1, keepdim=True)  # [n, 1]
        mean_agreement, mean_purity = (x.sum(dim=-2, keepdim=True) / nodes for x in (agreement, purity))
        shares = sizes / nodes
        labels = known.sum(dim=-2)[..., None]  # [c, 1]
        trust = labels / (labels + ENOUGH_LABELS)
        given = labels.sum(dim=-2, keepdim=True)
        right = (known * psi_n).sum(dim=(-2, -1), keepdim=True) / (given + TINY)  # of known classes, nearby
        of_h, of_c, of_g = squares(h), c @ c.mT, gathered @ gathered.mT
        to_g = h @ gathered.mT
        of_graph = [mean_agreement, squares(shares.mT), 1 / count, right, total(trust) / count]
        invariants = [
            psi.amax(dim=-1, keepdim=True),
            purity,
            psi_n.amax(dim=-1, keepdim=True),
            squares(psi_n),
            agreement,
            cosines(dots(h, h_n), of_h, squares(h_n)),
            cosines(dots(psi, to_c), of_h, dots(psi @ of_c, psi)),
            cosines(dots(psi, to_g), of_h, dots(psi @ of_g, psi)),
            cosines(dots(psi_n, to_c), of_h, dots(psi_n @ of_c, psi_n)),
            of_h / (total(of_h) / nodes + TINY),
            share,
            share.sqrt(),
            is_known,
            known_n,
            *(x.expand_as(share) for x in of_graph),
        ]
        gates = self.node_gates[task](torch.cat(invariants, dim=-1), step)
        g1, g2, g3, g4, g5 = gates.chunk(DIRECTIONS, dim=-1)
        g1, g4 = g1 * around, g4 * around
        v_h = g1 * h_n + (g2 * psi + g4 * psi_n) @ c + (g3 * psi) @ gathered + (g5 - g1 - g2 - g3 - g4) * h

        of_graph = [1 / count, mean_purity, mean_agreement, total(trust) / count, right]
        invariants = [
            shares,
            shares * count,
            cosines(dots(c, gathered), squares(c), squares(gathered)),
            sharp_sizes / (sizes + TINY),
            shared.sum(dim=-2)[..., None] / (sizes + TINY),
            trust,
            *(x.expand_as(shares) for x in of_graph),
        ]
        gates = self.target_gates[task](torch.cat(invariants, dim=-1), step)
        g6, g7, g8 = gates.chunk(TARGET_DIRECTIONS, dim=-1)
        v_c = g6 * (gathered - c) + g7 * (confident - c) + g8 * (total(h) / nodes)
        return v_h, v_c


def dots(a: Tensor, b: Tensor) -> Tensor:
    """Compute the inner product of each row of a [k, d] with the same row of b: [k, 1]."""
    return (a * b).sum(dim=-1, keepdim=True)


def squares(a: Tensor) -> Tensor:
    """Compute the square of the length of each row: [k, 1]."""
    return a.square().sum(dim=-1, keepdim=True)


def total(a: Tensor) -> Tensor:
    """Compute the sum of all rows of a [k, d]: [1, d]."""
    return a.sum(dim=-2, keepdim=True)


def cosines(products: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Compute cosines from inner products and squares of lengths; 0 for rows of zeros."""
    return products / (a * b.relu() + TINY**2).sqrt()


@dataclass(frozen=True)
class PlacedGraph:
    """A graph as the model takes it, or several graphs: then every tensor has a first dimension more.

    Attributes:
        first: The closed-form start.
        known: [n, c], 1 for known classes.
        edges: The neighbours of all nodes; node v of graph i has the number i * n + v.
        present: [n, 1], 1 for nodes and 0 for padding.
        classes: [1, c], 1 for classes and 0 for padding.
    """

    first: State
    known: Tensor
    edges: Neighbours
    present: Tensor
    classes: Tensor

    @classmethod
    def of(cls, graph: Graph, columns: int = COLUMNS) -> "PlacedGraph":
        """Place a graph with class descriptions or with known labels."""
        placed, edges = start(graph, columns), Neighbours.in_graph(graph, weighted=False)
        arrays = (placed.nodes, placed.targets, placed.known)
        nodes, targets, known = map(torch.from_numpy, arrays)
        return cls.at(nodes, targets, known, edges)

    @classmethod
    def at(cls, nodes: Tensor, targets: Tensor, known: Tensor, edges: Neighbours) -> "PlacedGraph":
        """A graph whose closed-form start is known: nodes [n, d], targets [c, d]."""
        none = torch.zeros(1, nodes.shape[1])
        n, c = known.shape
        return cls(State(nodes, targets, none, none), known, edges, torch.ones(n, 1), torch.ones(1, c))

    @classmethod
    def joined(cls, graphs: "Sequence[PlacedGraph]") -> "PlacedGraph":
        """Several graphs side by side, padded to the same numbers of nodes and of classes."""
        n, c = (max(each.known.shape[axis] for each in graphs) for axis in (0, 1))

        def padded(tensors: Iterable[Tensor], rows: int, columns: int) -> Tensor:
            sides = ((x, columns - x.shape[1], rows - x.shape[0]) for x in tensors)
            return torch.stack([functional.pad(x, (0, right, 0, below)) for x, right, below in sides])

        d = graphs[0].first.nodes.shape[1]
        first = State(
            padded((each.first.nodes for each in graphs), n, d),
            padded((each.first.targets for each in graphs), c, d),
            graphs[0].first.node_proxies,
            graphs[0].first.target_proxies,
        )
        return cls(
            first,
            padded((each.known for each in graphs), n, c),
            Neighbours.side_by_side([each.edges for each in graphs], n),
            padded((each.present for each in graphs), n, 1),
            padded((each.classes for each in graphs), 1, c),
        )

    @cached_property
    def neighbours(self) -> SparseMatrix:
        """The sum over the neighbours of each node, as a factor of a product."""
        return SparseMatrix(self.edges)

    @cached_property
    def share(self) -> Tensor:
        """1 / (|N(v)| + 1), [n, 1]."""
        return torch.from_numpy(self.edges.share).view_as(self.present)

    @cached_property
    def absent(self) -> Tensor:
        """What the logits of a node get added: 0 for classes, and a large negative number for padding."""
        return (self.classes - 1) * LARGE

    @cached_property
    def node_count(self) -> Tensor:
        """The number of nodes, [1, 1]."""
        return total(self.present)

    @cached_property
    def class_count(self) -> Tensor:
        """The number of classes, [1, 1]."""
        return self.classes.sum(dim=-1, keepdim=True)


class EquivariantAdaR(nn.Module):
    """The pretrained model: closed-form start, equivariant cell and inner-product head."""

    def __init__(self, columns: int = COLUMNS, without: str | None = None) -> None:
        super().__init__()
        self.config = ModelConfig(columns, None, hidden=columns, proxies=1, alignment=COSINE_MARGIN)
        self.cell = EquivariantCell(columns, without)

    def trajectory(self, graph: PlacedGraph, times: Iterable[float]) -> Iterator[State]:
        """Yield the state at each of `times`."""
        state = graph.first
        yield state
        for now, then in pairwise(times):
            step = torch.from_numpy(step_code(now, self.config.hidden))
            v_h, v_c = self.cell(state.nodes, state.targets, graph, step)
            state = state._replace(
                nodes=state.nodes + v_h * (then - now), targets=state.targets + v_c * (then - now)
            )
            yield state

    def scores(self, state: State, graph: PlacedGraph) -> Tensor:
        """Compute the scores before softmax, [n, c]."""
        return state.nodes @ state.targets.mT * self.config.hidden**-0.5 + graph.absent

    def alignment(self, state: State) -> Tensor:
        """Compute the scalar that the stop rules read."""
        return ALIGNMENTS[self.config.alignment](state.nodes, state.targets, None)
