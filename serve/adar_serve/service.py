"""What HTTP and gRPC share: models, graphs that stay, runs, and one inference from request to answer."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from adar_runtime import AdarError, Graph, Result, Step
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.errors import BundleError, UsageError
from adar_runtime.graph import MASKS
from adar_runtime.graph.formats import read_npz
from adar_serve.batches import Batches, is_small
from adar_serve.bodies import Bodies
from adar_serve.drift_watch import DriftWatch
from adar_serve.graph_store import GraphFacts, GraphStore, of_other_model
from adar_serve.inference import OPTIONS, answer, check_request, name_in, run_options, whole
from adar_serve.isolation import Isolation
from adar_serve.limits import MIB, Limits
from adar_serve.messages import Answer, InferRequest
from adar_serve.metrics import Metrics
from adar_serve.models import NAME, Model, Models
from adar_serve.peers import Parent
from adar_serve.refusals import RefusedError, files_changed, refusal
from adar_serve.request_log import RequestLog
from adar_serve.runs import Control, Joined, Runs, Work, at_once
from adar_serve.snapshots import Snapshot
from adar_serve.statistics import Statistics, response
from adar_serve.tokens import Tokens

PARAMETERS = (*OPTIONS, "graph", "binary_data_output")
"""The parameters of a request for inference."""

QUICK = 2**21  # nodes × hidden² of a graph that may run in the event loop
QUICK_ANSWER = 2**14  # scores that are written in some milliseconds
ZIP = b"PK"  # how a .npz file begins

T = TypeVar("T")
Facts = dict[str, Any]  # what the log says about a request
OnStep = Callable[[Step], None]


class Waited(NamedTuple):
    """When a request arrived, and the seconds that it waited in the queue and took to read."""

    queued: float
    queue: float
    read: float


class Service:
    """A server without its network.

    Args:
        models: The models to offer.
        limits: The limits.
        max_steps: The budget of requests that name none.
        tokens: The accepted tokens.
        log: The log of requests.
        model_control: Whether clients may load and unload models.
        isolation: The child processes that run graphs; None runs them in threads.
        graphs: The graphs that stay; None keeps them in the memory of this process.
        parent: The parent process, if this is one of several workers. It asks all of them.
        no_graphs: The option because of which no graph can stay on the server.
    """

    def __init__(
        self,
        models: Models,
        limits: Limits,
        max_steps: int = 300,
        tokens: Tokens | None = None,
        log: RequestLog | None = None,
        *,
        model_control: bool = False,
        isolation: Isolation | None = None,
        graphs: GraphStore | None = None,
        parent: Parent | None = None,
        no_graphs: str | None = None,
    ) -> None:
        if not 1 <= max_steps <= limits.steps:
            raise UsageError(f"--max-steps is {max_steps}: choose 1 to {limits.steps:,} (--limit-steps)")
        self.models, self.limits, self.max_steps = models, limits, max_steps
        self.tokens, self.log = tokens or Tokens(), log or RequestLog()
        self.graphs, self.runs = graphs or GraphStore(limits), Runs(limits)
        self.bodies = Bodies(limits)
        self._no_graphs = no_graphs if isolation is None else "--isolate"
        self._parent, self._fresh = parent, dict[str, list[Model]]()
        self.draining, self.model_control, self._isolation = False, model_control, isolation
        self.statistics, self._reloading = Statistics(), asyncio.Lock()
        self._batches = Batches(self.runs, limits, self.statistics.count_execution)
        self.metrics = Metrics(
            {
                "adar_running": ("Requests that run.", lambda: self.runs.running),
                "adar_waiting": ("Requests that wait.", lambda: self.runs.waiting),
                "adar_graphs": ("Graphs that stay on the server.", lambda: len(self.graphs.all())),
                "adar_graphs_bytes": (
                    "Memory of the graphs that stay.",
                    lambda: sum(each.bytes for each in self.graphs.all()),
                ),
            }
        )
        self._drift = DriftWatch(self.metrics)

    def server_metadata(self) -> dict[str, Any]:
        """What the protocol tells about the server."""
        return {
            "name": "adar-deploy",
            "version": version("adar-deploy"),
            "extensions": ["binary_tensor_data", "model_repository", "statistics"],
        }

    async def infer(
        self,
        model: Model,
        read: Callable[[], InferRequest],
        write: Callable[[InferRequest, Answer], T],
        facts: Facts,
        on_step: OnStep | None = None,
        *,
        here: bool = False,
    ) -> T:
        """Answer a request. `read` parses it and `write` encodes the answer, both in a thread.

        `here`: they take little time, and may run in the event loop if no other request is there.
        """

        def work(control: Control) -> "Work[T | Joined[T]]":  # not evaluated for each request
            queue = time.monotonic() - control.queued
            request = read()
            check_request(model, request, self.limits, PARAMETERS)
            options = run_options(request, self.limits, self.max_steps)
            if "graph" in request.parameters:
                yield True
            graph = self._graph(model, request)
            facts.update(_sizes(graph))
            if not _is_quick(model, graph):
                yield True
            waited = Waited(control.queued, queue, time.monotonic() - control.queued - queue)
            control.check()

            def finish(result: Result, *, alone: bool = False) -> T:
                self.count(model, result, waited, facts, control, alone=alone)
                return write(request, answer(model, request, result))

            if self._isolation is not None:
                assert isinstance(graph, Graph)  # `put_graph` keeps none
                result = self._isolation.run(model, graph, options, control)
            elif on_step is None and isinstance(graph, Graph) and self._batches.takes(model, graph):
                return Joined(self._batches.join(model, graph, options, control), finish)
            else:
                result = yield from control.steps(model.bundle.loop(graph, **options))
                yield result.scores.size > QUICK_ANSWER
            return finish(result, alone=True)

        here = here and on_step is None and self._isolation is None
        return await self.counted(model, self.runs.run(work, on_step, here=here), facts)

    async def counted(self, model: Model, running: Coroutine[Any, Any, T], facts: Facts) -> T:
        """Wait for the run of an inference, and count its failure. Its error is explained here."""
        started = time.monotonic()
        try:
            with self._explained(facts):
                return await running
        except BaseException:
            self.statistics.count_failure(model, time.monotonic() - started)
            raise

    def count(
        self, model: Model, result: Result, waited: Waited, facts: Facts, control: Control, *, alone: bool
    ) -> None:
        """Tell the log about an answer, and count it after it is sent. `alone`: it did not share its call."""
        seconds = time.monotonic() - waited.queued
        facts |= {"cell_calls": result.cell_calls, "stop_reason": result.stop_reason.name.lower()}
        facts |= {"queue_seconds": round(waited.queue, 6), "run_seconds": round(result.seconds, 6)}
        facts["drift"] = self._drift.look(model.name, result)

        def after() -> None:
            if alone:
                self.statistics.count_execution(model, [result])
            self.statistics.count_success(model, seconds, waited.queue, waited.read, result)
            self.metrics.count_run(model.name, result, waited.queue, waited.read)

        control.after = after

    @contextmanager
    def _explained(self, facts: Facts) -> Iterator[None]:
        """Turn an error of the runtime into a refusal, and write its reason to the log."""
        try:
            yield
        except AdarError as error:
            facts.setdefault("reason", str(error))
            # A loaded model reads its bundle again for its phases only.
            raise (files_changed() if isinstance(error, BundleError) else refusal(error)) from error

    def _graph(self, model: Model, request: InferRequest) -> Graph | PreparedGraph:
        name = name_in(request, "graph")
        if name is None:
            return model.graph(request.inputs)
        return model.with_inputs(self.graphs.use(name, model).prepared, request.inputs)

    async def put_graph(
        self, name: str, model: Model, read: Callable[[], InferRequest | bytes], facts: Facts
    ) -> GraphFacts:
        """Prepare a graph and keep it. `read` returns tensors, or the bytes of a `.npz` file."""
        if self._no_graphs is not None:
            raise RefusedError(
                403, f"the server was started with {self._no_graphs}: send the graph with each request"
            )
        if not NAME.fullmatch(name):
            raise RefusedError(
                400, "a graph's name has at most 64 letters, digits, '_', '-' and '.', and begins with "
                "a letter or digit"
            )  # fmt: skip

        def work(control: Control) -> GraphFacts:
            with self._explained(facts):
                content = read()
                if isinstance(content, bytes):
                    graph = read_file(content, self.limits)
                else:
                    model.check_inputs(content.inputs, self.limits)
                    graph = model.graph(content.inputs)
                model.check_graph(graph, self.limits)
                control.check()
                stored, evicted = self.graphs.add(name, model, _for_runs(graph, model))
            facts.update(_sizes(graph), graph=name, evicted=evicted or None)
            return stored

        return await self.runs.run(at_once(work))

    async def score_nodes(
        self,
        name: str,
        read: Callable[[], InferRequest],
        write: Callable[[InferRequest, Answer], T],
        facts: Facts,
    ) -> T:
        """Answer for new or changed nodes of a graph that stays, from a kept inference of the graph."""
        self.graphs.facts(name)  # an unknown name is refused before the request waits

        def work(control: Control) -> T:
            with self._explained(facts):
                stored, request = self.graphs.use(name), read()
                current = self.models.find(stored.model.name, stored.model.version)
                if stored.model is not current:  # it was loaded again while the graph was prepared
                    raise of_other_model(stored.facts, current)
                check_request(stored.model, request, self.limits, OPTIONS)
                options = run_options(request, self.limits, self.max_steps)
                result = stored.score(request.inputs, options, self.graphs.limit, control.check)
                self.graphs.account(stored)  # it may need more memory now
                facts.update(graph=name, nodes=len(result.scores))
                return write(request, answer(stored.model, whole(request), result))

        return await self.runs.run(at_once(work))

    async def reload(self, name: str, facts: Facts) -> None:
        """Load all versions of a model again. On failure, the versions that were loaded stay."""
        if self._parent is not None:
            await self._parent.call("reload", name=name)
            return
        async with self._reloading:
            await self.open(name, facts)
            self.exchange(name)

    async def open(self, name: str, facts: Facts) -> list[str]:
        """Load all versions of a model beside those that are in use. Returns the checksums of manifests."""
        try:
            self._fresh[name] = await asyncio.to_thread(self.models.opened, name)
        except AdarError as error:
            refused = refusal(error)
            facts.setdefault("reason", str(error))
            self.log.write("reload failed", model=name, reason=facts["reason"])
            message = f"the model {name} was not changed: {refused.message}"
            raise RefusedError(refused.status, message) from error
        return [each.bundle.manifest.checksum for each in self._fresh[name]]

    def exchange(self, name: str) -> None:
        """Use the versions that `open` loaded."""
        fresh = self._fresh.pop(name)
        self._forget_graphs(self.models.replace(fresh))
        self.log.write("reloaded", model=name, versions=[each.version for each in fresh])

    def discard(self, name: str) -> None:
        """Do not use the versions that `open` loaded: another worker could not load them."""
        self._fresh.pop(name, None)

    async def reload_all(self) -> None:
        """Load all models again. The log says which ones failed."""
        for name in self.models.names:
            with suppress(RefusedError):
                await self.reload(name, {})

    async def unload(self, name: str) -> None:
        """Take a model out of service."""
        self.models.find(name)  # an unknown name is refused before other workers are asked
        if self._parent is not None:
            await self._parent.call("unload", name=name)
        else:
            self.withdraw(name)

    def withdraw(self, name: str) -> None:
        """Take a model out of service, in this process."""
        self._forget_graphs(self.models.unload(name))
        self.log.write("unloaded", model=name)

    def own_snapshot(self) -> Snapshot:
        """Metrics and statistics of this process."""
        return {"metrics": self.metrics.families(), "statistics": self.statistics.all()}

    async def snapshot(self) -> Snapshot:
        """Metrics and statistics of all workers."""
        return self.own_snapshot() if self._parent is None else await self._parent.call("snapshots")

    async def model_statistics(self, models: Sequence[Model]) -> dict[str, Any]:
        """The response of the statistics calls."""
        return response((await self.snapshot())["statistics"], models)

    def check_control(self) -> None:
        """Refuse clients that want to change the models of a server that does not allow it."""
        if not self.model_control:
            raise RefusedError(403, "the server was started without --model-control: its models stay")

    def _forget_graphs(self, models: Sequence[Model]) -> None:
        for each in self.graphs.all():
            if any(each.is_of(model) for model in models):
                with suppress(RefusedError):  # another worker was faster
                    self.graphs.remove(each.name)

    def close(self) -> None:
        """Accept no more work."""
        self.runs.close()


def _is_quick(model: Model, graph: Graph | PreparedGraph) -> bool:
    """Whether a cell call of the graph takes about a millisecond or less."""
    return is_small(graph, model) and graph.nodes * model.bundle.manifest.hidden**2 <= QUICK


def _sizes(graph: Graph | PreparedGraph) -> Facts:
    found = graph.graph if isinstance(graph, PreparedGraph) else graph
    return {"nodes": found.nodes, "edges": found.edges}


def _for_runs(graph: Graph, model: Model) -> Graph:
    """The graph without what no run uses, so that it takes no memory. A pretrained model uses labels."""
    unused: dict[str, Any] = dict.fromkeys(("labels", *MASKS, "ids", "class_names"))
    if model.bundle.manifest.in_context and graph.train_mask is not None:
        unused |= {"labels": graph.labels, "train_mask": graph.train_mask[:1]}
    return replace(graph, **unused)


def read_file(content: bytes, limits: Limits) -> Graph:
    """The graph in the bytes of a `.npz` file. The reader checks the file, which has to be on a disk."""
    with tempfile.TemporaryDirectory(prefix="adar-serve-") as folder:
        path = Path(folder) / "graph.npz"
        path.write_bytes(content)
        return read_npz(path, limits.unpacked * MIB)
