"""Run small graphs of a bundle in batches: one call of the batched cell moves many graphs."""

import time
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from adar_runtime.backends.prepared_batch import AT_ONCE, LARGEST, PreparedBatch, batches
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle import known_models, onnx_guard, signature
from adar_runtime.bundle.label_checks import Scores, prepare_many
from adar_runtime.bundle.manifest import BATCHED_CELL
from adar_runtime.bundle.signature import Ports
from adar_runtime.errors import AdarError
from adar_runtime.graph import Graph
from adar_runtime.in_context.label_check import STEPS
from adar_runtime.loop.checks import check_budget, check_kind
from adar_runtime.loop.solvers import Euler, Solver
from adar_runtime.loop.stopping import Final, StopRule
from adar_runtime.loop.together import Batch, Outcome, Problem, Settings, run_together

if TYPE_CHECKING:
    from adar_runtime.bundle.bundle import Bundle

PADDED_TARGETS = 8  # graphs with at most this many classes share a batch of a pretrained model


@runtime_checkable
class Batching(Protocol):
    """A backend that runs batches of small graphs."""

    def open_batched_cell(self, content: bytes) -> Ports:
        """Open the batched cell of the bundle, and return its actual inputs and outputs."""
        ...

    def start_batch(self, prepared: PreparedBatch) -> Batch:
        """Encode the graphs of a batch: their states at t = 0."""
        ...


class SmallGraphs:
    """The batched cell of a bundle. It is opened by `open` or when it is first used. Threads can share it."""

    def __init__(self, bundle: "Bundle", backend: Batching, *, known: bool) -> None:
        # Not the bundle itself: a circle of references would keep its sessions and their threads alive.
        self._path, self._manifest, self._by_row = bundle.path, bundle.manifest, bundle.by_row
        self._known = known
        self._backend = backend
        self._opening, self._is_open = Lock(), False

    @classmethod
    def of(cls, bundle: "Bundle", *, known: bool) -> "SmallGraphs | None":
        """None if the bundle has no batched cell, or its backend does not run batches.

        `known`: this process made the models, so that the batched cell needs no check.
        """
        if bundle.manifest.batched_cell is None or not isinstance(bundle.backend, Batching):
            return None
        return cls(bundle, bundle.backend, known=known)

    def run(
        self,
        graphs: Sequence[Graph],
        budget: int,
        stop: StopRule,
        solver: Solver,
        problem: Problem | None = None,
    ) -> list[Outcome]:
        """Run graphs of at most LARGEST nodes that fit the bundle.

        Args:
            graphs: The graphs.
            budget: Euler steps in the total time.
            stop: The stop rule. Each graph uses a copy.
            solver: The solver.
            problem: Called before each step with the index of a graph: why to stop it, or None.

        Returns:
            For each graph its result, or the error that stopped it. Other graphs are not affected.
        """
        self.open()
        budget = check_budget(budget)
        check_kind("stop", stop, StopRule, "a rule, such as bundle.stop_rule('peak')")
        check_kind("solver", solver, Solver, "a solver, such as bundle.solver('ab2')")
        settings = Settings(self._manifest, budget, stop, solver)
        found: dict[int, Outcome] = {}
        run = self._run_placed if self._manifest.in_context else self._run_batch
        for batch in self._batches(graphs):
            asking = _at(problem, batch)
            found |= zip(batch, run([graphs[index] for index in batch], settings, asking), strict=True)
        return [found[index] for index in range(len(graphs))]

    def _run_batch(
        self, graphs: Sequence[Graph], settings: Settings, problem: Problem | None
    ) -> list[Outcome]:
        started = time.perf_counter()
        prepared = PreparedBatch.of(graphs, self._manifest, by_row=self._by_row)
        together = self._backend.start_batch(prepared)
        return run_together(together, graphs, settings, time.perf_counter() - started, problem)

    def _run_placed(
        self, graphs: Sequence[Graph], settings: Settings, problem: Problem | None
    ) -> list[Outcome]:
        """Run graphs of a pretrained model, which places each graph by itself."""
        started = time.perf_counter()
        prepared = prepare_many(graphs, self._manifest, self.scores_of_parts, problem, by_row=self._by_row)
        ready = [i for i, each in enumerate(prepared) if isinstance(each, PreparedGraph)]
        found: dict[int, Outcome] = {
            i: each for i, each in enumerate(prepared) if isinstance(each, AdarError)
        }
        if ready:
            placed = [each for each in prepared if isinstance(each, PreparedGraph)]
            together = self._backend.start_batch(PreparedBatch.of_placed(placed, self._manifest))
            seconds, checks = time.perf_counter() - started, [each.check for each in placed]
            chosen, asking = [graphs[index] for index in ready], _at(problem, ready)
            results = run_together(together, chosen, settings, seconds, asking, checks)
            found |= zip(ready, results, strict=True)
        return [found[index] for index in range(len(graphs))]

    def scores_of_parts(
        self, parts: Sequence[PreparedGraph], problem: Problem | None
    ) -> list[Scores | AdarError]:
        """Run small graphs with hidden labels, for the label check of a pretrained model.

        Args:
            parts: The graphs.
            problem: Called before each step with the index of a part: why to stop it, or None.

        Returns:
            For each part its scores with each strength, or the error that stopped it.
        """
        self.open()
        settings = Settings(self._manifest, STEPS, Final(), Euler())
        found: dict[int, Scores | AdarError] = {}
        largest = max((part.targets for part in parts), default=1)
        for batch in batches([part.graph for part in parts], max(largest, self._manifest.proxies)):
            chosen = [parts[index] for index in batch]
            together = self._backend.start_batch(PreparedBatch.of_placed(chosen, self._manifest))
            first = [together.scores(position, kept=False) for position in range(len(batch))]
            graphs = [part.graph for part in chosen]
            moved = run_together(together, graphs, settings, 0.0, _at(problem, batch))
            for index, outcome, still in zip(batch, moved, first, strict=True):
                if isinstance(outcome, AdarError):
                    found[index] = outcome
                else:
                    found[index] = {1.0: outcome.scores, 0.0: still}
        return [found[index] for index in range(len(parts))]

    def _batches(self, graphs: Sequence[Graph]) -> list[list[int]]:
        """The indices of the graphs of each batch.

        All graphs of a batch describe equally many targets. A pretrained model pads them: there, the largest
        number is at most twice the smallest, or eight.
        """
        kinds: dict[int, list[int]] = {}  # by the number of targets, or by a power of two
        for index, graph in enumerate(graphs):
            kind = self._manifest.targets or graph.targets
            if self._manifest.in_context:
                kind = 1 << (max(kind, PADDED_TARGETS) - 1).bit_length()
            kinds.setdefault(kind, []).append(index)
        return [
            [members[position] for position in batch]
            for kind, members in kinds.items()
            for batch in batches([graphs[index] for index in members], max(kind, self._manifest.proxies))
        ]

    def open(self) -> None:
        """Read, check and open the batched cell, once.

        Raises:
            BundleError: The file of the batched cell is missing, was changed, or has an unknown model.
        """
        with self._opening:
            if self._is_open:
                return
            manifest = self._manifest
            assert manifest.batched_cell is not None
            content = onnx_guard.read_onnx_file(self._path, manifest.batched_cell)
            if not self._known:
                known_models.check(manifest, {BATCHED_CELL: content})
            signature.check(manifest, {BATCHED_CELL: self._backend.open_batched_cell(content)})
            self._is_open = True


