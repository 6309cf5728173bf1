"""What HTTP and gRPC share: models, graphs that stay, runs, and one inference from request to answer."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from adar_runtime import AdarError, Graph, Result, Step
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.errors import UsageError, short
from adar_runtime.graph import MASKS
from adar_runtime.graph.formats import read_npz
from adar_runtime.loop.registry import is_count
from adar_runtime.loop.solvers import DEFAULT_SOLVER
from adar_serve.graph_store import GraphStore, StoredGraph
from adar_serve.limits import MIB, Limits
from adar_serve.messages import Answer, Arrays, InferRequest
from adar_serve.metrics import Metrics
from adar_serve.models import NAME, Model, Models
from adar_serve.refusals import RefusedError, refusal
from adar_serve.request_log import RequestLog
from adar_serve.runs import Control, Runs
from adar_serve.tokens import Tokens

PARAMETERS = ("max_steps", "exit", "solver", "graph", "binary_data_output")
"""The parameters of a request for inference."""

ZIP = b"PK"  # how a .npz file begins

T = TypeVar("T")
Facts = dict[str, Any]  # what the log says about a request
OnStep = Callable[[Step], None]


class Service:
    """A server without its network.

    Args:
        models: The models to offer.
        limits: The limits.
        max_steps: The budget of requests that name none.
        tokens: The accepted tokens.
        log: The log of requests.
    """

    def __init__(
        self,
        models: Models,
        limits: Limits,
        max_steps: int = 300,
        tokens: Tokens | None = None,
        log: RequestLog | None = None,
    ) -> None:
        if not 1 <= max_steps <= limits.steps:
            raise UsageError(f"--max-steps is {max_steps}: choose 1 to {limits.steps:,} (--limit-steps)")
        self.models, self.limits, self.max_steps = models, limits, max_steps
        self.tokens, self.log = tokens or Tokens(), log or RequestLog()
        self.graphs, self.runs = GraphStore(limits), Runs(limits)
        self.draining = False
        self.metrics = Metrics(
            {
                "adar_running": ("Requests that run.", lambda: self.runs.running),
                "adar_waiting": ("Requests that wait.", lambda: self.runs.waiting),
                "adar_graphs": ("Graphs that stay on the server.", lambda: len(self.graphs.list())),
                "adar_graphs_bytes": (
                    "Memory of the graphs that stay.",
                    lambda: sum(each.bytes for each in self.graphs.list()),
                ),
            }
        )

    def server_metadata(self) -> dict[str, Any]:
        """What the protocol tells about the server."""
        return {
            "name": "adar-deploy",
            "version": version("adar-deploy"),
            "extensions": ["binary_tensor_data"],
        }

    async def infer(
        self,
        model: Model,
        read: Callable[[], InferRequest],
        write: Callable[[InferRequest, Answer], T],
        facts: Facts,
        on_step: OnStep | None = None,
    ) -> T:
        """Answer a request. `read` parses it and `write` encodes the answer, both in the thread."""
        return await self.runs.run(lambda control: write(*self._infer(model, read, facts, control)), on_step)

    def _infer(
        self, model: Model, read: Callable[[], InferRequest], facts: Facts, control: Control
    ) -> tuple[InferRequest, Answer]:
        queue, started = time.monotonic() - control.queued, time.monotonic()
        try:
            request = read()
            model.check_inputs(request.inputs, self.limits)
            options = self._options(request)
            self._check_outputs(model, request)
            graph = self._graph(model, request)
            facts |= _sizes(graph)
            reading = time.monotonic() - started
            control.check()
            result = control.drive(model.bundle.loop(graph, **options))
            self.metrics.count_run(model.name, result, queue, reading)
            facts |= {"cell_calls": result.cell_calls, "stop_reason": result.stop_reason.name.lower()}
            facts |= {"queue_seconds": round(queue, 6), "run_seconds": round(result.seconds, 6)}
            return request, self._answer(model, request, result)
        except AdarError as error:
            raise self._refusal(error, facts) from error

    def _refusal(self, error: AdarError, facts: Facts) -> RefusedError:
        facts["reason"] = str(error)
        return refusal(error)

    def _options(self, request: InferRequest) -> dict[str, Any]:
        """Budget, stop rule and solver."""
        for name in request.parameters:
            if name not in PARAMETERS:
                raise RefusedError(
                    400, f"unknown parameter {short(name)!r}: the parameters are {', '.join(PARAMETERS)}"
                )
        budget = request.parameters.get("max_steps", self.max_steps)
        if not is_count(budget, 1) or budget > self.limits.steps:
            raise RefusedError(400, f"max_steps is {short(budget)}: choose 1 to {self.limits.steps:,}")
        texts = {name: request.parameters.get(name) for name in ("exit", "solver", "graph")}
        for name, value in texts.items():
            if value is not None and not isinstance(value, str):
                raise RefusedError(400, f"{name} is {short(value)}, not a name")
        return {"budget": budget, "stop": texts["exit"], "solver": texts["solver"] or DEFAULT_SOLVER}

    def _check_outputs(self, model: Model, request: InferRequest) -> None:
        known = [port.name for port in model.outputs]
        for name in request.outputs:
            if name not in known:
                raise RefusedError(
                    400, f"the model has no output {short(name)!r}: its outputs are {', '.join(known)}"
                )

    def _graph(self, model: Model, request: InferRequest) -> Graph | PreparedGraph:
        name = request.parameters.get("graph")
        if name is None:
            return model.graph(request.inputs)
        return model.with_inputs(self.graphs.use(name, model).prepared, request.inputs)

    def _answer(self, model: Model, request: InferRequest, result: Result) -> Answer:
        if "nodes" in request.inputs:
            nodes = request.inputs["nodes"]
            if nodes.dtype.kind not in "iu":
                raise RefusedError(400, "nodes holds numbers that are not integers: send INT64")
            if nodes.size and not 0 <= int(nodes.min()) <= int(nodes.max()) < len(result.scores):
                raise RefusedError(400, f"nodes must be row numbers of x, 0 to {len(result.scores) - 1}")
            result = result.select(nodes)
        outputs = model.arrays(result)
        chosen: Arrays = {name: outputs[name] for name in request.outputs or outputs}
        facts = {"stop_reason": result.stop_reason.name.lower(), "cell_calls": result.cell_calls}
        facts |= {"best_time": result.best_time, "max_steps": result.budget}
        return Answer(model.name, model.version, request.id, chosen, facts)

    async def put_graph(
        self, name: str, model: Model, read: Callable[[], InferRequest | bytes], facts: Facts
    ) -> StoredGraph:
        """Prepare a graph and keep it. `read` returns tensors, or the bytes of a `.npz` file."""
        if not NAME.fullmatch(name):
            raise RefusedError(
                400, "a graph's name has at most 64 letters, digits, '_', '-' and '.', and begins with "
                "a letter or digit"
            )  # fmt: skip

        def work(control: Control) -> StoredGraph:
            try:
                content = read()
                if isinstance(content, bytes):
                    graph = read_file(content, self.limits)
                else:
                    model.check_inputs(content.inputs, self.limits)
                    graph = model.graph(content.inputs)
                model.check_graph(graph, self.limits)
                control.check()
                stored = StoredGraph(name, model, model.bundle.prepare(_for_runs(graph)))
                evicted = self.graphs.put(stored)
            except AdarError as error:
                raise self._refusal(error, facts) from error
            facts.update(_sizes(graph), graph=name, evicted=evicted or None)
            return stored

        return await self.runs.run(work)

    def close(self) -> None:
        """Accept no more work."""
        self.runs.close()


def _sizes(graph: Graph | PreparedGraph) -> Facts:
    found = graph.graph if isinstance(graph, PreparedGraph) else graph
    return {"nodes": found.nodes, "edges": found.edges}


def _for_runs(graph: Graph) -> Graph:
    """The graph without what no run uses, so that it takes no memory."""
    unused: dict[str, Any] = dict.fromkeys(("labels", *MASKS, "ids", "class_names"))
    return replace(graph, **unused)


def read_file(content: bytes, limits: Limits) -> Graph:
    """The graph in the bytes of a `.npz` file. The reader checks the file, which has to be on a disk."""
    with tempfile.TemporaryDirectory(prefix="adar-serve-") as folder:
        path = Path(folder) / "graph.npz"
        path.write_bytes(content)
        return read_npz(path, limits.unpacked * MIB)
