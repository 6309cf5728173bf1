"""Graphs that stay on the server: prepared once, used by name, the least recently used one leaves first."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from adar_runtime import Bundle, Graph, Result
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.errors import short
from adar_runtime.graph import SparseRows
from adar_runtime.graph.limits import NAME_BYTES
from adar_runtime.phases.context import Context
from adar_runtime.phases.kept_calls import Storage
from adar_runtime.phases.remember import remember
from adar_serve.limits import MIB, Limits
from adar_serve.messages import Arrays
from adar_serve.models import Model
from adar_serve.refusals import RefusedError

OBJECTS = 2**14  # bytes of a graph without its numbers: some fifty arrays, each with a header


class KeptInference:
    """The inference of a graph that answers for new and changed nodes. Use it with its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._options: dict[str, Any] | None = None
        self._context: Context | None = None

    @property
    def bytes(self) -> int:
        return 0 if self._context is None else self._context.bytes

    def of(
        self, bundle: Bundle, graph: Graph, options: dict[str, Any], limit: int, check: Callable[[], None]
    ) -> Context:
        """The inference with these options. It is made if the last one had others."""
        if self._context is None or self._options != options:
            self._context, budget = None, options["budget"]
            stop, solver = bundle.stop_rule(options["stop"]), bundle.solver(options["solver"], budget)
            storage = Storage(max_bytes=max(0, limit))
            self._context = remember(bundle, graph, budget, stop, solver, storage, lambda _: check())
            self._options = options
        return self._context


@dataclass(frozen=True, eq=False)
class StoredGraph:
    """A graph that was prepared for one model."""

    name: str
    model: Model
    prepared: PreparedGraph
    kept: KeptInference = field(default_factory=KeptInference)

    def score(self, inputs: Arrays, options: dict[str, Any], limit: int, check: Callable[[], None]) -> Result:
        """Answer for new nodes, or for changed ones if `nodes` is one of the inputs.

        Args:
            inputs: `x` and `edge_index` of the nodes, and `nodes`, the numbers of those that changed.
            options: Budget, stop rule and solver of the kept inference.
            limit: Most bytes of this graph and its inference.
            check: Called after each step of a new inference; it may raise an exception.
        """
        for name in ("x", "edge_index"):
            if name not in inputs:
                raise RefusedError(400, f"the input {name} is missing")
        for name in inputs:
            if name not in ("x", "edge_index", "nodes"):
                raise RefusedError(400, f"the graph that stays on the server has {name}: leave it out")
        with self.kept.lock:
            context = self.kept.of(
                self.model.bundle, self.prepared.graph, options, limit - self._bytes, check
            )
            if "nodes" in inputs:
                return context.update(inputs["nodes"], inputs["x"], inputs["edge_index"])
        return context.predict(inputs["x"], inputs["edge_index"])

    @property
    def bytes(self) -> int:
        """The memory of its arrays and objects, and of the kept inference."""
        return self._bytes + self.kept.bytes

    @cached_property
    def _bytes(self) -> int:
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
        self.limit = limits.graphs * MIB
        self._mib = limits.graphs
        self._graphs: OrderedDict[str, StoredGraph] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, graph: StoredGraph) -> list[str]:
        """Store a graph, in place of one of the same name. Return the names of graphs that had to leave."""
        if graph.bytes > self.limit:
            raise RefusedError(
                413, f"the graph takes {graph.bytes:,} bytes: this server keeps at most {self._mib} MiB"
            )
        with self._lock:
            self._graphs.pop(graph.name, None)
            self._graphs[graph.name] = graph
            left = []
            while sum(each.bytes for each in self._graphs.values()) > self.limit:
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
