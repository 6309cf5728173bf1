"""Answers for new and changed nodes from one kept inference, without running the graph again."""

import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adar_runtime import summaries
from adar_runtime.backends.onnxruntime.sessions import backend_errors
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import DivergedError, GraphError, UsageError, short
from adar_runtime.graph import Floats, Graph, Ids, Integers
from adar_runtime.graph import _checks as checks
from adar_runtime.loop.result import Result
from adar_runtime.phases.kept_calls import KeptCalls
from adar_runtime.phases.models import PhaseModels

NO_EDGES = np.zeros((2, 0), np.int64)


class Kept(NamedTuple):
    """What a `Context` consists of."""

    calls: KeptCalls
    smoothed: list[Floats]  # scaled nodes before each round of smoothing
    targets: Floats  # [c, d], of the state that the answers come from
    target_features: Floats | None
    result: Result
    ids: Ids | None


class _Group(NamedTuple):
    """Rows to sum for each of k nodes: those of `sources[starts[v] : starts[v + 1]]`."""

    sources: Integers
    starts: Integers
    filled: Integers  # nodes with at least one row

    @classmethod
    def of(cls, target: Integers, source: Integers, nodes: int) -> "_Group":
        """Group edges that are sorted by target."""
        counts = np.bincount(target, minlength=nodes)
        return cls(source, np.cumsum(counts) - counts, np.flatnonzero(counts))

    def sums(self, rows: Floats, nodes: int) -> Floats:
        """The sum of the rows of each node; `rows` has one row for each source."""
        found = np.zeros((nodes, rows.shape[1]), np.float32)
        if len(self.filled):
            found[self.filled] = np.add.reduceat(rows, self.starts[self.filled], axis=0)
        return found


class _Incoming(NamedTuple):
    """The incoming edges of k nodes that are computed anew."""

    nodes: int  # k
    kept: _Group  # from nodes of the kept graph
    anew: _Group  # from nodes that are computed anew too; sources are their rows
    share: Floats  # [k, 1], 1 / (neighbours + 1)

    @classmethod
    def of(cls, source: Integers, target: Integers, row: Integers, nodes: int) -> "_Incoming":
        """Group the edges. `row` has for each node its row if it is computed anew, otherwise -1."""
        received = row[target] >= 0  # other edges would change nodes that stay as they are
        pairs = np.unique(row[target[received]] * len(row) + source[received])  # repeated edges count once
        target, source = pairs // len(row), pairs % len(row)
        is_kept = row[source] < 0
        counts = np.bincount(target, minlength=nodes)
        return cls(
            nodes,
            _Group.of(target[is_kept], source[is_kept], nodes),
            _Group.of(target[~is_kept], row[source[~is_kept]], nodes),
            (1.0 / (counts + 1.0)).astype(np.float32)[:, None],
        )


class _Computed(NamedTuple):
    scores: Floats
    sent: list[Floats]  # of each call
    smoothed: list[Floats]  # of each round


