"""Weights of the classes in the loss, so that rare classes count as much as frequent ones."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from adar_runtime.errors import UsageError
from adar_runtime.graph import GRAPH
from adar_train.config import BALANCED, TrainConfig
from adar_train.model import Model
from adar_train.objective import Batch, Episodes, WholeGraphs
from adar_train.tensors import GraphTensors


def balanced_weights(labels: Tensor, classes: int) -> Tensor:
    """Compute (number of labels) / (number of classes with labels · labels of the class), [classes].

    The mean weight of all labels is 1, so the scale of the loss does not change. A class without labels has
    the weight 0.
    """
    counts = torch.bincount(labels, minlength=classes)
    present = int((counts > 0).sum())
    return torch.where(counts > 0, len(labels) / (present * counts.clamp(min=1)), 0.0)


class BalancedClasses:
    """Batches whose graphs have balanced weights of their classes.

    The labels of all graphs are counted together if the graphs share their classes: if targets are learned,
    or if each graph has one label. Otherwise each graph has its own classes, and is counted alone.
    """

    def __init__(self, batches: Episodes | WholeGraphs, model: Model) -> None:
        if model.config.regression:
            raise UsageError(
                "class weights are for classes, and these labels are numbers: omit class_weights"
            )
        self._batches = batches
        self._targets = model.config.targets
        self._made: dict[int, tuple[GraphTensors, GraphTensors]] = {}
        self._weights: Tensor | None = None  # of all graphs together
        self._together = self._targets is not None or model.config.level == GRAPH

    def draw(self, count: int, random: np.random.Generator) -> list[Batch]:
        """The batches of one epoch, as the batches without weights draw them."""
        drawn = self._batches.draw(count, random)
        if not self._together:
            return [self._alone(batch) for batch in drawn]
        if self._weights is None:
            counted = self._batches.all if isinstance(self._batches, WholeGraphs) else drawn
            labels = torch.cat([_labels(batch) for batch in counted])
            self._weights = balanced_weights(labels, max(self._classes(graph) for graph, _ in counted))
        return [(self._weighted(graph), chosen) for graph, chosen in drawn]

    def _weighted(self, graph: GraphTensors) -> GraphTensors:
        """The graph with the shared weights; made once, because models keep what they derive from a graph."""
        if id(graph) not in self._made:
            self._made[id(graph)] = graph, replace(graph, class_weights=self._weights)
        return self._made[id(graph)][1]

    def _alone(self, batch: Batch) -> Batch:
        graph, chosen = batch
        weights = balanced_weights(_labels(batch), self._classes(graph))
        return replace(graph, class_weights=weights), chosen

    def _classes(self, graph: GraphTensors) -> int:
        if self._targets is not None:
            return self._targets
        assert graph.target_features is not None
        return len(graph.target_features)


def weighted_batches(
    batches: Episodes | WholeGraphs, config: TrainConfig, model: Model
) -> Episodes | WholeGraphs | BalancedClasses:
    """The batches with the weights of classes that the settings ask for."""
    return BalancedClasses(batches, model) if config.class_weights == BALANCED else batches


def _labels(batch: Batch) -> Tensor:
    graph, chosen = batch
    return graph.labels_of(chosen)
