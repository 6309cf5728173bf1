"""What an epoch optimises: the loss of one graph, and the graphs that one epoch trains on."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from adar_runtime.graph import Graph
from adar_train.config import TrainConfig
from adar_train.data.episodes import EpisodeSource
from adar_train.graph_batch import GraphBatch, members_of
from adar_train.losses import full_loss, step_loss, task_loss
from adar_train.model import Model
from adar_train.tensors import GraphTensors

AT_ONCE = 4  # batches of small graphs for one optimiser step: each batch has graphs of one size

Batch = tuple[GraphTensors, Tensor]
"""A graph, and the indices of its outputs whose labels are trained on."""


class Objective(nn.Module):
    """Eq. loss of one graph. A module, because several processes share the gradient of a module."""

    def __init__(self, model: Model, config: TrainConfig) -> None:
        super().__init__()
        self.model = model
        self.config = config

    def forward(
        self, graph: GraphTensors, chosen: Tensor, clock: Sequence[float], middle: int, part: float = 1.0
    ) -> Tensor:
        """The weighted sum of the loss terms, over the trajectory at the times `clock`.

        `middle` is the step at which the intermediate task loss is taken (`TrainConfig.middle_weight`).
        `part` is the part of the weights of L_step and L_full that counts (`TrainConfig.fading_losses`).
        """
        states = list(self.model.trajectory(graph, clock))
        loss = task_loss(self.model, states[-1], graph, chosen, smoothing=self.config.label_smoothing)
        if self.config.middle_weight:
            loss = loss + self.config.middle_weight * task_loss(self.model, states[middle], graph, chosen)
        if self.config.step_weight:
            loss = loss + part * self.config.step_weight * step_loss(self.model, states, graph, chosen)
        if self.config.full_weight:
            loss = loss + part * self.config.full_weight * full_loss(self.model, states, graph, chosen)
        return loss


class WholeGraphs:
    """Every epoch trains on every graph with training labels; of batches of small graphs, on a few."""

    def __init__(self, graphs: Sequence[Graph], tensors: Sequence[GraphTensors], split: int) -> None:
        self.all: list[Batch] = []
        for tensor, members in zip(tensors, members_of(tensors), strict=True):
            masks = [graphs[index].labelled("train", split) for index in members]
            known = [mask for mask in masks if mask is not None]
            if known:  # then all graphs of a batch are training graphs
                chosen = torch.from_numpy(np.flatnonzero(np.concatenate(known)))
                self.all.append((tensor, tensor.own(chosen.to(tensor.share.device))))
        self._are_parts = any(isinstance(tensor, GraphBatch) for tensor in tensors)

    def draw(self, count: int, random: np.random.Generator) -> list[Batch]:
        """All graphs, in their order; or a few batches of random sizes, at least one for each process."""
        if not self._are_parts:
            return self.all
        most = min(len(self.all), max(count, AT_ONCE))
        return [self.all[index] for index in random.choice(len(self.all), most, replace=False)]


class Episodes:
    """Every epoch trains on small tasks drawn from the graphs; larger graphs are drawn more often."""

    def __init__(self, graphs: Sequence[Graph], split: int, device: torch.device) -> None:
        labelled = [graph for graph in graphs if graph.labelled("train", split) is not None]
        self._sources = [EpisodeSource.of(graph, split) for graph in labelled]
        self._device = device

    def draw(self, count: int, random: np.random.Generator) -> list[Batch]:
        """`count` new tasks, one for each process."""
        sizes = np.array([len(source.chosen) for source in self._sources], np.float64)
        drawn = random.choice(len(self._sources), count, p=sizes / sizes.sum())
        graphs = [self._sources[index].draw(random) for index in drawn]
        return [
            (GraphTensors.of(graph, self._device), torch.arange(graph.nodes, device=self._device))
            for graph in graphs
        ]
