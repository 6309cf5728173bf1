"""Graphs that stay on the server: prepared once, used by name, the least recently used one leaves first."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.errors import short
from adar_runtime.graph import SparseRows
from adar_runtime.graph.limits import NAME_BYTES
from adar_serve.limits import MIB, Limits
from adar_serve.models import Model
from adar_serve.refusals import RefusedError

OBJECTS = 2**14  # bytes of a graph without its numbers: some fifty arrays, each with a header


@dataclass(frozen=True, eq=False)
class StoredGraph:
    """A graph that was prepared for one model."""

    name: str
    model: Model
    prepared: PreparedGraph

    @cached_property
    def bytes(self) -> int:
        """The memory of its arrays and objects."""
        graph = self.prepared.graph
        features = graph.features
        of_features = (
            [features.starts, features.columns, features.values]
            if isinstance(features, SparseRows)
            else [features]
        )
        arrays = [*of_features, graph.edge_index, *self.prepared.structure.values()]
        arrays += [each for each in (graph.target_features, graph.pairs, graph.labels) if each is not None]
        neighbours = self.prepared.neighbours
        arrays += [neighbours.starts, neighbours.sources]
        arrays += [each for each in (graph.edge_weight, neighbours.weights) if each is not None]
        encoding = 0 if graph.feature_encoding is None else NAME_BYTES * graph.width
        return OBJECTS + encoding + sum(each.nbytes for each in arrays)

    def to_dict(self) -> dict[str, Any]:
        graph = self.prepared.graph
        return {
            "name": self.name,
            "model": self.model.name,
            "version": self.model.version,
            "nodes": graph.nodes,
            "edges": graph.edges,
            "bytes": self.bytes,
        }


class GraphStore:
    """The graphs by name. Threads can share it."""

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.graphs * MIB
        self._mib = limits.graphs
        self._graphs: OrderedDict[str, StoredGraph] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, graph: StoredGraph) -> list[str]:
        """Store a graph, in place of one of the same name. Return the names of graphs that had to leave."""
        if graph.bytes > self._limit:
            raise RefusedError(
                413, f"the graph takes {graph.bytes:,} bytes: this server keeps at most {self._mib} MiB"
            )
        with self._lock:
            self._graphs.pop(graph.name, None)
            self._graphs[graph.name] = graph
            left = []
            while sum(each.bytes for each in self._graphs.values()) > self._limit:
                left.append(self._graphs.popitem(last=False)[0])
            return left

    def use(self, name: str, model: Model | None = None) -> StoredGraph:
        """A graph by its name, which is now the most recently used one."""
        with self._lock:
            found = self._graphs.get(name)
            if found is None:
                raise RefusedError(404, f"there is no graph {short(name)!r}: send it with PUT /graphs/NAME")
            self._graphs.move_to_end(name)
        if model is not None and found.model is not model:
            raise RefusedError(
                400,
                f"the graph {name} was prepared for the model {found.model.name}, version "
                f"{found.model.version}: send it again with PUT /graphs/{name}?model={model.name}",
            )
        return found

    def remove(self, name: str) -> None:
        """Remove a graph."""
        self.use(name)
        with self._lock:
            self._graphs.pop(name, None)

    def list(self) -> list[StoredGraph]:
        """All graphs, the most recently used one last."""
        with self._lock:
            return [*self._graphs.values()]
