"""Splits for graphs that come without: which labels to learn from, to choose by, and to leave for the end."""

from dataclasses import replace
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError
from adar_runtime.graph import ALL, GRAPH, MASKS, Graph, Integers

SHARES = (0.6, 0.2, 0.2)


def with_split(graph: Graph, seed: int = 0) -> Graph:
    """The graph with a random 60/20/20 split, if it has labels and no split of its own."""
    if graph.labels is None or graph.train_mask is not None or graph.level == GRAPH:
        return graph
    known = graph.labelled(ALL)
    if known is None:
        return graph
    masks: dict[str, Any] = {name: np.zeros(graph.outputs, np.bool_) for name in MASKS}
    for name, mask in _masks(int(known.sum()), seed).items():
        masks[name][known] = mask
    return replace(graph, **masks)


def split_graphs(graphs: list[Graph], seed: int = 0) -> list[Graph]:
    """Graphs that are labelled as wholes, 60/20/20 of them for training, validation and test."""
    if any(graph.train_mask is not None for graph in graphs):
        return graphs
    masks = _masks(len(graphs), seed)
    return [
        replace(graph, **{name: mask[i : i + 1] for name, mask in masks.items()})
        for i, graph in enumerate(graphs)
    ]


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


def _masks(count: int, seed: int) -> dict[str, Any]:
    part = np.random.default_rng(seed).permutation(_parts(count))
    return {f"{name}_mask": part == i for i, name in enumerate(("train", "val", "test"))}


def _parts(count: int) -> Integers:
    """0, 1 or 2 for each, by `SHARES`."""
    bounds = np.round(np.cumsum(SHARES) * count)
    return np.searchsorted(bounds, np.arange(count), side="right").clip(max=2)
