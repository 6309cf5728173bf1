"""networkx: a graph with node attributes becomes a `Graph`."""

from collections.abc import Callable
from typing import Any

from adar_runtime.errors import GraphError
from adar_runtime.graph import MASKS, Graph
from adar_runtime.graph.formats.graphml import from_networkx
from adar_runtime.graph.in_memory._arrays import with_fields

BY_NODE = ("features", "labels", *MASKS)


def from_networkx_graph(graph: Any, fields: dict[str, Any], on_note: Callable[[str], None]) -> Graph:
    """Convert a `networkx.Graph`, directed or not. Node attributes become features, labels and masks."""
    fields = dict(fields)
    if fields.get("labels") is not None:  # the names are those of the attribute that the labels replace
        fields.setdefault("class_names", None)
    _check_order(list(graph), [name for name in BY_NODE if fields.get(name) is not None])
    imported = from_networkx(graph, fields.pop("label", None))
    for note in imported.notes:
        on_note(note)
    return with_fields(imported.graph, fields, on_note) if fields else imported.graph


def _check_order(nodes: list[Any], given: list[str]) -> None:
    """Refuse rows for nodes that are the numbers of rows, in another order: each row has two meanings."""
    if given and nodes != [*range(len(nodes))] and set(nodes) == {*range(len(nodes))}:
        raise GraphError(
            f"the nodes are the numbers 0 to {len(nodes) - 1}, but graph.nodes has them in another order, so "
            f"it is not clear which node a row of {given[0]} is for: give node attributes, or a graph whose "
            "nodes were added in order"
        )
