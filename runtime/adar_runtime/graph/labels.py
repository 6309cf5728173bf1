"""A graph's labels as a model numbers its classes: a file has numbers of its own, and names to tell by."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from adar_runtime.errors import LabelsError, short
from adar_runtime.graph import Graph

NAMED = 5  # classes, before a message says how many more


class Model(Protocol):
    """What a model predicts, as a manifest says it."""

    @property
    def level(self) -> str: ...
    @property
    def regression(self) -> bool: ...
    @property
    def targets(self) -> int | None: ...  # None where the graph describes them
    @property
    def class_names(self) -> Sequence[str] | None: ...


def numbered_as(model: Model, graph: Graph) -> Graph:
    """The graph with labels that the model's scores can be held against; a LabelsError where none can be.

    Where both have names of their classes, these decide. Where one has none, the numbers do, as they are.
    """
    if graph.labels is None:
        return graph
    if (graph.level, graph.regression) != (model.level, model.regression):
        kind = "numbers" if model.regression else "classes"
        raise LabelsError(f"its labels are not what the model predicts, {kind} of each {model.level}")
    if model.targets is None:
        return graph  # which describes the classes, and numbers them
    if graph.regression:
        if graph.targets != model.targets:
            raise LabelsError(
                f"it has {graph.targets} numbers a label, and the model predicts {model.targets}"
            )
        return graph
    names, highest = _names(model, graph, model.targets), int(graph.labels.max())
    if names is not None and graph.class_names not in (None, names):
        return _renumbered(graph, names)
    if highest >= model.targets:
        raise LabelsError(
            f"it has labels up to {highest}, and the model has {model.targets} classes "
            f"(0 to {model.targets - 1}): take out what it was not trained on (-1 is unknown)"
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


def named(names: Sequence[str] | None, count: int) -> list[str]:
    """A name for each of so many classes: its number, where it has no other."""
    given = list(names or [])[:count]
    return given + [str(number) for number in range(len(given), count)]


def listed(names: Sequence[str], most: int = NAMED) -> str:
    """A few of them, for a message of one line."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(short(name, 30) for name in names[:most]) + rest


def _names(model: Model, graph: Graph, count: int) -> tuple[str, ...] | None:
    """The model's. Numbers are names too, where the graph calls its classes by some of the model's."""
    if model.class_names is not None:
        return tuple(model.class_names[:count])
    numbers = tuple(named(None, count))
    return numbers if graph.class_names and set(graph.class_names) <= set(numbers) else None


def _renumbered(graph: Graph, names: tuple[str, ...]) -> Graph:
    """Labels by the places of their names in these."""
    assert graph.labels is not None
    own = named(graph.class_names, graph.targets)
    used = np.unique(graph.labels[graph.labels >= 0]).tolist()
    place = {name: number for number, name in enumerate(names)}
    unknown = [own[label] for label in used if own[label] not in place]
    if unknown:
        raise LabelsError(
            f"it has labels of {listed(unknown)}, and the model's classes are {listed(names)}: "
            "take out what it was not trained on (-1 is unknown)"
        )
    times = Counter(names)
    twice = [own[label] for label in used if times[own[label]] > 1]
    if twice:
        raise LabelsError(
            f"the model calls more than one class {listed(twice)}: which is meant, nobody knows"
        )
    table = np.full(graph.targets + 1, -1, np.int64)  # the last entry is that of the label -1
    table[used] = [place[own[label]] for label in used]
    # A description (target_x) is of a class of the graph's own number, hence of no label any more.
    return replace(graph, labels=table[graph.labels], class_names=names, target_features=None)
