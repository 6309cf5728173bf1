"""AdaR: features -> states at t = 0, the cell for as many steps as one likes, scores by inner products."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from adar_runtime.loop.schedule import step_code
from adar_train.alignments import ALIGNMENTS
from adar_train.cell import Cell, ModelConfig, State, inner
from adar_train.placing import placed
from adar_train.sparse import SparseMatrix
from adar_train.tensors import GraphTensors

FIRST_TEMPERATURE = 20.0  # of the cosines in every softmax of an untrained isotropic model


class Model(nn.Module, ABC):
    """What the trainer and the evaluation ask of any model: states over time, and one head for all tasks."""

    config: ModelConfig
    any_budget = True  # whether the caller says how many steps there are; a baseline's depth is its own
    gradient_checkpoints = False  # keep one state a step and compute the rest again: less memory
    label_offset: Tensor  # of regression, [c], or [1] where targets are described, and
    label_scale: Tensor  # the same: what products become before they are scores; the trainer finds them

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        if config.regression:
            self.register_buffer("label_offset", torch.zeros(config.targets or 1))
            self.register_buffer("label_scale", torch.ones(config.targets or 1))

    @abstractmethod
    def trajectory(self, graph: GraphTensors, times: Iterable[float]) -> Iterator[State]:
        """The states at each of `times`."""

    def scores(self, state: State, graph: GraphTensors) -> Tensor:
        """Z Cᵀ of the problem setup, before softmax: [k, c]."""
        return self.score(graph.readout(state.nodes), state.targets)

    def score(self, z: Tensor, targets: Tensor) -> Tensor:
        """Inner products; of regression, in the labels' own units."""
        products = self.products(z, targets)
        return products * self.label_scale + self.label_offset if self.config.regression else products

    def products(self, z: Tensor, targets: Tensor) -> Tensor:
        """Scaled where rows are long by design, so that softmax stays calibrated."""
        return inner(z, targets) if self.config.isotropic else z @ targets.T

    def standardised(self, labels: Tensor) -> Tensor:
        """Numbers to come close to as products have them: with mean 0 and spread 1."""
        return (labels - self.label_offset) / self.label_scale

    def alignment(self, state: State) -> Tensor:
        """The scalar that an exit watches."""
        return ALIGNMENTS[self.config.alignment](state.nodes, state.targets)


class AdaR(Model):
    """Input transformation, recurrent cell and inner-product head."""

    feature_offset: Tensor  # [f], and
    feature_scale: Tensor  # [f]: what is done to the features before all else; `start` finds them

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        d, p, f = config.hidden, config.proxies, config.features
        self.register_buffer("feature_offset", torch.zeros(f))
        self.register_buffer("feature_scale", torch.ones(f))
        self.input = nn.Linear(f, d)  # f_in, shared by nodes and target descriptions
        self.dropout = nn.Dropout(config.dropout)
        self.cell = Cell(config)
        self.node_proxies = nn.Parameter(torch.randn(p, d))  # P^(n) at t = 0
        self.target_proxies = nn.Parameter(torch.randn(p, d))  # P^(c) at t = 0
        length = (
            FIRST_TEMPERATURE * d**0.5
        ) ** 0.5  # softmax of inner/√d is then that of temperature · cosine
        self.log_length = nn.Parameter(torch.tensor(length).log()) if config.isotropic else None
        self.targets = (
            None if config.targets is None else nn.Parameter(torch.randn(config.targets, d) / d**0.5)
        )

    def rates_and_scales(self) -> list[nn.Parameter | None]:
        """The few numbers of an isotropic model that say how much, and nothing about directions."""
        cell = self.cell
        return [cell.velocity.rates, cell.target_update.velocity.rates, cell.parts, self.log_length]

    def input_map(self) -> tuple[Tensor, Tensor]:
        """Scaling and f_in as one affine map: kernel [f, d] and bias [d]."""
        kernel = self.feature_scale[:, None] * self.input.weight.T
        return kernel, self.input.bias - self.feature_offset @ kernel

    def encode(self, features: Tensor | SparseMatrix, target_features: Tensor | None = None) -> State:
        """f_in: the state at t = 0."""
        kernel, bias = self.input_map()
        nodes = self.dropout(self._drop(features) @ kernel + bias)
        if self.targets is not None:
            return State(nodes, self.targets, self.node_proxies, self.target_proxies)
        assert target_features is not None
        targets = target_features @ kernel + bias
        if self.log_length is not None:
            nodes, targets = placed(nodes, targets, self.log_length.exp())
        return State(nodes, targets, self.node_proxies, self.target_proxies)

    def trajectory(self, graph: GraphTensors, times: Iterable[float]) -> Iterator[State]:
        """The states at each of `times`, from the first, which is the input transformation's."""
        self.cell.velocity.dropout.redraw()
        state = self.encode(graph.features, graph.target_features)
        yield state
        for now, then in pairwise(times):
            step = torch.from_numpy(step_code(now, self.config.hidden)).to(state.nodes)
            inputs = (state, graph.neighbours, graph.share, step, then - now)
            if self.gradient_checkpoints and self.training:
                state = checkpoint(self.cell, *inputs, use_reentrant=False)
            else:
                state = self.cell(*inputs)
            yield state

    def _drop(self, features: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
        if not self.training:
            return features
        p = self.config.input_dropout
        return features.dropped(p) if isinstance(features, SparseMatrix) else functional.dropout(features, p)
