"""Convert a graph's labels to the class numbers of a model.

A graph file numbers its classes on its own. If both the graph and the model name their classes, the names say
which number of the graph is which number of the model. The labels of tables are always names: a table with
the labels 1 and 3 numbers them 0 and 1.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from adar_runtime.errors import LabelsError, short, warn
from adar_runtime.graph import NODE, FeatureEncoding, Graph

MAX_LISTED = 5  # names in a message
BOOLEANS = ("true", "false")  # JSON and Parquet have values for these, text tables have words in any case


class Model(Protocol):
    """What a model predicts. A manifest has these fields."""

    @property
    def level(self) -> str: ...
    @property
    def regression(self) -> bool: ...
    @property
    def targets(self) -> int | None: ...  # None if the graph describes the classes
    @property
    def class_names(self) -> Sequence[str] | None: ...
    @property
    def feature_encoding(self) -> FeatureEncoding | None: ...  # of a model that was trained on tables


def align_labels(model: Model, graph: Graph) -> Graph:
    """Return the graph with the class numbers of the model, so that its scores can be compared to labels.

    Args:
        model: What the model predicts.
        graph: A graph, with or without labels.

    Returns:
        The graph. Its labels change only if both name their classes, or both are of tables, and the names
        differ. A warning says if only the graph names its classes.

    Raises:
        LabelsError: The model does not predict these labels.
    """
    if graph.labels is None:
        return graph
    if (graph.level, graph.regression) != (model.level, model.regression):
        kind = "numbers" if model.regression else "classes"
        raise LabelsError(f"the labels do not fit the model, which predicts {kind} of each {model.level}")
    if model.targets is None:
        return graph  # the graph describes and numbers the classes
    if graph.regression:
        if graph.targets != model.targets:
            raise LabelsError(
                f"each label has {graph.targets} numbers, but the model predicts {model.targets}"
            )
        return graph
    names, highest = _model_names(model, graph, model.targets), int(graph.labels.max())
    own = _graph_names(model, graph)
    if names is not None and own not in (None, names):
        return _renumber(graph, names)
    if highest >= model.targets:
        raise LabelsError(
            f"the graph has labels up to {highest}, but the model has {model.targets} classes "
            f"(0 to {model.targets - 1}): set the labels of unknown classes to -1"
        )
    if names is None and own:
        order = [f"{number} is {name}" for number, name in enumerate(fill_names(own, model.targets))]
        warn(
            "the graph names its classes, and the model does not: they are compared by their order "
            f"({listed(order)}); add class_names to the training graph, or number the labels as it does"
        )
    return graph


def split_trained_on(training: Mapping[str, object], graph: Graph) -> int:
    """The split that a model was trained on, if the graph has this split; otherwise 0.

    `training` is the metrics of the training run, or the same in a bundle's manifest.
    """
    split, mask = training.get("split"), graph.test_mask
    if not isinstance(split, int) or mask is None:
        return 0
    return split if 0 <= split < len(mask) else 0


def fill_names(names: Sequence[str] | None, count: int) -> list[str]:
    """`count` class names; a class without a name gets its number as the name."""
    given = list(names or [])[:count]
    return given + [str(number) for number in range(len(given), count)]


def listed(names: Sequence[str], most: int = MAX_LISTED) -> str:
    """The first names, and how many more there are, for a message of one line."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(short(name, 30) for name in names[:most]) + rest


def positions_by_name(names: Sequence[str]) -> dict[str, int]:
    """The position of each name. The spellings of true and false in other table formats count as the same."""
    found = {name: position for position, name in enumerate(names)}
    for name, position in list(found.items()):
        if name.lower() in BOOLEANS:
            for spelling in (name.lower(), name.title(), name.upper()):
                found.setdefault(spelling, position)
    return found


def _model_names(model: Model, graph: Graph, count: int) -> tuple[str, ...] | None:
    """The model's class names. Its class numbers serve as names if the graph uses only these as names."""
    if model.class_names is not None:
        return tuple(model.class_names[:count])
    numbers = tuple(fill_names(None, count))
    is_numbered = graph.class_names and set(graph.class_names) <= set(numbers)
    return numbers if is_numbered or _of_tables(model, graph) else None


def _graph_names(model: Model, graph: Graph) -> tuple[str, ...] | None:
    """The graph's class names. The labels of a table that are numbered from 0 have their numbers as names."""
    if graph.class_names is None and _of_tables(model, graph):
        return tuple(fill_names(None, graph.targets))
    return graph.class_names


def _of_tables(model: Model, graph: Graph) -> bool:
    """Whether the labels of both are from tables. Tables have labels of nodes only."""
    return graph.level == NODE and None not in (model.feature_encoding, graph.feature_encoding)


def _renumber(graph: Graph, names: tuple[str, ...]) -> Graph:
    """Number the labels by the positions of their class names in `names`."""
    assert graph.labels is not None
    own = fill_names(graph.class_names, graph.targets)
    used = np.unique(graph.labels[graph.labels >= 0]).tolist()
    number = positions_by_name(names)
    unknown = [own[label] for label in used if own[label] not in number]
    if unknown:
        raise LabelsError(
            f"the graph has labels {listed(unknown)}, but the model's classes are {listed(names)}: "
            "set the labels of unknown classes to -1 (in a table: leave them empty)"
        )
    times = Counter(names)
    ambiguous = [own[label] for label in used if times[names[number[own[label]]]] > 1]
    if ambiguous:
        raise LabelsError(
            f"several classes of the model have the name {listed(ambiguous)}: labels are ambiguous"
        )
    table = np.full(graph.targets + 1, -1, np.int64)  # the last entry is for the label -1
    table[used] = [number[own[label]] for label in used]
    # target_x describes the classes by the graph's own numbers, which are no longer in use.
    return replace(graph, labels=table[graph.labels], class_names=names, target_features=None)
