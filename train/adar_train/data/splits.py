"""Draw splits: which labels are for training, for validation and for the test.

All masks that the program draws are drawn here: of nodes, of graphs with one label each, of links, and of
data sets of PyTorch Geometric without masks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError
from adar_runtime.graph import ALL, GRAPH, MASKS, Graph, Integers, Mask
from adar_runtime.graph.directions import links_of
from adar_train.data.checks import NO_LABELS

SHARES = {"train_mask": 0.6, "val_mask": 0.2, "test_mask": 0.2}
RANDOM_SPLITS = 10  # of a data set without masks


def with_split(graph: Graph, seed: int = 0) -> Graph:
    """The graph with its own masks; masks that training needs and that are missing are drawn, 60/20/20."""
    known = graph.labelled(ALL)
    if known is None or graph.level == GRAPH:
        return graph
    given = {name: mask for name in MASKS if (mask := getattr(graph, name)) is not None}
    return replace(graph, **_completed(given, known, seed))


def split_graphs(graphs: list[Graph], seed: int = 0) -> list[Graph]:
    """Graphs with one label each, divided like the nodes of one graph by `with_split`."""
    masks = {name: [getattr(graph, name) for graph in graphs] for name in MASKS}
    given = {name: _as_columns(group) for name, group in masks.items() if any(m is not None for m in group)}
    known = np.array([graph.labelled(ALL) is not None for graph in graphs])
    completed = _completed(given, known, seed)
    bare = known & [all(mask is None for mask in of_one) for of_one in zip(*masks.values(), strict=True)]
    if given and (bare & ~np.any([mask.any(axis=0) for mask in completed.values()], axis=0)).any():
        raise GraphError(
            f"{bare.sum()} of {len(graphs)} graphs have no masks, but others have: give masks to all or none"
        )
    return [
        replace(graph, **{name: mask[:, i : i + 1] for name, mask in completed.items()})
        for i, graph in enumerate(graphs)
    ]


def node_splits(graphs: Sequence[Graph], seed: int = 0) -> list[Graph]:
    """Graphs with their own masks; what training needs is drawn by `with_split`.

    A graph with train_mask and without val_mask stays as it is if another graph has validation labels.
    """
    validated = any(graph.val_mask is not None and graph.val_mask.any() for graph in graphs)
    return [
        graph if validated and graph.train_mask is not None else with_split(graph, seed) for graph in graphs
    ]


def leave_out(graphs: Sequence[Graph], count: int) -> list[Graph]:
    """Graphs of which the last `count` are for validation only, and the others for training and the test."""
    known = [graph.labelled(ALL) for graph in graphs]
    if any(labels is None for labels in known):
        raise GraphError(NO_LABELS)
    rows = max(_splits(graph) for graph in graphs[:-count]) or 1
    every = [np.tile(np.asarray(labels), (rows, 1)) for labels in known]
    train = [_train_only(graph, labels) for graph, labels in zip(graphs[:-count], every, strict=False)]
    validation = [
        replace(graph, train_mask=None, val_mask=labels, test_mask=None)
        for graph, labels in zip(graphs[-count:], every[-count:], strict=True)
    ]
    return train + validation


def _train_only(graph: Graph, known: Mask) -> Graph:
    """The graph with its validation labels in train_mask; without a train_mask, all labels but the test's."""
    if graph.train_mask is None:
        test = graph.test_mask
        train = known if test is None else known[: len(test)] & ~test
        return replace(graph, train_mask=train, val_mask=None)
    train = graph.train_mask if graph.val_mask is None else graph.train_mask | graph.val_mask
    return replace(graph, train_mask=train, val_mask=None)


def _splits(graph: Graph) -> int:
    """The number of splits in the masks of a graph; 0 without masks."""
    return max((len(mask) for name in MASKS if (mask := getattr(graph, name)) is not None), default=0)


def _as_columns(masks: Sequence[Mask | None]) -> Mask:
    """One row per split and one column per graph; False for a graph without this mask."""
    splits = {len(mask) for mask in masks if mask is not None}
    if len(splits) > 1:
        raise GraphError(
            f"the graphs have different numbers of splits ({', '.join(map(str, sorted(splits)))}): "
            "give all masks the same number of rows"
        )
    none = np.zeros((*splits, 1), np.bool_)
    return np.concatenate([none if mask is None else mask for mask in masks], axis=1)


