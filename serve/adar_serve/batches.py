"""Small graphs that wait together are answered by one call."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from adar_runtime import Graph, Result, Solver, StopRule
from adar_runtime.backends.prepared_batch import LARGEST
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.errors import AdarError
from adar_serve.limits import Limits
from adar_serve.models import Model
from adar_serve.runs import Control, Runs

OnBatch = Callable[[Model, list[Result]], None]


@dataclass(frozen=True, eq=False)
class _Small:
    graph: Graph
    control: Control
    result: "Future[Result]" = field(default_factory=Future)


def is_small(graph: Graph | PreparedGraph, model: Model) -> TypeGuard[Graph]:
    """Whether a request brought the graph, and the batched cell of the model takes it."""
    return isinstance(graph, Graph) and graph.nodes <= LARGEST and model.bundle.small_graphs is not None


class Batches:
    """Joins small graphs with the same model and options.

    Args:
        runs: The threads of the server.
        limits: The limits.
        on_batch: Called with the results of each call.
    """

    def __init__(self, runs: Runs, limits: Limits, on_batch: OnBatch) -> None:
        self._runs, self._most, self._on_batch = runs, limits.batch, on_batch

    def takes(self, model: Model, graph: Graph | PreparedGraph) -> bool:
        """Whether the graph may share a call: it is small, and other requests run or wait."""
        return self._most > 1 and self._runs.admitted > 1 and is_small(graph, model)

    def join(self, model: Model, graph: Graph, options: dict[str, Any], control: Control) -> "Future[Result]":
        """Let the graph wait for others. The future gets its result or its error."""
        bundle, budget = model.bundle, options["budget"]
        bundle.check(graph)
        stop, solver = bundle.stop_rule(options["stop"]), bundle.solver(options["solver"], budget)
        small = _Small(graph, control)

        def together(entries: list[_Small]) -> None:
            try:
                self._run(model, entries, budget, stop, solver)
            except BaseException as error:  # the threads go on, and each request gets the error
                for entry in entries:
                    if not entry.result.done():
                        entry.result.set_exception(error)

        self._runs.join((model, *options.values()), small, together)
        return small.result

    def _run(self, model: Model, entries: list[_Small], budget: int, stop: StopRule, solver: Solver) -> None:
        small_graphs, controls = model.bundle.small_graphs, [entry.control for entry in entries]
        assert small_graphs is not None
        graphs = [entry.graph for entry in entries]
        found = small_graphs.run(graphs, budget, stop, solver, lambda index: controls[index].problem())
        self._on_batch(model, [each for each in found if isinstance(each, Result)])
        for entry, outcome in zip(entries, found, strict=True):
            if isinstance(outcome, AdarError):
                entry.result.set_exception(outcome)
            else:
                entry.result.set_result(outcome)
