"""Splits for graphs that come without: which labels to learn from, to choose by, and to leave for the end."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError
from adar_runtime.graph import ALL, GRAPH, MASKS, Graph, Integers, Mask

SHARES = {"train_mask": 0.6, "val_mask": 0.2, "test_mask": 0.2}


def with_split(graph: Graph, seed: int = 0) -> Graph:
    """The graph with the masks that it has, and those that training needs drawn to them, 60/20/20."""
    known = graph.labelled(ALL)
    if known is None or graph.level == GRAPH:
        return graph
    given = {name: mask for name in MASKS if (mask := getattr(graph, name)) is not None}
    return replace(graph, **_completed(given, known, seed))


def split_graphs(graphs: list[Graph], seed: int = 0) -> list[Graph]:
    """Graphs that are labelled as wholes, divided as the nodes of one graph are by `with_split`."""
    masks = {name: [getattr(graph, name) for graph in graphs] for name in MASKS}
    given = {name: _side_by_side(group) for name, group in masks.items() if any(m is not None for m in group)}
    known = np.array([graph.labelled(ALL) is not None for graph in graphs])
    completed = _completed(given, known, seed)
    bare = known & [all(mask is None for mask in of_one) for of_one in zip(*masks.values(), strict=True)]
    if given and (bare & ~np.any([mask.any(axis=0) for mask in completed.values()], axis=0)).any():
        raise GraphError(
            f"{bare.sum()} of {len(graphs)} graphs have no masks, and others have: mark all of them or none"
        )
    return [
        replace(graph, **{name: mask[:, i : i + 1] for name, mask in completed.items()})
        for i, graph in enumerate(graphs)
    ]


def _side_by_side(masks: Sequence[Mask | None]) -> Mask:
    """One row a split and one column a graph; a graph without a mask is in none."""
    splits = {len(mask) for mask in masks if mask is not None}
    if len(splits) > 1:
        raise GraphError(
            f"the graphs have different numbers of splits: {', '.join(map(str, sorted(splits)))}"
        )
    none = np.zeros((*splits, 1), np.bool_)
    return np.concatenate([none if mask is None else mask for mask in masks], axis=1)


def _completed(given: dict[str, Mask], known: Mask, seed: int) -> dict[str, Any]:
    """Masks [splits, k]: the given ones, and what training needs drawn from what none of them holds.

    Where train is given and nothing is left, val is taken out of it; so it is where only val is missing.
    """
    missing = [name for name in MASKS if name not in given]
    if not {"train_mask", "val_mask"} & {*missing}:
        return given
    random = np.random.default_rng(seed)
    splits = len(next(iter(given.values()), known[None]))
    masks = {name: given.get(name, np.zeros((splits, len(known)), np.bool_)).copy() for name in MASKS}
    for split in range(splits):
        free = known & ~np.any([mask[split] for mask in masks.values()], axis=0)
        if "train_mask" not in given and not free.any():
            raise GraphError(f"all that has a label is in {' or '.join(given)}: nothing is left to train on")
        if missing == ["val_mask"] or not free.any():
            free, drawn = known & masks["train_mask"][split], ["train_mask", "val_mask"]
        else:
            drawn = missing
        part = random.permutation(_parts(int(free.sum()), [SHARES[name] for name in drawn]))
        for i, name in enumerate(drawn):
            masks[name][split, free] = part == i
    return {name: mask for name, mask in masks.items() if name in given or mask.any()}


def link_graph(graph: Graph, seed: int = 0) -> Graph:
    """The graph with links to judge: its edges, and as many pairs without one.

    Edges of the validation and test part are taken out of the graph, in both directions, so that
    they cannot be read off it.
    """
    random = np.random.default_rng(seed)
    low, high = np.sort(graph.edge_index, axis=0)
    links = np.unique((low * graph.nodes + high)[low != high])
    if len(links) < 5:
        raise GraphError(f"the graph has {len(links)} links between different nodes: too few to learn from")
    negatives = _without_link(graph.nodes, links, len(links), random)
    part = random.permutation(_parts(len(links)))
    kept = links[part == 0]
    edges = np.stack([np.divmod(kept, graph.nodes), np.divmod(kept, graph.nodes)[::-1]], axis=1).reshape(
        2, -1
    )
    both = np.concatenate([links, negatives])
    part = np.concatenate([part, random.permutation(_parts(len(negatives)))])
    return Graph(
        features=graph.features,
        edge_index=edges,
        labels=np.repeat([1, 0], [len(links), len(negatives)]),
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
        class_names=("no link", "link"),
        pairs=np.stack(np.divmod(both, graph.nodes)),
    )


def _without_link(nodes: int, links: Integers, wanted: int, random: np.random.Generator) -> Integers:
    """Pairs low < high of different nodes that are not among `links`, as low * nodes + high."""
    drawn = random.integers(0, nodes, (2, 3 * wanted + 100))
    low, high = np.sort(drawn, axis=0)
    pairs = np.setdiff1d((low * nodes + high)[low != high], links)
    return random.permutation(pairs)[:wanted]


def _parts(count: int, shares: Sequence[float] = tuple(SHARES.values())) -> Integers:
    """0, 1, … for each, by their shares."""
    bounds = np.round(np.cumsum(shares) / sum(shares) * count)
    return np.searchsorted(bounds, np.arange(count), side="right").clip(max=len(shares) - 1)
