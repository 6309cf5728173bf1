"""From names of data to graphs that can be trained on together, and the model that fits them."""

from collections.abc import Callable, Sequence
from typing import Any

from adar_runtime.errors import GraphError, UsageError
from adar_runtime.graph import EDGE, GRAPH, MASKS, Graph, SparseRows
from adar_runtime.graph.statistics import Edges
from adar_train.cell import ModelConfig
from adar_train.data import load
from adar_train.data.splits import link_graph, split_graphs, with_split


def prepare(
    names: Sequence[str],
    task: str | None = None,
    seed: int = 0,
    on_note: Callable[[str], None] = lambda _: None,
) -> list[Graph]:
    """Load the graphs, give them splits and, for links, pairs to judge, and check that they go together.

    What is made up on the way is told: a split that was drawn, edges that links changed.
    """
    graphs = [load(name) for name in names]
    if task == EDGE:
        given = graphs
        graphs = [graph if graph.pairs is not None else link_graph(graph, seed) for graph in given]
        for name, before, after in zip(names, given, graphs, strict=True):
            _tell_edges(name, before, after, on_note)
    elif task is not None:
        wrong = next((name for name, graph in zip(names, graphs, strict=True) if graph.level != task), None)
        if wrong is not None:
            raise GraphError(f"{wrong}: its labels are not of each {task}")
    _check_together(names, graphs)
    if graphs[0].level == GRAPH:
        split = split_graphs(graphs, seed)
        _tell_drawn(f"{len(graphs)} graphs", graphs, split, on_note)
        return split
    split = [with_split(graph, seed) for graph in graphs]
    for name, before, after in zip(names, graphs, split, strict=True):
        _tell_drawn(name, [before], [after], on_note)
    return split


def _tell_edges(name: str, before: Graph, after: Graph, on_note: Callable[[str], None]) -> None:
    """Say where links made another graph of it than leaving those of val and test out does."""
    edges = Edges.of(before)
    if after is not before and (edges.one_way or edges.loops):
        on_note(
            f"{name}: links have no direction, so {edges.one_way:,} one-way edges lead both ways and "
            f"{edges.loops:,} self-loops are left out; run the model on graphs of that form"
        )


def _tell_drawn(
    name: str, before: Sequence[Graph], after: Sequence[Graph], on_note: Callable[[str], None]
) -> None:
    """Say which masks were not given, and how many outputs each part has now."""
    drawn = [
        mask
        for mask in MASKS
        if all(getattr(graph, mask) is None for graph in before) and getattr(after[0], mask) is not None
    ]
    if drawn:
        masks = {mask: [getattr(graph, mask) for graph in after] for mask in MASKS}
        counts = [
            f"{sum(int(one[0].sum()) for one in group)} {mask.removesuffix('_mask')}"
            for mask, group in masks.items()
            if group[0] is not None
        ]
        on_note(f"{name}: {', '.join(drawn)} not given, and drawn: {', '.join(counts)}")


def model_config(graphs: Sequence[Graph], **settings: Any) -> ModelConfig:
    """A model for these graphs: targets as they are described or, where they are not, learned."""
    first = graphs[0]
    described = first.target_features is not None
    if isinstance(first.features, SparseRows):  # bags of words are many columns for few labels
        settings = {"input_dropout": 0.5} | settings
    return ModelConfig(
        features=first.width,
        targets=None if described else max(graph.targets for graph in graphs),
        level=first.level,
        regression=first.regression,
        **settings,
    )


def _check_together(names: Sequence[str], graphs: Sequence[Graph]) -> None:
    first = graphs[0]
    for name, graph in zip(names, graphs, strict=True):
        if graph.width != first.width:
            raise GraphError(
                f"{name} has {graph.width} features and {names[0]} has {first.width}: they have to agree"
            )
        if (graph.level, graph.regression) != (first.level, first.regression):
            raise GraphError(f"{name} and {names[0]} have different tasks")
        if (graph.target_features is None) != (first.target_features is None):
            raise GraphError(
                f"of {name} and {names[0]} one describes its classes (target_x) and one does not"
            )
        named = {graph.class_names, first.class_names} - {None}
        if first.target_features is None and len(named) > 1:
            raise GraphError(
                f"{name} and {names[0]} have different class_names: they have to number classes alike"
            )
    if len(graphs) > 1 and first.target_features is None and first.level != GRAPH:
        raise UsageError("several graphs train together only if they describe their classes (target_x)")
