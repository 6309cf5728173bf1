"""AdaR: features → states at t = 0 → the cell for any number of steps → scores by inner products."""

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
from adar_train.sparse import SparseMatrix
from adar_train.tensors import GraphTensors
from adar_train.variants import variant_of


class Model(nn.Module, ABC):
    """Base class of AdaR and the baselines: states over time, and one head for all tasks."""

    config: ModelConfig
    any_budget = True  # whether the caller chooses the number of steps; a baseline has its own depth
    gradient_checkpoints = False  # keep one state per step and recompute the rest: less memory
    label_offset: Tensor  # for regression, [c], or [1] for described targets; the trainer sets it
    label_scale: Tensor  # the same shape: label = score · scale + offset

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.variant = variant_of(config)
        if config.regression:
            self.register_buffer("label_offset", torch.zeros(config.targets or 1))
            self.register_buffer("label_scale", torch.ones(config.targets or 1))

    @abstractmethod
    def trajectory(self, graph: GraphTensors, times: Iterable[float]) -> Iterator[State]:
        """Yield the state at each of `times`."""

    def weighted(self, graph: GraphTensors) -> GraphTensors:
        """Return the graph as this model reads it: without the weights of edges if it does not use them."""
        return graph if self.config.edge_weights else graph.unweighted()

    def scores(self, state: State, graph: GraphTensors) -> Tensor:
        """Compute Z Cᵀ of the problem setup, before softmax: [k, c] for k outputs."""
        return self.score(graph.readout(state.nodes), graph.targets_of(state.targets))

    def score(self, z: Tensor, targets: Tensor) -> Tensor:
        """Compute the inner products of Z [k, d] and C [c, d]; for regression, in the labels' units."""
        products = self.products(z, targets)
        return products * self.label_scale + self.label_offset if self.config.regression else products

    def products(self, z: Tensor, targets: Tensor) -> Tensor:
        """Compute Z Cᵀ [k, c], divided by √d in variants whose rows grow with d.

        Outputs of different graphs may have targets of their own, [k, c, d].
        """
        if targets.dim() == 3:
            return (targets @ z[:, :, None]).squeeze(2)
        return inner(z, targets) if self.variant.scaled_scores else z @ targets.T

    def standardised(self, labels: Tensor) -> Tensor:
        """Return regression targets with mean 0 and spread 1, to compare with `products`."""
        return (labels - self.label_offset) / self.label_scale

    def alignment(self, state: State, shares: Tensor | None = None) -> Tensor:
        """Compute the scalar that the stop rules read; for a batch, one for each graph [b]."""
        return ALIGNMENTS[self.config.alignment](state.nodes, state.targets, shares)


class AdaR(Model):
    """Input transformation, recurrent cell and inner-product head.

    Args:
        config: The settings of the model. `config.variant` chooses the classes of its parts.

    Raises:
        UsageError: The variant does not exist, or it needs described targets (`config.targets` of None).

    Example:
        >>> import torch
        >>> from adar_train import AdaR, ModelConfig
        >>> model = AdaR(ModelConfig(features=7, targets=2, hidden=16, proxies=4))
        >>> model.encode(torch.zeros(5, 7)).nodes.shape
        torch.Size([5, 16])
    """

    feature_offset: Tensor  # [f], subtracted from the features; `initialisation.start` sets it
    feature_scale: Tensor  # [f], multiplied with the features after that

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        d, p, f = config.hidden, config.proxies, config.features
        self.register_buffer("feature_offset", torch.zeros(f))
        self.register_buffer("feature_scale", torch.ones(f))
        self.input = self.variant.input(f, d)  # f_in, shared by nodes and target descriptions
        self.dropout = nn.Dropout(config.dropout)
        self.cell = Cell(config, self.variant)
        self.node_proxies = nn.Parameter(torch.randn(p, d))  # P^(n) at t = 0
        self.target_proxies = nn.Parameter(torch.randn(p, d))  # P^(c) at t = 0
        self.log_length = self.input.first_log_length()
        self.targets = (
            None if config.targets is None else nn.Parameter(torch.randn(config.targets, d) / d**0.5)
        )

    def input_map(self) -> tuple[Tensor, Tensor]:
        """Return feature scaling and f_in as one affine map: kernel [f, d] and bias [d]."""
        kernel = self.feature_scale[:, None] * self.input.weight.T
        return kernel, self.input.bias - self.feature_offset @ kernel

    def encode(self, features: Tensor | SparseMatrix, target_features: Tensor | None = None) -> State:
        """Compute the state at t = 0 before smoothing: each node alone.

        Args:
            features: Features of the nodes, [n, f].
            target_features: Features of the described targets, [c, f]. None if targets are learned.

        Returns:
            The state at t = 0.
        """
        kernel, bias = self.input_map()
        nodes = self._normed(self.dropout(self._drop(features) @ kernel + bias))  # [n, d]
        if self.targets is not None:
            return State(nodes, self.targets, self.node_proxies, self.target_proxies)
        assert target_features is not None
        targets = self._normed(target_features @ kernel + bias)  # [c, d]
        nodes, targets = self.input.place(nodes, targets, self.log_length)
        return State(nodes, targets, self.node_proxies, self.target_proxies)

    def first_state(self, graph: GraphTensors) -> State:
        """Compute the state at t = 0 of a graph: `encode`, then the smoothing of the nodes.

        Args:
            graph: The graph as tensors.

        Returns:
            The state at t = 0.
        """
        state = self.encode(graph.features, graph.target_features)
        return graph.shaped(state._replace(nodes=graph.smoothed(state.nodes, self.config.smoothing)))

    def trajectory(self, graph: GraphTensors, times: Iterable[float]) -> Iterator[State]:
        """Yield the state at each of `times`.

        Args:
            graph: The graph as tensors.
            times: Increasing times. The first state is the input transformation's.

        Returns:
            An iterator over one state per time. Each step runs the cell once.
        """
        self.cell.velocity.dropout.redraw()
        graph = self.weighted(graph)
        state = self.first_state(graph)
        yield state
        for now, then in pairwise(times):
            step = torch.from_numpy(step_code(now, self.config.hidden)).to(state.nodes)  # S_{s-1} [d]
            inputs = (self.cell, state, step, then - now)
            if self.gradient_checkpoints and self.training:
                state = checkpoint(graph.step, *inputs, use_reentrant=False)
            else:
                state = graph.step(*inputs)
            yield state

    def _normed(self, rows: Tensor) -> Tensor:
        """Give each row [·, d] zero mean and unit spread, if the settings ask for it."""
        return functional.layer_norm(rows, rows.shape[1:]) if self.config.input_norm else rows

    def _drop(self, features: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
        if not self.training:
            return features
        p = self.config.input_dropout
        return features.dropped(p) if isinstance(features, SparseMatrix) else functional.dropout(features, p)
