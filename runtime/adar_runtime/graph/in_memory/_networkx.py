"""networkx: a graph with node attributes becomes a `Graph`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from adar_runtime.graph import MASKS, Graph
from adar_runtime.graph.formats.graphml import from_networkx
from adar_runtime.graph.in_memory._arrays import as_rows, labels_by_key


def from_networkx_graph(graph: Any, fields: dict[str, Any], on_note: Callable[[str], None]) -> Graph:
    """Convert a `networkx.Graph`, directed or not. Node attributes become features, labels and masks."""
    fields = dict(fields)
    imported = from_networkx(graph, fields.pop("label", None))
    for note in imported.notes:
        on_note(note)
    if not fields:
        return imported.graph
    if fields.get("labels") is not None:
        words = labels_by_key(fields["labels"], fields.get("class_names"), on_note)
        fields |= {"labels": words["y"], "class_names": words.get("class_names", fields.get("class_names"))}
    masks = {name: as_rows(fields[name], imported.graph.outputs) for name in MASKS if name in fields}
    return replace(imported.graph, **fields | masks)
