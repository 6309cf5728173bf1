"""N²: dynamic message passing with pseudo nodes, a fixed number of steps (Sun et al., 2024).

This is the part of N² that the AdaR paper describes (appendix "Implementation of MP"): AdaR's cell
without step information, without relations and without the recurrent update of the targets, and
with a residual update instead of the velocity. The equation names are those of the appendix.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from adar_train.baselines.base import Baseline
from adar_train.cell import ModelConfig, Nonlinear, State, attend
from adar_train.sparse import SparseMatrix
from adar_train.tensors import GraphTensors


class Update(nn.Module):
    """The change of a representation in one step; its LayerNorm bounds it, as in AdaR's velocity."""

    def __init__(self, representation: int, config: ModelConfig) -> None:
        super().__init__()
        d = config.hidden
        self.representation = nn.Linear(representation, d)
        self.rest = nn.Sequential(
            nn.LayerNorm(d), nn.LeakyReLU(), nn.Dropout(config.dropout), nn.Linear(d, d, bias=False)
        )

    def forward(self, representation: Tensor) -> Tensor:
        return self.rest(self.representation(representation))


class Layer(nn.Module):
    """GlobMP through the pseudo nodes, then LocalMP. All steps share one set of weights."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d = config.hidden
        self.value = Nonlinear(d)
        self.refined = Nonlinear(d)
        self.message = Nonlinear(2 * d)
        self.pseudo_update = Update(d, config)
        self.node_update = Update(2 * d, config)

    def forward(
        self, nodes: Tensor, pseudo: Tensor, neighbours: SparseMatrix, share: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Representations of the graph's nodes [n, d] and of the pseudo nodes [p, d] after one step."""
        g = attend(pseudo, nodes) @ self.value(nodes)  # Eq. glob-mp-np (Diffuse): [p, d]
        g = attend(pseudo, pseudo) @ g  # Eq. glob-mp-agg (Refine): [p, d]
        pseudo = pseudo + self.pseudo_update(g)  # Eq. glob-mp-update
        collected = attend(nodes, pseudo) @ self.refined(g)  # Eq. glob-mp-pn (Collect): [n, d]
        messages = torch.cat([collected, nodes], dim=1)  # M [n, 2d]
        local = (messages + neighbours @ self.message(messages)) * share  # Eq. local-mp: [n, 2d]
        return nodes + self.node_update(local), pseudo  # Eq. gnode


class N2(Baseline):
    """The layer, repeated `layers` times in training and inference: 8 in the AdaR paper."""

    def __init__(self, config: ModelConfig, layers: int = 8) -> None:
        super().__init__(config, layers)
        self.steps = layers
        self.layer = Layer(config)
        self.pseudo_nodes = nn.Parameter(torch.randn(config.proxies, config.hidden))

    def trajectory(self, graph: GraphTensors, times: Iterable[float]) -> Iterator[State]:  # noqa: ARG002
        """The states after 0, 1, … steps. `times` is ignored: the number of steps is fixed."""
        graph = self.weighted(graph)
        state = self.encode(graph)._replace(node_proxies=self.pseudo_nodes)
        yield state
        for _ in range(self.steps):
            nodes, pseudo = self.layer(state.nodes, state.node_proxies, graph.neighbours, graph.share)
            state = state._replace(nodes=nodes, node_proxies=pseudo)
            yield state
