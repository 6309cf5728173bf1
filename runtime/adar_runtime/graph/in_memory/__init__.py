"""Graphs that other libraries hold in memory: one table, from the type of an object to its conversion.

No library is imported to find out what an object is: the classes of the object name their package. Only the
conversion imports the library, which is loaded already.

To add a type, write a function that converts it, and add one line to `ADAPTERS`.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any, NamedTuple

from adar_runtime.errors import GraphError, UsageError, short, warn
from adar_runtime.graph import Graph
from adar_runtime.graph.formats import read_graph
from adar_runtime.graph.formats.many_graphs import same_level
from adar_runtime.graph.in_memory import _networkx, _pyg, _scipy
from adar_runtime.graph.in_memory._arrays import sparse_if_mostly_zero, with_fields

__all__ = ["ADAPTERS", "Graphs", "as_graph", "as_graphs", "items_of", "own_graph", "sparse_if_mostly_zero"]

OnNote = Callable[[str], None]
Adapter = Callable[[Any, dict[str, Any], OnNote], Graph]
"""(object, fields of a `Graph` that replace or complete those of the object, receiver of notes) -> graph."""

ADAPTERS: dict[tuple[str, str], Adapter] = {
    ("torch_geometric", "Data"): _pyg.from_data,
    ("torch_geometric", "HeteroData"): _pyg.refuse_hetero_data,
    ("torch_geometric", "TemporalData"): _pyg.refuse_temporal_data,
    ("networkx", "Graph"): _networkx.from_networkx_graph,
    ("scipy", "sparray"): _scipy.from_adjacency,
    ("scipy", "spmatrix"): _scipy.from_adjacency,
}
"""(package, class) -> conversion. An object of a subclass is converted as well."""

SEVERAL: dict[tuple[str, str], Callable[[Any], Sequence[Any]]] = {
    ("torch_geometric", "Batch"): lambda batch: batch.to_data_list(),
    ("torch", "Dataset"): lambda dataset: [dataset[i] for i in range(len(dataset))],
}
"""(package, class) -> the graphs in it."""

ACCEPTED = (
    "a Graph, the path of a graph file, a PyG Data, a networkx graph, or (adjacency, features) with a "
    "scipy.sparse adjacency"
)


class Graphs(NamedTuple):
    """One or several graphs with their names. `several` is True for a list of one graph as well."""

    names: list[str]
    graphs: list[Graph]
    several: bool


def as_graph(data: Any, *, label: str | None = None, on_note: OnNote = warn, **fields: Any) -> Graph:
    """Convert one graph of another library, in memory.

    Args:
        data: A `Graph`, the path of a graph file, a PyG `Data`, a networkx graph, a scipy.sparse adjacency
            with features, or a tuple (adjacency, features) or (adjacency, features, labels). Row i and column
            j of an adjacency are the edge from node i to node j.
        label: Node attribute of the labels in a networkx graph. Default: "y", "label", "class" or "target".
        on_note: Receives a sentence for each decision of the conversion; an `AdarWarning` by default.
        fields: Fields of `Graph` that replace those of the data, such as `labels` or `train_mask`. A mask
            has the shape [k], [splits, k] or, as in PyG, [k, splits]. Rows are in the order of the nodes; of
            a networkx graph, that is the order of `graph.nodes`. The edges and weights of an adjacency cannot
            be replaced.

    Returns:
        The checked graph.

    Raises:
        GraphError: The data is not a graph that a model can use. The message says how to change it.
        UsageError: The type of the data or the name of a field is unknown.

    Examples:
        >>> graph = as_graph(adjacency, features=x, labels=["spam", "ham", "spam"])  # doctest: +SKIP
        >>> graph.class_names  # doctest: +SKIP
        ('ham', 'spam')
    """
    known = [field.name for field in fields_of(Graph)]
    unknown = next((name for name in fields if name not in known), None)
    if unknown is not None:
        raise UsageError(f"a Graph has no field {unknown!r}: choose from {', '.join(known)}")
    if isinstance(data, str | Path):
        data = read_graph(data)
    if isinstance(data, tuple) and _is_adjacency(data):
        data, fields = data[0], _scipy.fields_of_tuple(data) | fields
    adapter = _find(ADAPTERS, data)
    if label is not None:
        if adapter is not _networkx.from_networkx_graph:
            raise UsageError("label names an attribute of a networkx graph: give labels instead")
        fields["label"] = label
    if fields.get("features") is not None:  # not those that the data's own columns were encoded as
        fields = {"feature_encoding": None} | fields
    if isinstance(data, Graph):
        return with_fields(data, fields, on_note) if fields else data
    if adapter is None:
        raise UsageError(f"a graph is needed, not {_described(data)}: give {ACCEPTED}")
    return adapter(data, fields, on_note)


def as_graphs(data: Any, *, label: str | None = None, on_note: OnNote = warn) -> Graphs:
    """Convert one graph or several: a list, a tuple, an iterator, a PyG `Dataset` or a PyG `Batch`.

    Args:
        data: What `as_graph` converts, or several of them.
        label: As in `as_graph`.
        on_note: As in `as_graph`.

    Returns:
        The names and the graphs. If some graphs have one label for the whole graph, a graph of one node
        with one label is read in the same way.

    Raises:
        AdarError: As in `as_graph`. For several graphs, the message names the graph.

    Examples:
        >>> as_graphs([first, second]).several  # doctest: +SKIP
        True
    """
    items = items_of(data)
    if items is None:
        return Graphs([_name(data)], [as_graph(data, label=label, on_note=on_note)], several=False)
    count = len(items) if isinstance(items, list) else None
    names, graphs = list[str](), list[Graph]()
    for item in items:
        graphs.append(_nth_graph(item, len(graphs), count, label, on_note))
        names.append(_name(item))
    if not graphs:
        raise UsageError("the list of graphs is empty: give at least one graph")
    graphs = same_level(graphs)
    numbered = [f"{name} {index}" for index, name in enumerate(names, 1)]
    return Graphs(names if len({*names}) == len(names) else numbered, graphs, several=True)


def items_of(data: Any) -> list[Any] | Iterator[Any] | None:
    """The graphs of a collection, not converted; None if `data` is one graph.

    Those of an iterator are fetched one by one. It may change what it gave for its next graph, so each one is
    converted, and copied, before the next is fetched.
    """
    if isinstance(data, Iterator):
        return data
    if isinstance(data, list) or (isinstance(data, tuple) and not _is_adjacency(data)):
        return list(data)
    several = _find(SEVERAL, data)
    return None if several is None else list(several(data))


def own_graph(data: Any, *, label: str | None = None, on_note: OnNote = warn) -> Graph:
    """Convert one graph of an iterator. It shares no array with the data, which may change afterwards."""
    graph = as_graph(data, label=label, on_note=on_note)
    return graph if isinstance(data, str | Path) else deepcopy(graph)


def _nth_graph(item: Any, index: int, count: int | None, label: str | None, on_note: OnNote) -> Graph:
    convert = own_graph if count is None else as_graph  # without a number of graphs, it is an iterator
    try:
        return convert(item, label=label, on_note=on_note)
    except (GraphError, UsageError) as error:
        if count == 1 or isinstance(item, str | Path):  # the message names the file
            raise
        of = "" if count is None else f" of {count}"
        raise type(error)(f"graph {index + 1}{of}: {error}") from error


def _is_adjacency(data: tuple[Any, ...]) -> bool:
    return bool(data) and _find(ADAPTERS, data[0]) is _scipy.from_adjacency


def _find(table: dict[tuple[str, str], Any], value: Any) -> Any:
    """The row of the first class of a value, from its own to its bases, that is in the table."""
    kinds = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(value).__mro__)
    return next((table[kind] for kind in kinds if kind in table), None)


def _name(data: Any) -> str:
    return str(data) if isinstance(data, str | Path) else type(data).__name__


def _described(value: Any) -> str:
    """A value in a message: None, or its type."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return (
        "None"
        if value is None
        else f"{short(kind.__name__)}" + ("" if package == "builtins" else f" of {short(package)}")
    )
