"""What there is to know about a graph before a model is trained or run on it."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from adar_runtime.graph import ALL, MASKS, PARTS, Graph, Integers, SparseRows


@dataclass(frozen=True)
class Degrees:
    """Of the neighbours that nodes hear: distinct edges that end there."""

    least: int
    median: float
    mean: float
    most: int


@dataclass(frozen=True)
class Statistics:
    """Counts and shares; what does not apply is None."""

    nodes: int
    edges: int
    features: int
    sparse: bool
    level: str
    outputs: int
    repeated: int  # edges that are there already
    loops: int
    one_way: int  # distinct edges without the one back
    isolated: int  # nodes that hear nobody
    components: int
    largest_component: int
    degrees: Degrees
    classes: int
    regression: bool  # whether labels are numbers, so many as there are classes
    labelled: int
    class_sizes: list[int] | None
    class_names: list[str] | None
    described: bool  # whether target_x is there
    homophily: float | None  # share of edges between known labels that join equal ones
    chance: float | None  # the same if edges were drawn regardless of labels
    splits: int
    parts: dict[str, int]  # labels of each part of the first split

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def statistics(graph: Graph, split: int = 0) -> Statistics:
    """Look at all of a graph."""
    edges = Edges.of(graph)
    heard = np.bincount(edges.distinct[1], minlength=graph.nodes)
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
        isolated=int((heard == 0).sum()),
        components=len(sizes),
        largest_component=int(sizes.max()),
        degrees=Degrees(int(heard.min()), float(np.median(heard)), float(heard.mean()), int(heard.max())),
        classes=graph.targets,
        regression=graph.regression,
        labelled=0 if known is None else int(known.sum()),
        class_sizes=None if counts is None else counts.tolist(),
        class_names=None if graph.class_names is None else list(graph.class_names),
        described=graph.target_features is not None,
        homophily=homophily,
        chance=chance,
        splits=max((len(mask) for name in MASKS if (mask := getattr(graph, name)) is not None), default=0),
        parts={part: count_of(graph, part, split) for part in PARTS},
    )


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges as a model takes them, and what was left out."""

    distinct: Integers  # [2, m'], loops included
    repeated: int
    loops: int
    one_way: int

    @classmethod
    def of(cls, graph: Graph) -> "Edges":
        source, target = graph.edge_index
        keys = np.unique(source * graph.nodes + target)
        source, target = np.divmod(keys, graph.nodes)
        back = np.isin(target * graph.nodes + source, keys, assume_unique=True)
        loops = int((source == target).sum())
        return cls(np.stack([source, target]), graph.edges - len(keys), loops, int((~back).sum()))


def components(edge_index: Integers, nodes: int) -> Integers:
    """For every node, the smallest node that it is linked to in any number of steps, either way."""
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
    """Of edges between different nodes with known classes."""
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
    """Labels of each class; None where there are none, or they are numbers."""
    if graph.labels is None or graph.regression:
        return None
    labels = graph.labels.astype(np.int64)
    return np.bincount(labels[labels >= 0], minlength=graph.targets)


def count_of(graph: Graph, part: str, split: int) -> int:
    """How many labels a part has."""
    mask = graph.labelled(part, split)
    return 0 if mask is None else int(mask.sum())
