"""The parts that all baselines share: AdaR's input layer, its targets and its head."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from adar_runtime.errors import UsageError
from adar_train.cell import ModelConfig, State
from adar_train.model import Model
from adar_train.tensors import GraphTensors


class Baseline(Model):
    """Input layer, then the baseline's own layers, then inner products with the targets.

    The input layer is the same linear map as AdaR's. It takes dense features, sparse features and target
    descriptions, so a comparison measures only the layers after it.
    """

    any_budget = False

    def __init__(self, config: ModelConfig, layers: int) -> None:
        super().__init__(config)
        if layers < 1:
            raise UsageError(f"layers is {layers}, but a baseline needs at least 1 layer")
        d = config.hidden
        self.input = nn.Linear(config.features, d)
        self.dropout = nn.Dropout(config.dropout)
        self.targets = (
            None if config.targets is None else nn.Parameter(torch.randn(config.targets, d) / d**0.5)
        )

    def weighted(self, graph: GraphTensors) -> GraphTensors:
        """The graph without the weights of edges: the layers of the baselines do not use them."""
        return graph.unweighted()

    def encode(self, graph: GraphTensors) -> State:
        """The input state, without proxies."""
        nodes = self.dropout(graph.features @ self.input.weight.T + self.input.bias)  # [n, d]
        if self.targets is None:
            assert graph.target_features is not None
            targets = self.input(graph.target_features)  # [c, d]
        else:
            targets = self.targets
        none = nodes.new_empty(0, nodes.shape[1])
        return State(nodes, targets, none, none)


class OnePass(Baseline):
    """A baseline with an input state and an output state, and no states between them."""

    def trajectory(self, graph: GraphTensors, times: Iterable[float]) -> Iterator[State]:  # noqa: ARG002
        """The input state and the output state. `times` is ignored: the number of layers is fixed."""
        state = self.encode(graph)
        yield state
        yield state._replace(nodes=self.propagate(state.nodes, self.weighted(graph)))

    @abstractmethod
    def propagate(self, nodes: Tensor, graph: GraphTensors) -> Tensor:
        """Z [n, d] from the input representation [n, d]."""
