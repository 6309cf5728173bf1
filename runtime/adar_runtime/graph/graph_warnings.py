"""What about a graph would hurt a model that is trained, scored or run on it."""

from typing import Any

import numpy as np

from adar_runtime.errors import short
from adar_runtime.graph import ALL, EDGE, PARTS, Floats, Graph, Integers, SparseRows
from adar_runtime.graph.labels import listed, named
from adar_runtime.graph.statistics import Edges, class_sizes, count_of

FEW = 10  # labels of a class to learn from
MOST = 0.9  # share of one class above which saying it always is hard to beat
MANY = 0.05  # share of nodes or edges that is worth a word
NAME = 20  # characters of a class's
LARGE = 100.0  # a feature that a first layer has not been scaled for


def warnings(graph: Graph, split: int = 0) -> list[str]:
    """A sentence for each thing that a user would want to know before wondering about a score."""
    edges = Edges.of(graph)
    return [
        *_about_edges(graph, edges, np.bincount(edges.distinct[1], minlength=graph.nodes)),
        *_about_features(graph),
        *_about_labels(graph, class_sizes(graph), split),
        *_about_splits(graph, split),
    ]


def _about_edges(graph: Graph, edges: Edges, heard: Integers) -> list[str]:
    found, distinct = [], edges.distinct.shape[1]
    if not graph.edges:
        return ["there is no edge: a model of the features alone would do as well"]
    if edges.one_way > MANY * distinct:
        found.append(
            f"{_share(edges.one_way, distinct)} of the edges lead one way only, and a node hears only those "
            "that end there: data convert --both-ways adds the way back"
        )
    isolated = int((heard == 0).sum())
    if isolated > MANY * graph.nodes:
        found.append(
            f"{_share(isolated, graph.nodes)} of the nodes hear no neighbour and have their features alone"
        )
    if edges.loops > MANY * graph.nodes:
        found.append(f"{edges.loops:,} edges lead back to their own node, which hears itself in any case")
    if edges.repeated:
        found.append(
            f"{edges.repeated:,} edges are there more than once; an edge counts once, whatever its weight"
        )
    return found


def _about_features(graph: Graph) -> list[str]:
    if isinstance(graph.features, SparseRows):
        return _about_scale(graph.features.values)
    found = _about_scale(graph.features)
    if graph.nodes > 1 and (graph.features == graph.features[:1]).all():
        found.append("features are the same for every node: only who is linked to whom can tell them apart")
    return found


def _about_scale(values: Floats) -> list[str]:
    most = float(np.abs(values).max(initial=0))
    if most <= LARGE:
        return []
    return [f"features go up to {most:,.4g}: bring columns to a mean of 0 and a deviation of 1 first"]


def _about_labels(graph: Graph, counts: Integers | None, split: int) -> list[str]:
    if graph.labels is None:
        return ["there are no labels: it can be run on, not trained or scored on"]
    if graph.labelled(ALL) is None:
        return [f"all labels are unknown ({'NaN' if graph.regression else '-1'})"]
    if counts is None:
        return []
    found, names = [], [short(name, NAME) for name in named(graph.class_names, len(counts))]
    if counts.max() > MOST * counts.sum():
        most = int(counts.argmax())
        share = _share(int(counts.max()), int(counts.sum()))
        found.append(
            f"{share} of the labels are class {names[most]}: accuracy says little, look at the others"
        )
    mask = graph.labelled("train", split)
    if mask is not None and not graph.regression:
        learned = np.bincount(graph.labels[mask].astype(np.int64), minlength=graph.targets)
        few = np.flatnonzero((learned < FEW) & (counts > 0))
        if len(few):
            scarce = listed([f"{names[label]} ({learned[label]})" for label in few])
            found.append(f"classes with fewer than {FEW} labels to learn from: {scarce}")
    return found


def _about_splits(graph: Graph, split: int) -> list[str]:
    masks = {part: mask[split] for part in PARTS if (mask := getattr(graph, f"{part}_mask")) is not None}
    if graph.labels is None:
        return []
    if not masks:
        return ["there is no split: training draws a random one of 60/20/20"]
    found = [f"there is no {part} part" for part in PARTS if not count_of(graph, part, split)]
    for index, part in enumerate(PARTS):
        for other in PARTS[index + 1 :]:
            both = int((masks[part] & masks[other]).sum()) if part in masks and other in masks else 0
            if both:
                found.append(f"{both:,} labels are in the {part} and the {other} part: scores will flatter")
    if graph.level == EDGE:
        found += _about_pairs(graph, masks)
    return found


def _about_pairs(graph: Graph, masks: dict[str, Any]) -> list[str]:
    """Links to be judged that can be read off the graph."""
    assert graph.pairs is not None
    assert graph.labels is not None
    held = np.zeros(graph.outputs, np.bool_)
    for part in ("val", "test"):
        held |= masks.get(part, False)
    low, high = np.sort(graph.pairs[:, held & (graph.labels.reshape(graph.outputs, -1)[:, 0] == 1)], axis=0)
    known = np.sort(graph.edge_index, axis=0)
    leaked = int(np.isin(low * graph.nodes + high, known[0] * graph.nodes + known[1]).sum())
    return (
        [f"{leaked:,} links of validation and test are edges of the graph: scores will flatter"]
        if leaked
        else []
    )


def _share(count: int, of: int) -> str:
    return f"{100 * count / max(1, of):.0f} %"
