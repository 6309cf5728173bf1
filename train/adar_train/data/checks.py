"""Checks before training: do the graphs fit together, and is there something to learn?"""

from collections.abc import Sequence

import numpy as np

from adar_runtime.errors import GraphError, warn
from adar_runtime.evaluation.metrics import check_same_classes, pooled_metrics
from adar_runtime.graph import GRAPH, Graph

NO_LABELS = "the graph has no labels: training needs y; for a table, name the column with --label"


def check_trainable(graphs: Sequence[Graph], split: int) -> None:
    """Refuse graphs without labels to learn from or without labels to select a model by.

    Several graphs may be divided among the parts: it is enough if one of them has labels in a part.
    """
    for number, graph in enumerate(graphs, start=1):
        if graph.labels is None:
            raise GraphError(
                NO_LABELS if len(graphs) == 1 else f"graph {number} of {len(graphs)}: {NO_LABELS}"
            )
    for name in ("train", "val"):
        if all(getattr(graph, f"{name}_mask") is None for graph in graphs):
            raise GraphError(
                f"the graph has no {name}_mask: training needs train_mask and val_mask, or enough labels "
                "to draw both"
            )
        if all(graph.labelled(name, split) is None for graph in graphs):
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
        if (first.feature_encoding and graph.feature_encoding) and (
            first.feature_encoding.columns != graph.feature_encoding.columns
        ):
            raise GraphError(
                f"the tables of {name} and {names[0]} became different features: convert them with the same "
                "columns and categories"
            )
        if first.target_features is None:
            _check_same_targets((names[0], first), (name, graph))
    if first.level == GRAPH:
        check_same_classes(graphs)


def warn_first_class(graphs: Sequence[Graph]) -> None:
    """Warn if the labels begin after 0: the model would have classes that no label belongs to."""
    described = any(graph.class_names or graph.target_features is not None for graph in graphs)
    labels = [graph.labels[graph.labels >= 0] for graph in graphs if graph.labels is not None]
    if described or graphs[0].regression or not any(map(len, labels)):
        return
    lowest = min(int(each.min()) for each in labels if len(each))
    if lowest:
        warn(
            f"the labels begin at {lowest}, so no label belongs to class 0: subtract {lowest} from y (keep "
            "-1 for unknown), or name all classes in class_names"
        )


def _check_same_targets(first: tuple[str, Graph], second: tuple[str, Graph]) -> None:
    """Refuse graphs that cannot share their learned targets."""
    (one, graph), (other, candidate) = first, second
    if graph.regression and graph.targets != candidate.targets:
        raise GraphError(
            f"{other} has {candidate.targets} regression targets and {one} has {graph.targets}: "
            "graphs that train together need the same targets"
        )
    if graph.regression and graph.class_names != candidate.class_names:
        raise GraphError(
            f"{other} and {one} have different class_names: "
            "for regression, give both the same names in the same order"
        )
    if (graph.class_names is None) != (candidate.class_names is None):
        raise GraphError(
            f"only one of {other} and {one} names its classes: give both or neither class_names, "
            "so that the same class is found in both"
        )


def _shares_targets(graphs: Sequence[Graph]) -> bool:
    """Whether all graphs have the same classes. Graphs with target_x have classes of their own."""
    return graphs[0].level == GRAPH or graphs[0].target_features is None


def _fewest_classes(graphs: Sequence[Graph], split: int) -> int:
    """The number of classes among the training labels: of all graphs or, with target_x, the smallest."""
    seen = [
        set(graph.labels[mask].tolist())
        for graph in graphs
        if (mask := graph.labelled("train", split)) is not None and graph.labels is not None
    ]
    return len(set().union(*seen)) if _shares_targets(graphs) else min(len(classes) for classes in seen)


def _check_measurable(graphs: Sequence[Graph], split: int) -> None:
    """Two classes are scored by ROC-AUC, which needs both classes among the validation labels of a graph.

    R² needs different labels there.
    """
    validated = [graph for graph in graphs if graph.labelled("val", split) is not None]
    groups = [validated] if graphs[0].level == GRAPH else [[graph] for graph in validated]
    targets = max(graph.targets for graph in graphs) if _shares_targets(graphs) else 0
    measured = []
    for group in groups:
        zeros = [np.zeros((graph.outputs, targets or graph.targets), np.float32) for graph in group]
        measured.append("val" in pooled_metrics(group, zeros, split))
    # A graph without both classes is left out of the mean over graphs that share their targets.
    if not (any(measured) if _shares_targets(graphs) else all(measured)):
        if graphs[0].regression:
            raise GraphError("all labels in val_mask are equal: model selection needs different ones there")
        raise GraphError("all labels in val_mask are of one class: model selection needs both classes there")