class Context:
    """One kept inference, which answers for nodes that were not in the graph. `Bundle.remember` makes one.

    New nodes receive from the kept graph, and do not act back on it: kept nodes, proxies and targets stay as
    they were. Threads can share a context, except for `update`, which changes it.

    Attributes:
        result: The answer for the kept graph.
        nodes: Number of nodes of the kept graph.
        manifest: The manifest of the bundle.
        kept: What the context consists of.

    Examples:
        >>> context = bundle.remember(graph, budget=300, solver="ab2")  # doctest: +SKIP
        >>> context.predict([[0.5, 1.0]], edges=[[3, 8], [graph.nodes, graph.nodes]])  # doctest: +SKIP
    """

    def __init__(self, models: PhaseModels, manifest: Manifest, kept: Kept) -> None:
        self._models, self.manifest, self.kept = models, manifest, kept
        self.result = kept.result
        self.nodes = len(kept.result.scores)

    def save(self, path: str | Path) -> None:
        """Write the context to a folder, which `adar_runtime.phases.context_files.load_context` opens.

        Args:
            path: The folder. An older context in it is replaced.

        Raises:
            UsageError: The folder cannot be written, or holds something else.

        Examples:
            >>> bundle.remember(graph, solver="ab2").save("context")  # doctest: +SKIP
        """
        from adar_runtime.phases.context_files import save_context

        save_context(self, Path(path))

    @property
    def bytes(self) -> int:
        """The bytes that are kept, in memory or in the file."""
        return self.kept.calls.bytes + sum(array.nbytes for array in self.kept.smoothed)

    def __repr__(self) -> str:
        facts = {"nodes": f"{self.nodes:,}", "calls": str(len(self.kept.calls)), "bytes": f"{self.bytes:,}"}
        return summaries.line("Context", facts)

    def numbers(self, ids: Any) -> Integers:
        """Look up nodes of the kept graph by their ids, for the edges of `predict` and `update`.

        Args:
            ids: [k] ids.

        Returns:
            The numbers of the nodes, [k].

        Raises:
            GraphError: The kept graph has no ids, or an id is not one of them.
        """
        if self.kept.ids is None:
            raise GraphError("the kept graph has no ids: use the numbers of its nodes")
        wanted = np.asarray(ids).reshape(-1).tolist()
        missing = [one for one in wanted if one not in self._number_of]
        if missing:
            raise GraphError(f"the kept graph has no node with the id {short(repr(missing[0]))}")
        return np.array([self._number_of[one] for one in wanted], np.int64)

    @cached_property
    def _number_of(self) -> dict[Any, int]:
        assert self.kept.ids is not None
        return {one: number for number, one in enumerate(self.kept.ids.tolist())}

    def predict(self, features: Any, edges: Any = NO_EDGES, ids: Any = None) -> Result:
        """Answer for nodes that are not in the kept graph. The context does not change.

        Args:
            features: [k, f] finite numbers, the features of the new nodes.
            edges: [2, m] numbers of nodes, row 0 the sources, row 1 the targets. The new nodes have the
                numbers after those of the kept graph: n, n + 1, … Edges to kept nodes have no effect.
            ids: [k] ids of the new nodes, for the result.

        Returns:
            The answer for the new nodes, from the same time as that of the kept graph.

        Raises:
            GraphError: Features or edges are not valid, or do not fit the bundle and the kept graph.
            DivergedError: Numbers stopped being finite.

        Examples:
            >>> context.predict([[0.5, 1.0]], edges=[[3, 8], [graph.nodes, graph.nodes]])  # doctest: +SKIP
        """
        started = time.perf_counter()
        new = self._graph(features, ids)
        row = np.full(self.nodes + new.nodes, -1)
        row[self.nodes :] = np.arange(new.nodes)
        incoming = self._incoming(edges, row, new.nodes)
        with backend_errors():
            computed = self._compute(new, incoming)
        return self._result(computed, new.ids, started)

    def update(self, nodes: Any, features: Any, edges: Any) -> Result:
        """Answer for nodes of the kept graph that changed, and keep what they send now.

        Later calls of `predict` and `update` use the changed nodes. Other nodes stay as they were, also the
        neighbours of the changed nodes; `result` stays the answer for the graph as it was.

        Args:
            nodes: [k] numbers of the nodes that changed, each one once.
            features: [k, f] finite numbers, their features now.
            edges: [2, m] numbers of nodes, row 0 the sources, row 1 the targets: all edges that end at these
                nodes now. Edges that end at other nodes have no effect.

        Returns:
            The answer for these nodes.

        Raises:
            GraphError: Nodes, features or edges are not valid, or do not fit the bundle and the kept graph.
            DivergedError: Numbers stopped being finite.

        Examples:
            >>> context.update([7], [[0.5, 1.0]], edges=[[3, 8], [7, 7]]).predictions  # doctest: +SKIP
            array([1])
        """
        started = time.perf_counter()
        chosen = checks.integers("nodes", nodes).reshape(-1)
        checks.check_range("nodes", chosen, self.nodes, "ids")
        if len(np.unique(chosen)) != len(chosen):
            raise GraphError("nodes contains a node twice: give each node once")
        changed = self._graph(features, None)
        if changed.nodes != len(chosen):
            raise GraphError(f"features has {changed.nodes} rows, but there are {len(chosen)} nodes")
        row = np.full(self.nodes, -1)
        row[chosen] = np.arange(len(chosen))
        incoming = self._incoming(edges, row, len(chosen))
        with backend_errors():
            computed = self._compute(changed, incoming)
        self.kept.calls.replace(chosen, computed.sent)
        for kept, now in zip(self.kept.smoothed, computed.smoothed, strict=True):
            kept[chosen] = now
        ids = None if self.kept.ids is None else self.kept.ids[chosen]
        return self._result(computed, ids, started)

    def _graph(self, features: Any, ids: Any) -> Graph:
        graph = Graph(features, NO_EDGES, ids=ids)
        if graph.width != self.manifest.features:
            raise GraphError(
                f"the nodes have {graph.width} features and the bundle takes {self.manifest.features}"
            )
        return graph

    def _incoming(self, edges: Any, row: Integers, nodes: int) -> _Incoming:
        given = checks.array("edges", edges)
        hint = "; context.numbers(ids) gives the numbers of nodes" if given.dtype.kind in "UO" else ""
        if hint:
            raise GraphError(f"edges holds {short(given.dtype)}, not integers{hint}")
        pairs = NO_EDGES if not given.size else checks.integers("edges", given)
        if pairs.ndim != 2 or len(pairs) != 2:
            raise GraphError(f"edges has shape {list(pairs.shape)}, not [2, edges]")
        checks.check_range("edges", pairs, len(row), "ids")
        return _Incoming.of(pairs[0], pairs[1], row, nodes)

    def _compute(self, graph: Graph, incoming: _Incoming) -> _Computed:
        """Follow the nodes through all kept calls."""
        run, smoothed, sent = self._models.run, list[Floats](), list[Floats]()
        nodes = self._first(graph, incoming, smoothed)
        velocity = np.zeros_like(nodes)
        calls = self.kept.calls
        for call, rows in zip(calls.calls, calls.sent(incoming.kept.sources), strict=True):
            messages = run("message", {"nodes": nodes, **call.for_message})
            received = incoming.kept.sums(rows, incoming.nodes)
            if len(incoming.anew.sources):
                received += incoming.anew.sums(messages["sent"][incoming.anew.sources], incoming.nodes)
            found = run(
                "update",
                {
                    "nodes": nodes,
                    "previous_nodes_velocity": velocity,
                    "own": messages["own"],
                    "received": received,
                    "share": incoming.share,
                    **call.for_update,
                },
            )
            nodes, velocity = found["next_nodes"], found["nodes_velocity"]
            sent.append(messages["sent"])
        scores = run("head", {"nodes": nodes, "targets": self.kept.targets})["scores"]
        return _Computed(scores, sent, smoothed)

    def _first(self, graph: Graph, incoming: _Incoming, smoothed: list[Floats]) -> Floats:
        """The nodes at t = 0, after the smoothing. `smoothed` receives the scaled nodes before each round."""
        feeds = {"features": graph.rows(0, graph.nodes)}
        if self.kept.target_features is not None:
            feeds["target_features"] = self.kept.target_features
        nodes: Floats = self._models.run("encoder", feeds)["nodes"]
        root = np.sqrt(incoming.share)
        for kept in self.kept.smoothed:
            scaled = root * nodes
            smoothed.append(scaled)
            received = incoming.kept.sums(kept[incoming.kept.sources], incoming.nodes)
            received += incoming.anew.sums(scaled[incoming.anew.sources], incoming.nodes)
            nodes = root * (received + scaled)
        return nodes

    def _result(self, computed: _Computed, ids: Ids | None, started: float) -> Result:
        if not np.isfinite(computed.scores).all():
            raise DivergedError(
                "the scores of the nodes are not finite: check for features far larger than those of the "
                "training data"
            )
        timings = {"prepare": 0.0, "loop": time.perf_counter() - started, "head": 0.0}
        return replace(self.result, scores=computed.scores, ids=ids, timings=timings)


def check_can_remember(manifest: Manifest, *, by_row: bool) -> None:
    """Refuse a bundle whose answers for a node cannot be computed from a kept inference."""
    if manifest.level != "node":
        raise UsageError(
            f"the bundle predicts at the level {manifest.level!r}, and a context answers for nodes only"
        )
    if manifest.edge_weights:
        raise UsageError("the bundle uses edge weights, and its phases do not: run the grown graph instead")
    if not by_row:
        raise UsageError(
            "the encoder of this bundle places all nodes together (zero-shot), so a new node would move all "
            "others: run the grown graph instead"
        )
