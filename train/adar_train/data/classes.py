"""Match the classes of several graphs that train one model with learned targets."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from adar_runtime.errors import GraphError
from adar_runtime.graph import Graph
from adar_runtime.graph.labels import fill_names, listed


def match_classes(names: Sequence[str], graphs: Sequence[Graph]) -> list[Graph]:
    """Number the classes of all graphs alike, by their names. `names` are the names of the graphs.

    A class gets its number from the first graph that names it. Graphs without class_names, with descriptions
    (target_x) or with regression targets are returned unchanged: equal numbers are equal classes.
    """
    first = graphs[0]
    if first.target_features is not None or first.class_names is None or first.regression:
        return list(graphs)
    if all(graph.class_names == first.class_names for graph in graphs):
        return list(graphs)
    own = [_all_names(graph) for graph in graphs]
    for name, classes in zip(names, own, strict=True):
        twice = sorted({one for one in classes if classes.count(one) > 1})
        if twice:
            raise GraphError(
                f"{name} has several classes with the name {listed(twice)}: "
                "graphs that train together need a different name for each class"
            )
    common = tuple(dict.fromkeys(one for classes in own for one in classes))
    number = {one: index for index, one in enumerate(common)}
    return [
        _renumber(graph, [number[one] for one in classes], common)
        for graph, classes in zip(graphs, own, strict=True)
    ]


def _all_names(graph: Graph) -> list[str]:
    """The names of a graph's classes, also of those that no label has."""
    given = graph.class_names or ()
    return fill_names(given, max(len(given), graph.targets))


def _renumber(graph: Graph, numbers: Sequence[int], names: tuple[str, ...]) -> Graph:
    """The graph with other numbers for its classes; -1, an unknown label, stays."""
    if graph.labels is None:
        return replace(graph, class_names=names)
    table = np.array([*numbers, -1], np.int64)
    return replace(graph, labels=table[graph.labels], class_names=names)
