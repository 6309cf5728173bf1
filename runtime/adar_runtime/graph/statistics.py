"""Statistics of a graph: degrees, components, classes, homophily and splits."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from adar_runtime.graph import ALL, MASKS, PARTS, Graph, Integers, SparseRows


@dataclass(frozen=True)
class Degrees:
    """In-degrees: the number of distinct incoming edges of a node."""

    least: int
    median: float
    mean: float
    most: int


@dataclass(frozen=True)
class Statistics:
    """Statistics of a graph; None where a statistic does not apply."""

    nodes: int
    edges: int
    features: int
    sparse: bool
    level: str
    outputs: int
    repeated: int  # edges that are given more than once
    loops: int  # edges from a node to itself
    one_way: int  # distinct edges without the reverse edge
    isolated: int  # nodes without incoming edges
    components: int  # weakly connected
    largest_component: int
    degrees: Degrees
    classes: int
    regression: bool  # whether labels are regression targets; `classes` is then their number
    labelled: int  # outputs with a known label
    class_sizes: list[int] | None
    class_names: list[str] | None
    described: bool  # whether target_x describes the classes
    homophily: float | None  # share of edges with two known labels whose labels are equal
    chance: float | None  # expected homophily if edges were independent of labels
    splits: int
    parts: dict[str, int]  # known labels of each part of the split
    edge_weight: dict[str, float] | None  # least, median and most; None without weights

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def statistics(graph: Graph, split: int = 0) -> Statistics:
    """Compute the statistics of a graph and one of its splits."""
    edges = Edges.of(graph)
    in_degrees = np.bincount(edges.distinct[1], minlength=graph.nodes)
    sizes = np.unique(components(graph.edge_index, graph.nodes), return_counts=True)[1]
    homophily, chance = _homophily(graph, edges.distinct)
    known = graph.labelled(ALL)
    counts = class_sizes(graph)
    return Statistics(
        nodes=graph.nodes,
        edges=graph.edges,
        features=graph.width,
        sparse=isinstance(graph.features, SparseRows),
        level=graph.level,
        outputs=graph.outputs,
        repeated=edges.repeated,
        loops=edges.loops,
        one_way=edges.one_way,
        isolated=int((in_degrees == 0).sum()),
        components=len(sizes),
        largest_component=int(sizes.max()),
        degrees=Degrees(
            int(in_degrees.min()),
            float(np.median(in_degrees)),
            float(in_degrees.mean()),
            int(in_degrees.max()),
        ),
        classes=graph.targets,
        regression=graph.regression,
        labelled=0 if known is None else int(known.sum()),
        class_sizes=None if counts is None else counts.tolist(),
        class_names=None if graph.class_names is None else list(graph.class_names),
        described=graph.target_features is not None,
        homophily=homophily,
        chance=chance,
        splits=max((len(mask) for name in MASKS if (mask := getattr(graph, name)) is not None), default=0),
        parts={part: count_labels(graph, part, split) for part in PARTS},
        edge_weight=_weights(graph),
    )


def _weights(graph: Graph) -> dict[str, float] | None:
    weights = graph.edge_weight
    if weights is None or not len(weights):
        return None
    return {
        "least": float(weights.min()),
        "median": float(np.median(weights)),
        "most": float(weights.max()),
    }


@dataclass(frozen=True, eq=False)
class Edges:
    """The distinct edges, which a model uses, and counts of special edges."""

    distinct: Integers  # [2, distinct edges], loops included
    repeated: int
    loops: int
    one_way: int

    @classmethod
    def of(cls, graph: Graph) -> "Edges":
        source, target = graph.edge_index
        keys = np.unique(source * graph.nodes + target)
        source, target = np.divmod(keys, graph.nodes)
        has_reverse = np.isin(target * graph.nodes + source, keys, assume_unique=True)
        loops = int((source == target).sum())
        return cls(np.stack([source, target]), graph.edges - len(keys), loops, int((~has_reverse).sum()))


def components(edge_index: Integers, nodes: int) -> Integers:
    """For every node, the smallest node of its weakly connected component, [n]."""
    smallest = np.arange(nodes)
    while True:
        ends = smallest[edge_index]
        low = ends.min(axis=0) if ends.size else ends[0]
        found = smallest.copy()
        for end in ends:
            np.minimum.at(found, end, low)
        while not np.array_equal(found, found[found]):
            found = found[found]
        if np.array_equal(found, smallest):
            return found
        smallest = found


def _homophily(graph: Graph, edges: Integers) -> tuple[float | None, float | None]:
    """Homophily, and its value by chance, over edges between different nodes with known classes."""
    if (
        graph.labels is None
        or graph.regression
        or graph.pairs is not None
        or len(graph.labels) != graph.nodes
    ):
        return None, None
    source, target = graph.labels[edges[:, edges[0] != edges[1]]]
    known = (source >= 0) & (target >= 0)
    if not known.any():
        return None, None
    source, target = source[known].astype(np.int64), target[known].astype(np.int64)
    shares = np.bincount(np.concatenate([source, target])) / (2 * len(source))
    return float((source == target).mean()), float((shares**2).sum())


def class_sizes(graph: Graph) -> Integers | None:
    """Number of labels of each class; None without labels, and for regression."""
    if graph.labels is None or graph.regression:
        return None
    labels = graph.labels.astype(np.int64)
    return np.bincount(labels[labels >= 0], minlength=graph.targets)


def count_labels(graph: Graph, part: str, split: int) -> int:
    """Number of known labels of a part."""
    mask = graph.labelled(part, split)
    return 0 if mask is None else int(mask.sum())
