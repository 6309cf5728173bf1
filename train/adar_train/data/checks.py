"""Checks before training: do the graphs fit together, and is there something to learn?"""

from collections.abc import Sequence

import numpy as np

from adar_runtime.errors import GraphError, UsageError
from adar_runtime.evaluation.metrics import pooled_metrics
from adar_runtime.graph import GRAPH, Graph


def check_trainable(graphs: Sequence[Graph], split: int) -> None:
    """Refuse graphs without labels to learn from or without labels to select a model by."""
    if any(graph.labels is None for graph in graphs):
        raise GraphError("the graph has no labels: training needs y")
    for name in ("train", "val"):
        if all(getattr(graph, f"{name}_mask") is None for graph in graphs):
            raise GraphError(f"the graph has no {name}_mask: training needs train_mask and val_mask")
        known = [graph.labelled(name, split) is not None for graph in graphs]
        # Graphs with one label each are divided among the parts; other graphs have outputs in every part.
        if not (any(known) if graphs[0].level == GRAPH else all(known)):
            raise GraphError(
                f"nothing in {name}_mask has a label: training needs labels in train_mask and val_mask"
            )
    _check_measurable(graphs, split)
    if not graphs[0].regression and _fewest_classes(graphs, split) < 2:
        raise GraphError("all training labels are of one class: training needs at least two classes")


def check_together(names: Sequence[str], graphs: Sequence[Graph]) -> None:
    """Refuse graphs that one model cannot be trained on together."""
    first = graphs[0]
    for name, graph in zip(names, graphs, strict=True):
        if graph.width != first.width:
            raise GraphError(
                f"{name} has {graph.width} features and {names[0]} has {first.width}: "
                "graphs that train together need the same features"
            )
        if (graph.level, graph.regression) != (first.level, first.regression):
            raise GraphError(f"{name} and {names[0]} have different tasks: train them separately")
        if (graph.target_features is None) != (first.target_features is None):
            raise GraphError(
                f"only one of {name} and {names[0]} describes its classes: give both or neither a target_x"
            )
        named = {graph.class_names, first.class_names} - {None}
        if first.target_features is None and len(named) > 1:
            raise GraphError(
                f"{name} and {names[0]} have different class_names: "
                "give both the same names in the same order"
            )
    if len(graphs) > 1 and first.target_features is None and first.level != GRAPH:
        raise UsageError("several graphs train together only if they describe their classes (target_x)")


def _fewest_classes(graphs: Sequence[Graph], split: int) -> int:
    """The number of classes among the training labels of the graph with the fewest."""
    seen = [
        set(graph.labels[mask].tolist())
        for graph in graphs
        if (mask := graph.labelled("train", split)) is not None and graph.labels is not None
    ]
    return len(set().union(*seen)) if graphs[0].level == GRAPH else min(len(classes) for classes in seen)


def _check_measurable(graphs: Sequence[Graph], split: int) -> None:
    """Two classes are scored by ROC-AUC, which needs both classes among the validation labels."""
    groups = [graphs] if graphs[0].level == GRAPH else [[graph] for graph in graphs]
    for group in groups:
        targets = max(graph.targets for graph in group)
        zeros = [np.zeros((graph.outputs, targets), np.float32) for graph in group]
        if "val" not in pooled_metrics(group, zeros, split):
            raise GraphError(
                "all labels in val_mask are of one class: model selection needs both classes there"
            )