def _at(problem: Problem | None, batch: Sequence[int]) -> Problem | None:
    """The same question about the graphs of a batch, by their position in it."""
    return None if problem is None else lambda position: problem(batch[position])


def outcomes(
    bundle: "Bundle", graphs: Iterable[Graph | AdarError], budget: int, stop: StopRule, solver: Solver
) -> Iterator[Outcome]:
    """Run graphs, small ones in batches. Yield for each graph its result, or the error that stopped it.

    Args:
        bundle: The bundle. Without a batched cell, graphs run one by one.
        graphs: The graphs, which may come from a generator. A graph that could not be read is its error.
        budget: Euler steps in the total time.
        stop: The stop rule. Each graph uses a copy.
        solver: The solver.
    """
    batched = bundle.small_graphs
    for group in groups(graphs):
        problems = [_problem(bundle, graph) for graph in group]
        both = zip(group, problems, strict=True)
        fitting = [graph for graph, problem in both if isinstance(graph, Graph) and problem is None]
        if batched is None or len(fitting) < 2:
            found = iter([_alone(bundle, graph, budget, stop, solver) for graph in fitting])
        else:
            found = iter(batched.run(fitting, budget, stop, solver))
        for problem in problems:
            yield next(found) if problem is None else problem


def _problem(bundle: "Bundle", graph: Graph | AdarError) -> AdarError | None:
    if isinstance(graph, AdarError):
        return graph
    try:
        bundle.check(graph)
    except AdarError as error:
        return error
    return None


def _alone(bundle: "Bundle", graph: Graph, budget: int, stop: StopRule, solver: Solver) -> Outcome:
    try:
        return bundle.run(graph, budget, stop, solver)
    except AdarError as error:
        return error


def groups(graphs: Iterable[Graph | AdarError]) -> Iterator[list[Graph | AdarError]]:
    """Collect small graphs that are run together. A larger graph is alone. The order stays the same.

    If the iterable raises an exception, the graphs before it come first.
    """
    group: list[Graph | AdarError] = []
    nodes, source = 0, iter(graphs)
    while True:
        try:
            graph = next(source, None)
        except BaseException:
            if group:
                yield group
            raise
        size = graph.nodes if isinstance(graph, Graph) else 0
        is_small = size <= LARGEST and graph is not None
        if group and (not is_small or nodes >= AT_ONCE):
            yield group
            group, nodes = [], 0
        if graph is None:
            return
        if not is_small:
            yield [graph]
            continue
        group.append(graph)
        nodes += size
