"""Answers for new and changed nodes from one kept inference, without running the graph again."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adar_runtime import summaries
from adar_runtime.backends.onnxruntime.sessions import backend_errors
from adar_runtime.bundle import memory
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import DivergedError, GraphError, UsageError, short
from adar_runtime.evaluation.drift import compare_features
from adar_runtime.graph import FeatureEncoding, Floats, Graph, Ids, Integers
from adar_runtime.graph import _checks as checks
from adar_runtime.in_context.placement import Placement
from adar_runtime.interruption import interruption_point
from adar_runtime.loop.registry import is_count
from adar_runtime.loop.result import Result
from adar_runtime.phases.incoming import Incoming
from adar_runtime.phases.kept_calls import KeptCalls, row_width
from adar_runtime.phases.kept_edges import KeptEdges, most_edges
from adar_runtime.phases.models import PhaseModels, check_phases
from adar_runtime.phases.sharded_step import Arrays

NO_EDGES = np.zeros((2, 0), np.int64)
REBUILD_SHARE = 0.05
"""Share of new and changed nodes above which a context should be made again (benchmarks/scale.md)."""
HOPS = 2
"""How far kept nodes react to new nodes by default (benchmarks/scale.md has the agreement for 0 to 3)."""


class Kept(NamedTuple):
    """What a `Context` consists of."""

    calls: KeptCalls
    edges: KeptEdges
    encoded: Floats  # [n, d], the nodes after the encoder
    smoothed: list[Floats]  # scaled nodes before each round of smoothing
    targets: Floats  # [c, d], of the state that the answers come from
    target_features: Floats | None
    result: Result
    ids: Ids | None
    placement: Placement | None = None  # of a pretrained model
    encoding: FeatureEncoding | None = None  # of the table that the graph was made from


class Asked(NamedTuple):
    """The nodes that are computed anew: those that were asked for, then those that react to them."""

    features: Graph  # of the nodes that were asked for
    reacting: Integers  # numbers of nodes of the kept graph
    numbers: Integers  # of all of these nodes; those of new nodes come after the kept graph's
    incoming: Incoming


class _Computed(NamedTuple):
    """What the nodes of an `Asked` became."""

    scores: Floats  # of the nodes that were asked for
    encoded: Floats
    sent: list[Floats]  # of each call
    smoothed: list[Floats]  # of each round


class Context:
    """One kept inference, which answers for nodes that were not in the graph. `Bundle.remember` makes one.

    New nodes receive from the kept graph, and kept nodes within some hops of them react. Proxies, targets and
    all other nodes stay as they were. Threads can share a context, except for `update`, which changes it.

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
        kept = self.kept
        rows = kept.encoded.nbytes + sum(array.nbytes for array in kept.smoothed)
        placement = 0 if kept.placement is None else kept.placement.bytes
        return kept.calls.bytes + kept.edges.bytes + rows + placement

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

    def predict(self, features: Any, edges: Any = NO_EDGES, ids: Any = None, *, hops: int = HOPS) -> Result:
        """Answer for nodes that are not in the kept graph. The context does not change.

        Args:
            features: [k, f] finite numbers, the features of the new nodes.
            edges: [2, m] numbers of nodes, row 0 the sources, row 1 the targets. The new nodes have the
                numbers after those of the kept graph: n, n + 1, …
            ids: [k] ids of the new nodes, for the result.
            hops: How far kept nodes react: 1 for the nodes that receive from new nodes, 2 for those that
                receive from these, and so on. 0 leaves all kept nodes as they were; edges that end at kept
                nodes then have no effect. For each new node, nodes with 1,000 edges in all react, those with
                few edges first; at most 2,097,152 edges in one call.

        Returns:
            The answer for the new nodes, from the same time as that of the kept graph.

        Raises:
            GraphError: Features or edges are not valid, or do not fit the bundle and the kept graph.
            UsageError: `hops` is negative.
            DivergedError: Numbers stopped being finite.

        Examples:
            >>> context.predict([[0.5, 1.0]], edges=[[3, 8], [graph.nodes, graph.nodes]])  # doctest: +SKIP
        """
        started = time.perf_counter()
        new = self._graph(features, ids)
        pairs = self._pairs(edges, self.nodes + new.nodes)
        first = pairs[1][pairs[0] >= self.nodes]
        numbers = np.arange(self.nodes, self.nodes + new.nodes)
        asked = self._asked(new, numbers, pairs, first[first < self.nodes], hops)
        with backend_errors(), np.errstate(over="ignore", invalid="ignore"):
            computed = self._compute(asked, keep=False)
        return self._result(computed, new.ids, started)

    def update(self, nodes: Any, features: Any, edges: Any, *, hops: int = HOPS) -> Result:
        """Answer for nodes of the kept graph that changed, and keep what they and their neighbours send now.

        Later calls of `predict` and `update` use the changed nodes. Nodes that do not react stay as they
        were; `result` stays the answer for the graph as it was.

        Args:
            nodes: [k] numbers of the nodes that changed, each one once.
            features: [k, f] finite numbers, their features now.
            edges: [2, m] numbers of nodes, row 0 the sources, row 1 the targets: all edges that end at these
                nodes now. Edges that end at other nodes have no effect.
            hops: How far other nodes react, as in `predict`.

        Returns:
            The answer for these nodes.

        Raises:
            GraphError: Nodes, features or edges are not valid, or do not fit the bundle and the kept graph.
            UsageError: `hops` is negative.
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
        pairs = self._pairs(edges, self.nodes)
        pairs = pairs[:, np.isin(pairs[1], chosen)]
        asked = self._asked(changed, chosen, pairs, self.kept.edges.receivers(chosen), hops)
        with backend_errors(), np.errstate(over="ignore", invalid="ignore"):
            computed = self._compute(asked, keep=True)
        ids = None if self.kept.ids is None else self.kept.ids[chosen]
        result = self._result(computed, ids, started)  # raises an error before anything is replaced
        self._replace(chosen, pairs, asked, computed)
        return result

    def rebuild_reasons(self, features: Any) -> list[str]:
        """Say why the context should be made again, from the nodes that are new since it was made.

        Args:
            features: [k, f] features of all nodes that are new since then, or of a sample of them.

        Returns:
            Sentences: new and changed nodes are a large share of the kept graph, or the new nodes are unlike
            the training data. Empty if there is no reason.

        Raises:
            GraphError: Features are not valid, or do not fit the bundle.

        Examples:
            >>> context.rebuild_reasons(features)  # doctest: +SKIP
            []
        """
        new, changed, found = self._graph(features, None), self.kept.edges.changed, list[str]()
        share = (new.nodes + changed) / self.nodes
        if share > REBUILD_SHARE:
            found.append(
                f"{new.nodes:,} new and {changed:,} changed nodes are {share:.0%} of the nodes of the "
                f"context: above {REBUILD_SHARE:.0%}, make the context again (adar-deploy remember)"
            )
        drift = compare_features(self.manifest, new)
        return found + ([] if drift is None else drift.warnings(subject="the features of the new nodes are"))

    def _replace(self, chosen: Integers, pairs: Integers, asked: Asked, computed: _Computed) -> None:
        """Keep what changed and reacting nodes send now."""
        everywhere = np.concatenate([chosen, asked.reacting])
        self.kept.edges.replace(chosen, pairs)
        self.kept.encoded[chosen] = computed.encoded[: len(chosen)]
        self.kept.calls.replace(everywhere, computed.sent)
        for kept, now in zip(self.kept.smoothed, computed.smoothed, strict=True):
            kept[everywhere] = now

    def _graph(self, features: Any, ids: Any) -> Graph:
        graph = Graph(features, NO_EDGES, ids=ids)
        if graph.width != self._width:
            raise GraphError(f"the nodes have {graph.width} features and the context takes {self._width}")
        return graph

    def _pairs(self, edges: Any, nodes: int) -> Integers:
        given = checks.array("edges", edges)
        hint = "; context.numbers(ids) gives the numbers of nodes" if given.dtype.kind in "UO" else ""
        if hint:
            raise GraphError(f"edges holds {short(given.dtype)}, not integers{hint}")
        pairs = NO_EDGES if not given.size else checks.integers("edges", given)
        if pairs.ndim != 2 or len(pairs) != 2:
            raise GraphError(f"edges has shape {list(pairs.shape)}, not [2, edges]")
        checks.check_range("edges", pairs, nodes, "ids")
        return pairs

    def _asked(self, graph: Graph, numbers: Integers, pairs: Integers, first: Integers, hops: int) -> Asked:
        """Add the nodes that react, which `first` are the nearest ones of, and the edges that they have."""
        if not is_count(hops, 0):
            raise UsageError(f"hops is {short(hops)}, but it must be an integer of 0 or more")
        kept = self.kept.edges
        reacting = kept.reacting(first, numbers, hops, most_edges(graph.nodes))
        pairs = np.concatenate([pairs, kept.ending_at(reacting)], axis=1)
        every = np.concatenate([numbers, reacting])
        return Asked(graph, reacting, every, Incoming.of(pairs, every))

    def _compute(self, asked: Asked, *, keep: bool) -> _Computed:
        """Follow the nodes through all kept calls. `keep` keeps what they send, for an update."""
        self._check_memory(asked, keep=keep)
        run, smoothed, sent = self._models.run, list[Floats](), list[Floats]()
        incoming = asked.incoming
        encoded = np.concatenate([self._encoded(asked.features), self.kept.encoded[asked.reacting]])
        nodes = self._placed(self._rounds(encoded, incoming, smoothed), asked)
        of_nodes = self._of_nodes(asked)
        velocity = np.zeros_like(nodes)
        calls = self.kept.calls
        for call, rows in zip(calls.calls, calls.sent(incoming.kept.sources), strict=True):
            interruption_point()
            messages = run("message", {"nodes": nodes, **of_nodes, **call.for_message})
            received = incoming.kept.sums(rows)
            if len(incoming.anew.sources):
                received += incoming.anew.sums(messages["sent"][incoming.anew.sources])
            found = run(
                "update",
                {
                    "nodes": nodes,
                    "previous_nodes_velocity": velocity,
                    "own": messages["own"],
                    **of_nodes,
                    **self._received(received, messages["own"]),
                    "share": incoming.share,
                    **call.for_update,
                },
            )
            nodes, velocity = found["next_nodes"], found["nodes_velocity"]
            if keep:
                sent.append(messages["sent"])
        feeds = {"nodes": nodes[: asked.features.nodes], "targets": self.kept.targets}
        return _Computed(run("head", feeds)["scores"], encoded, sent, smoothed)

    def _check_memory(self, asked: Asked, *, keep: bool) -> None:
        """Refuse nodes that do not fit into the free memory."""
        manifest, calls, classes = self.manifest, self.kept.calls, self.kept.result.scores.shape[1]
        row, d = row_width(manifest, classes), manifest.hidden
        of_node = manifest.proxies + classes + 10 * row + 2 * d * len(self.kept.smoothed)
        if manifest.in_context:
            of_node += memory.GATES + 10 * classes
        if keep:
            of_node += row * len(calls)
        edges = len(asked.incoming.kept.sources) + len(asked.incoming.anew.sources)
        numbers = of_node * len(asked.numbers) + self._width * asked.features.nodes + 2 * row * edges
        memory.check_numbers(numbers, "the answer for these nodes")

    @property
    def _width(self) -> int:
        """Columns of the features of new nodes."""
        return self.manifest.features

    def _of_nodes(self, _asked: Asked) -> Arrays:
        """What the phases take of the nodes beside their state."""
        return {}

    def _received(self, rows: Floats, _own: Floats) -> Arrays:
        """What `update` takes of the sums over neighbours."""
        return {"received": rows}

    def _encoded(self, graph: Graph) -> Floats:
        """New nodes after the encoder."""
        feeds = {"features": graph.rows(0, graph.nodes)}
        if self.kept.target_features is not None:
            feeds["target_features"] = self.kept.target_features
        nodes: Floats = self._models.run("encoder", feeds)["nodes"]
        return nodes

    def _placed(self, rounds: Iterator[Floats], _asked: Asked) -> Floats:
        """The nodes at t = 0, from the nodes before and after each round of smoothing."""
        *_, last = rounds
        return last

    def _rounds(self, nodes: Floats, incoming: Incoming, smoothed: list[Floats]) -> Iterator[Floats]:
        """Smooth the nodes. `smoothed` receives the scaled nodes before each round."""
        root = np.sqrt(incoming.share)
        yield nodes
        for kept in self.kept.smoothed:
            scaled = root * nodes
            smoothed.append(scaled)
            received = incoming.kept.sums(kept[incoming.kept.sources])
            received += incoming.anew.sums(scaled[incoming.anew.sources])
            nodes = root * (received + scaled)
            interruption_point()
            yield nodes

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
    check_phases(manifest)
    if not by_row:
        raise UsageError(
            "the encoder of this bundle places all nodes together (zero-shot), so a new node would move all "
            "others: run the grown graph instead"
        )