def _completed(given: dict[str, Mask], known: Mask, seed: int) -> dict[str, Any]:
    """Masks [splits, k]: the given ones; missing ones are drawn from the labels that are in no given mask.

    If only val is missing, or train is given and no labels are left, val is drawn from the labels of train.
    """
    missing = [name for name in MASKS if name not in given]
    if not {"train_mask", "val_mask"} & {*missing}:
        return given
    if not known.any():
        raise GraphError(NO_LABELS)
    random = np.random.default_rng(seed)
    splits = len(next(iter(given.values()), known[None]))
    masks = {name: given.get(name, np.zeros((splits, len(known)), np.bool_)).copy() for name in MASKS}
    for split in range(splits):
        free = known & ~np.any([mask[split] for mask in masks.values()], axis=0)
        if "train_mask" not in given and not free.any():
            raise GraphError(
                f"all labels are in {' or '.join(given)}: leave some labels out of it, or give a train_mask"
            )
        if missing == ["val_mask"] or not free.any():
            free, drawn = known & masks["train_mask"][split], ["train_mask", "val_mask"]
        else:
            drawn = missing
        part = random.permutation(_parts(int(free.sum()), [SHARES[name] for name in drawn]))
        for i, name in enumerate(drawn):
            masks[name][split, free] = part == i
    return {name: mask for name, mask in masks.items() if name in given or mask.any()}


def random_splits(nodes: int, seed: int = 0) -> dict[str, Mask]:
    """Ten random splits of 60/20/20: three masks [10, n]."""
    random = np.random.default_rng(seed)
    train, val = nodes * 6 // 10, nodes * 2 // 10
    part = np.repeat([0, 1, 2], [train, val, nodes - train - val])
    parts = random.permuted(np.tile(part, (RANDOM_SPLITS, 1)), axis=1)
    return {"train_mask": parts == 0, "val_mask": parts == 1, "test_mask": parts == 2}


def link_graph(graph: Graph, seed: int = 0) -> Graph:
    """The graph with node pairs to classify: its edges, and as many random pairs without an edge.

    Edges of the validation and test parts are removed from the graph in both directions, so that the model
    cannot see them. A link has the mean of the weights of its two directions.
    """
    random = np.random.default_rng(seed)
    links, weights = links_of(graph)
    if len(links) < 5:
        raise GraphError(
            f"the graph has {len(links)} links between different nodes: training on links needs at least 5"
        )
    negatives = _without_link(graph.nodes, links, len(links), random)
    of_links = random.permutation(_parts(len(links)))
    kept = links[of_links == 0]
    edges = np.stack([np.divmod(kept, graph.nodes), np.divmod(kept, graph.nodes)[::-1]], axis=1).reshape(
        2, -1
    )
    both = np.concatenate([links, negatives])
    part = np.concatenate([of_links, random.permutation(_parts(len(negatives)))])
    return Graph(
        features=graph.features,
        edge_index=edges,
        labels=np.repeat([1, 0], [len(links), len(negatives)]),
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
        class_names=("no link", "link"),
        pairs=np.stack(np.divmod(both, graph.nodes)),
        ids=graph.ids,
        feature_encoding=graph.feature_encoding,
        edge_weight=None if weights is None else np.tile(weights[of_links == 0], 2),
    )


def _without_link(nodes: int, links: Integers, wanted: int, random: np.random.Generator) -> Integers:
    """Up to `wanted` random pairs (low < high) that are not in `links`, as low * nodes + high."""
    drawn = random.integers(0, nodes, (2, 3 * wanted + 100))
    low, high = np.sort(drawn, axis=0)
    pairs = np.setdiff1d((low * nodes + high)[low != high], links)
    return random.permutation(pairs)[:wanted]


def _parts(count: int, shares: Sequence[float] = tuple(SHARES.values())) -> Integers:
    """The number of a part for each of `count` outputs, in order, by the shares of the parts."""
    bounds = np.round(np.cumsum(shares) / sum(shares) * count)
    return np.searchsorted(bounds, np.arange(count), side="right").clip(max=len(shares) - 1)
