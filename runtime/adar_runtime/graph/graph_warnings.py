"""Warnings about graph properties that reduce accuracy, or make a score misleading."""

from typing import Any

import numpy as np

from adar_runtime.errors import short
from adar_runtime.graph import ALL, EDGE, PARTS, Floats, Graph, Integers, SparseRows
from adar_runtime.graph.labels import fill_names, listed
from adar_runtime.graph.statistics import Edges, class_sizes, count_labels

FEW_LABELS = 10  # training labels of a class
MAJORITY = 0.9  # share of one class above which a constant prediction is hard to beat
MANY = 0.05  # share of nodes or edges that gets a warning
NAME_LENGTH = 20  # characters of a class name in a warning
LARGE_WEIGHT = 100.0  # median of the edge weights, or one over it
LARGE_FEATURE = 100.0  # the first layer expects smaller features


def warnings(graph: Graph, split: int = 0) -> list[str]:
    """One sentence for each problem of a graph. They are printed by `adar-deploy data show`."""
    edges = Edges.of(graph)
    return [
        *_edge_warnings(graph, edges, np.bincount(edges.distinct[1], minlength=graph.nodes)),
        *_feature_warnings(graph),
        *_label_warnings(graph, class_sizes(graph), split),
        *_split_warnings(graph, split),
    ]


def _edge_warnings(graph: Graph, edges: Edges, in_degrees: Integers) -> list[str]:
    found, distinct = [], edges.distinct.shape[1]
    if not graph.edges:
        return ["the graph has no edges: a model without message passing would do as well"]
    if edges.one_way > MANY * distinct:
        found.append(
            f"{_share(edges.one_way, distinct)} of the edges have no reverse edge, and nodes receive "
            "messages along incoming edges only: data convert --both-ways adds the reverse edges"
        )
    isolated = int((in_degrees == 0).sum())
    if isolated > MANY * graph.nodes:
        found.append(
            f"{_share(isolated, graph.nodes)} of the nodes have no incoming edges: their own features are "
            "their only local information"
        )
    if edges.loops > MANY * graph.nodes:
        found.append(
            f"{edges.loops:,} edges are self-loops, which are not needed: a node always uses its own state"
        )
    if edges.repeated:
        counts = "an edge counts once; give edge_weight to count it more often"
        counts = counts if graph.edge_weight is None else "their weights add up"
        found.append(f"{edges.repeated:,} edges are repeated: {counts}")
    return found + _weight_warnings(graph)


def _weight_warnings(graph: Graph) -> list[str]:
    """A warning if most weights are so large or small that a node's own message, or the others, vanish."""
    if graph.edge_weight is None or not graph.edges:
        return []
    middle = float(np.median(graph.edge_weight))
    if 1 / LARGE_WEIGHT <= middle <= LARGE_WEIGHT:
        return []
    return [
        f"the median edge weight is {middle:,.4g}, and a node's own message has the weight 1: divide by it"
    ]


def _feature_warnings(graph: Graph) -> list[str]:
    if isinstance(graph.features, SparseRows):
        return _scale_warnings(graph.features.values)
    found = _scale_warnings(graph.features)
    if graph.nodes > 1 and (graph.features == graph.features[:1]).all():
        found.append("all nodes have the same features: only the edges distinguish them")
    return found


def _scale_warnings(values: Floats) -> list[str]:
    most = float(np.abs(values).max(initial=0))
    if most <= LARGE_FEATURE:
        return []
    return [f"features go up to {most:,.4g}: scale each column to mean 0 and standard deviation 1"]


def _label_warnings(graph: Graph, counts: Integers | None, split: int) -> list[str]:
    if graph.labels is None:
        return ["the graph has no labels: it works for inference, not for training or scoring"]
    if graph.labelled(ALL) is None:
        return [f"all labels are unknown ({'NaN' if graph.regression else '-1'})"]
    if counts is None:
        return []
    found, names = [], [short(name, NAME_LENGTH) for name in fill_names(graph.class_names, len(counts))]
    if counts.max() > MAJORITY * counts.sum():
        most = int(counts.argmax())
        share = _share(int(counts.max()), int(counts.sum()))
        found.append(
            f"{share} of the labels are class {names[most]}: accuracy is misleading, look at other metrics"
        )
    missing = np.flatnonzero(counts == 0)
    if len(missing) and graph.target_features is None:
        found.append(
            f"classes without labels: {listed([names[label] for label in missing])}; "
            "labels are numbered from 0 without gaps"
        )
    mask = graph.labelled("train", split)
    if mask is not None and not graph.regression:
        learned = np.bincount(graph.labels[mask].astype(np.int64), minlength=graph.targets)
        few = np.flatnonzero((learned < FEW_LABELS) & (counts > 0))
        if len(few):
            scarce = listed([f"{names[label]} ({learned[label]})" for label in few])
            found.append(f"classes with fewer than {FEW_LABELS} training labels: {scarce}")
    return found


def _split_warnings(graph: Graph, split: int) -> list[str]:
    masks = {part: mask[split] for part in PARTS if (mask := getattr(graph, f"{part}_mask")) is not None}
    if graph.labels is None:
        return []
    if not masks:
        return ["the graph has no split: training draws a random one of 60/20/20"]
    found = [
        f"the split has no labels in its {part} part"
        for part in PARTS
        if not count_labels(graph, part, split)
    ]
    for index, part in enumerate(PARTS):
        for other in PARTS[index + 1 :]:
            both = int((masks[part] & masks[other]).sum()) if part in masks and other in masks else 0
            if both:
                found.append(
                    f"{both:,} labels are in both the {part} and the {other} part: scores will be too high"
                )
    if graph.level == EDGE:
        found += _leak_warnings(graph, masks)
    return found


def _leak_warnings(graph: Graph, masks: dict[str, Any]) -> list[str]:
    """Links of the validation and test parts that are also edges of the graph."""
    assert graph.pairs is not None
    assert graph.labels is not None
    evaluated = np.zeros(graph.outputs, np.bool_)
    for part in ("val", "test"):
        evaluated |= masks.get(part, False)
    low, high = np.sort(
        graph.pairs[:, evaluated & (graph.labels.reshape(graph.outputs, -1)[:, 0] == 1)], axis=0
    )
    known = np.sort(graph.edge_index, axis=0)
    leaked = int(np.isin(low * graph.nodes + high, known[0] * graph.nodes + known[1]).sum())
    return (
        [f"{leaked:,} links of the val and test parts are edges of the graph: scores will be too high"]
        if leaked
        else []
    )


def _share(count: int, total: int) -> str:
    return f"{100 * count / max(1, total):.0f} %"
