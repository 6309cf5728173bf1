"""Graphs that stay on the server: prepared once, used by name, the least recently used one leaves first."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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


Make = Callable[[], Context]
"""Runs a graph and keeps the inference."""


class KeptInference:
    """The inference of a graph that answers for new and changed nodes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._options: dict[str, Any] | None = None
        self._context: Context | None = None

    @property
    def bytes(self) -> int:
        return 0 if self._context is None else self._context.bytes

    @contextmanager
    def use(self, _bundle: Bundle, options: dict[str, Any], make: Make) -> Iterator[Context]:
        """The inference with these options, for one thread at a time. It is made if the last had others."""
        with self._lock:
            if self._context is None or self._options != options:
                self._context = None
                self._context, self._options = make(), options
            yield self._context

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Around a change of the inference, inside `use`."""
        yield


@dataclass(frozen=True, eq=False)
class StoredGraph:
    """A graph that was prepared for one model."""

    name: str
    model: Model
    prepared: PreparedGraph
    kept: KeptInference
    sent: Graph | None = None  # as the client sent it, if a pretrained model has placed it since

    @classmethod
    def of(cls, name: str, model: Model, graph: Graph, kept: KeptInference) -> "StoredGraph":
        """Prepare a graph. A pretrained model places it now, so it must be complete and fit the memory."""
        bundle = model.bundle
        if not bundle.manifest.in_context:
            return cls(name, model, bundle.prepare(graph), kept)
        bundle.check(graph)
        return cls(name, model, bundle.prepare(graph), kept, graph)

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
        bundle, x, edges = self.model.bundle, inputs["x"], inputs["edge_index"]

        def make() -> Context:
            budget, storage = options["budget"], Storage(max_bytes=max(0, limit - self._bytes))
            stop, solver = bundle.stop_rule(options["stop"]), bundle.solver(options["solver"], budget)
            graph = self.sent or self.prepared.graph
            return remember(bundle, graph, budget, stop, solver, storage, lambda _: check())

        with self.kept.use(bundle, options, make) as context:
            if "nodes" not in inputs:
                return context.predict(x, edges)
            with self.kept.changing():
                return context.update(inputs["nodes"], x, edges)

    @property
    def bytes(self) -> int:
        """The memory of its arrays and objects, and of the kept inference."""
        return self._bytes + self.kept.bytes

    @cached_property
    def _bytes(self) -> int:
        graph = self.prepared.graph
        features = [graph.features] if self.sent is None else [graph.features, self.sent.features]
        arrays = [graph.edge_index, *self.prepared.structure.values()]
        for each in features:
            arrays += [each.starts, each.columns, each.values] if isinstance(each, SparseRows) else [each]
        optional = (graph.target_features, graph.pairs, graph.labels, graph.train_mask)
        arrays += [each for each in optional if each is not None]
        neighbours = self.prepared.neighbours
        arrays += [neighbours.starts, neighbours.sources]
        arrays += [each for each in (graph.edge_weight, neighbours.weights) if each is not None]
        encoding = 0 if graph.feature_encoding is None else NAME_BYTES * graph.width
        return OBJECTS + encoding + sum(each.nbytes for each in arrays)

    @property
    def facts(self) -> "GraphFacts":
        graph = self.prepared.graph
        return GraphFacts(
            self.name, self.model.name, self.model.version, graph.nodes, graph.edges, self.bytes
        )


@dataclass(frozen=True)
class GraphFacts:
    """What clients see of a graph that stays."""

    name: str
    model: str
    version: str
    nodes: int
    edges: int
    bytes: int

    def is_of(self, model: Model) -> bool:
        return (self.model, self.version) == (model.name, model.version)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class GraphStore:
    """The graphs by name, in the memory of this process. Threads can share it."""

    def __init__(self, limits: Limits) -> None:
        self.limit = limits.graphs * MIB
        self._mib = limits.graphs
        self._graphs: OrderedDict[str, StoredGraph] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, name: str, model: Model, graph: Graph) -> tuple[GraphFacts, list[str]]:
        """Prepare a graph and keep it, in place of one of the same name.

        Returns:
            Facts about the graph, and the names of graphs that had to leave.
        """
        stored = StoredGraph.of(name, model, graph, KeptInference())
        self.check_size(stored.bytes)
        with self._lock:
            self._graphs[name] = stored
            self._graphs.move_to_end(name)
            return stored.facts, self._make_room()

    def account(self, graph: StoredGraph) -> list[str]:
        """Count the memory that a graph needs now, unless it was replaced or removed meanwhile.

        Returns:
            The names of graphs that had to leave.
        """
        self.check_size(graph.bytes)
        with self._lock:
            if self._graphs.get(graph.name) is graph:
                self._graphs.move_to_end(graph.name)
            return self._make_room()

    def _make_room(self) -> list[str]:
        left = list[str]()
        while sum(each.bytes for each in self._graphs.values()) > self.limit:
            left.append(self._graphs.popitem(last=False)[0])
        return left

    def check_size(self, size: int) -> None:
        """Refuse a graph that needs more memory than all graphs together may take."""
        if size > self.limit:
            raise RefusedError(
                413, f"the graph takes {size:,} bytes: this server keeps at most {self._mib} MiB"
            )

    def use(self, name: str, model: Model | None = None) -> StoredGraph:
        """A graph by its name, which is now the most recently used one."""
        with self._lock:
            found = self._graphs.get(name)
            if found is None:
                raise no_graph(name)
            self._graphs.move_to_end(name)
        if model is not None and found.model is not model:
            raise of_other_model(found.facts, model)
        return found

    def facts(self, name: str) -> GraphFacts:
        """Facts about a graph, which is now the most recently used one."""
        return self.use(name).facts

    def remove(self, name: str) -> None:
        """Remove a graph."""
        self.use(name)
        with self._lock:
            self._graphs.pop(name, None)

    def all(self) -> list[GraphFacts]:
        """All graphs, the most recently used one last."""
        with self._lock:
            return [each.facts for each in self._graphs.values()]


def no_graph(name: str) -> RefusedError:
    """The answer to a request for a graph that is not there."""
    return RefusedError(404, f"there is no graph {short(name)!r}: send it with PUT /graphs/NAME")


def of_other_model(found: GraphFacts, model: Model) -> RefusedError:
    """The answer to a request for a graph that was prepared for another model."""
    return RefusedError(
        400,
        f"the graph {found.name} was prepared for the model {found.model}, version {found.version}: send it "
        f"again with PUT /graphs/{found.name}?model={model.name}",
    )
