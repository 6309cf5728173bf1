"""What all trained baselines share: AdaR's input transformation, its targets and its head."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from adar_runtime.errors import UsageError
from adar_train.cell import ModelConfig, State
from adar_train.model import Model
from adar_train.tensors import GraphTensors


class Baseline(Model):
    """Input transformation, then whatever a baseline does, then inner products with the targets.

    The first layer is the same linear map as AdaR's, so that dense features, sparse features and
    target descriptions all enter one space, and a comparison is of what comes after it.
    """

    any_budget = False

    def __init__(self, config: ModelConfig, layers: int) -> None:
        super().__init__(config)
        if layers < 1:
            raise UsageError(f"layers is {layers}: a baseline needs at least 1")
        d = config.hidden
        self.input = nn.Linear(config.features, d)
        self.dropout = nn.Dropout(config.dropout)
        self.targets = (
            None if config.targets is None else nn.Parameter(torch.randn(config.targets, d) / d**0.5)
        )

    def encode(self, graph: GraphTensors) -> State:
        """The input state; a baseline has no proxies unless it says so."""
        nodes = self.dropout(graph.features @ self.input.weight.T + self.input.bias)  # [n, d]
        if self.targets is None:
            assert graph.target_features is not None
            targets = self.input(graph.target_features)  # [c, d]
        else:
            targets = self.targets
        none = nodes.new_empty(0, nodes.shape[1])
        return State(nodes, targets, none, none)


class OnePass(Baseline):
    """One that has an input and an output, and no states between them."""

    def trajectory(self, graph: GraphTensors, times: Iterable[float]) -> Iterator[State]:  # noqa: ARG002
        """The input state and the output state. The depth is the model's own, whatever `times` says."""
        state = self.encode(graph)
        yield state
        yield state._replace(nodes=self.propagate(state.nodes, graph.edge_index))

    @abstractmethod
    def propagate(self, nodes: Tensor, edge_index: Tensor) -> Tensor:
        """Z [n, d] from the input representation [n, d]."""


class ResidualBaseline(OnePass):
    """x ← x + ReLU(conv(norm(x))) per layer, for any convolution of PyG's that keeps the width.

    Norms and residuals are those of the heterophilous-graphs benchmark (Platonov et al., 2023),
    whose figures the paper quotes: without them these baselines would be too easy to beat.
    """

    def __init__(self, config: ModelConfig, layers: int = 4) -> None:
        super().__init__(config, layers)
        d = config.hidden
        self.convolutions = nn.ModuleList(self.convolution() for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers))
        self.last_norm = nn.LayerNorm(d)

    @abstractmethod
    def convolution(self) -> nn.Module:
        """A new PyG convolution from d columns to d columns."""

    def propagate(self, nodes: Tensor, edge_index: Tensor) -> Tensor:
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            nodes = nodes + self.dropout(convolution(norm(nodes), edge_index).relu())
        return self.last_norm(nodes)
