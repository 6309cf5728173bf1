"""Prepare a training: load graphs by name, draw missing splits, and derive the model's sizes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, UsageError, warn
from adar_runtime.evaluation.training_data import identity
from adar_runtime.graph import EDGE, GRAPH, MASKS, Graph, SparseRows
from adar_runtime.graph.statistics import Edges
from adar_train.cell import HIDDEN, PROXIES, ModelConfig
from adar_train.data import load_all
from adar_train.data.checks import check_together, warn_first_class
from adar_train.data.classes import match_classes
from adar_train.data.splits import leave_out, link_graph, node_splits, split_graphs

SMALL_HIDDEN, FEWEST_PROXIES = 32, 4  # for many small graphs


def prepare(
    names: Sequence[str],
    task: str | None = None,
    seed: int = 0,
    on_note: Callable[[str], None] = lambda _: None,
    validate_on: int = 0,
    read: Callable[[str], Sequence[Graph]] = load_all,
) -> list[Graph]:
    """Load the graphs, draw missing splits and, for links, pairs to classify; check that they fit together.

    `on_note` receives a line about every change to the data: a split that was drawn, edges that were changed.
    The graphs of the last `validate_on` names are for validation only, with all their labels; the validation
    labels of the other graphs are trained on. `read` makes graphs from a name.
    """
    of_names = [read(name) for name in names]
    validate_on = sum(map(len, of_names[len(names) - validate_on :]))
    names = [name for name, group in zip(names, of_names, strict=True) for _ in group]
    graphs = [graph for group in of_names for graph in group]
    if task == EDGE:
        if validate_on and any(graph.pairs is None for graph in graphs):
            raise UsageError("--validate-on needs graphs with their own pairs: it does not draw links")
        loaded = graphs
        graphs = [graph if graph.pairs is not None else link_graph(graph, seed) for graph in loaded]
        for name, before, after in zip(names, loaded, graphs, strict=True):
            _note_changed_edges(name, before, after, on_note)
            _note_drawn_links(name, before, after, on_note)
    elif task is not None:
        wrong = next((name for name, graph in zip(names, graphs, strict=True) if graph.level != task), None)
        if wrong is not None:
            raise GraphError(f"{wrong}: the graph has no labels for each {task}; choose another --task")
    check_together(names, graphs)
    warn_first_class(graphs)
    graphs = match_classes(names, graphs)
    if validate_on:
        _warn_trained(names, graphs, validate_on)
        return leave_out(graphs, validate_on)
    if graphs[0].level == GRAPH:
        split = split_graphs(graphs, seed)
        _note_drawn_masks(f"{len(graphs)} graphs", graphs, split, on_note)
        return split
    split = node_splits(graphs, seed)
    for name, before, after in zip(names, graphs, split, strict=True):
        _note_drawn_masks(name, [before], [after], on_note)
    return split


def _warn_trained(names: Sequence[str], graphs: Sequence[Graph], validate_on: int) -> None:
    """Warn if a graph to validate on is trained on too. Small graphs with one label may be equal anyway."""
    if graphs[0].level == GRAPH:
        return
    trained = {identity(graph) for graph in graphs[:-validate_on]}
    for name, graph in zip(names[-validate_on:], graphs[-validate_on:], strict=True):
        if identity(graph) in trained:
            warn(f"{name}, which is validated on, is also a training graph: the validation score is too high")


def default_sizes(graphs: Sequence[Graph], *, small: bool) -> dict[str, int]:
    """The default columns d and proxies p of a model with learned targets.

    Many small graphs (`graph_batch.are_small`) get a small model: with more proxies than nodes, the proxies
    would take most of the time.
    """
    if not small:
        return {"hidden": HIDDEN, "proxies": PROXIES}
    nodes = int(np.median([graph.nodes for graph in graphs]))
    return {"hidden": SMALL_HIDDEN, "proxies": min(PROXIES, max(FEWEST_PROXIES, nodes // 4))}


def model_config(graphs: Sequence[Graph], **settings: Any) -> ModelConfig:
    """The ModelConfig for these graphs: described targets if they have target_x, else learned targets."""
    first = graphs[0]
    described = first.target_features is not None
    if isinstance(first.features, SparseRows):  # bags of words have many columns and few labels
        settings = {"input_dropout": 0.5} | settings
    return ModelConfig(
        features=first.width,
        targets=None if described else max(graph.targets for graph in graphs),
        level=first.level,
        regression=first.regression,
        edge_weights=any(graph.edge_weight is not None for graph in graphs),
        **settings,
    )


def _note_changed_edges(name: str, before: Graph, after: Graph, on_note: Callable[[str], None]) -> None:
    """Report edges that link prediction changed, besides the removed links of val and test."""
    edges = Edges.of(before)
    if after is not before and (edges.one_way or edges.loops):
        on_note(
            f"{name}: links have no direction, so {edges.one_way:,} one-way edges now go both ways and "
            f"{edges.loops:,} self-loops are removed; run the model on graphs of this form"
        )


def _note_drawn_links(name: str, before: Graph, after: Graph, on_note: Callable[[str], None]) -> None:
    """Report the pairs that were drawn, and the number of pairs in each part."""
    if after is not before:
        assert after.labels is not None
        links, counts = int(after.labels.sum()), ", ".join(_count_parts([after]))
        on_note(
            f"{name}: the pairs to classify are {links:,} edges and {after.outputs - links:,} random pairs "
            f"without an edge, split at random: {counts}"
        )


def _note_drawn_masks(
    name: str, before: Sequence[Graph], after: Sequence[Graph], on_note: Callable[[str], None]
) -> None:
    """Report the masks that were missing, and the number of outputs in each part now."""
    drawn = [
        mask
        for mask in MASKS
        if all(getattr(graph, mask) is None for graph in before) and getattr(after[0], mask) is not None
    ]
    if drawn:
        counts = ", ".join(_count_parts(after))
        on_note(f"{name}: drew the missing {', '.join(drawn)} at random: {counts}")


def _count_parts(graphs: Sequence[Graph]) -> list[str]:
    """The number of outputs in each part of the first split: "600 train"."""
    masks = {mask: [getattr(graph, mask) for graph in graphs] for mask in MASKS}
    return [
        f"{sum(int(one[0].sum()) for one in group)} {mask.removesuffix('_mask')}"
        for mask, group in masks.items()
        if group[0] is not None
    ]
