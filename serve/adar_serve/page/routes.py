"""The addresses of the page: its files, what it can choose from, and runs as events."""

import math
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adar_runtime import Graph
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle.measured_solvers import usable_solvers
from adar_runtime.errors import UsageError, short
from adar_runtime.loop.solvers import DEFAULT_SOLVER
from adar_runtime.loop.stopping import RULES
from adar_serve import messages
from adar_serve.bodies import Bodies
from adar_serve.compression import unpacked
from adar_serve.event_stream import Send, event, event_stream
from adar_serve.http_gate import FACTS
from adar_serve.models import Model
from adar_serve.page.samples import BOARD, SEEDS, Sample, samples_for
from adar_serve.page.static_files import StaticFiles
from adar_serve.page.trajectory import DRAWN_EDGES, DRAWN_NODES, Trajectory
from adar_serve.refusals import RefusedError
from adar_serve.runs import Control, at_once, done
from adar_serve.service import ZIP, Service, Waited, read_file

NOT_A_GRAPH = (
    "the file is neither a .npz graph nor the JSON of a request: make one with adar-deploy data convert"
)


def page_routes(service: Service, bodies: Bodies) -> list[Route]:
    """The routes of the page."""
    static, explorer = StaticFiles(), Explorer(service, bodies)
    return [
        Route("/", static.index),
        Route("/page/{file:path}", static.file),
        Route("/explore", explorer.choices),
        Route("/explore/{model}", explorer.run, methods=["POST"]),
    ]


@dataclass(frozen=True)
class Source:
    """Where the graph of a run comes from.

    Attributes:
        graph: Makes the graph from the body of the request, in the thread of the run.
        is_board: The nodes are the cells of a square board.
    """

    graph: Callable[[bytes], Graph | PreparedGraph]
    is_board: bool = False


class Explorer:
    """What the page asks the server for."""

    def __init__(self, service: Service, bodies: Bodies) -> None:
        self._service, self._bodies = service, bodies

    async def choices(self, _request: Request) -> Response:
        """The models, and for each one its samples, solvers and stop rules."""
        limits = self._service.limits
        return JSONResponse(
            {
                "models": [self._model(each) for each in self._service.models.all],
                "max_steps": self._service.max_steps,
                "limits": {"steps": limits.steps, "nodes": limits.nodes, "body_mib": limits.body},
                "drawn": {"nodes": DRAWN_NODES, "edges": DRAWN_EDGES},
            }
        )

    def _model(self, model: Model) -> dict[str, Any]:
        manifest = model.bundle.manifest
        return {
            "name": model.name,
            "version": model.version,
            "description": manifest.description,
            "predicts": manifest.level,
            "features": None if manifest.in_context else manifest.features,  # None: any
            "backend": model.bundle.backend.name,
            "solvers": [DEFAULT_SOLVER, *usable_solvers(manifest)],
            "exits": [name for name in RULES if _has_rule(model, name)],
            "exit": manifest.exit.get("rule"),
            "samples": [each.to_dict() for each in self._samples(model).values()],
            "graphs": [each.name for each in self._service.graphs.all() if each.is_of(model)],
        }

    def _samples(self, model: Model) -> dict[str, Sample]:
        return samples_for(model.bundle.manifest, self._service.limits.nodes)

    async def run(self, request: Request) -> Response:
        """Run a model on a sample, on a graph that stays, or on the file in the body, and send events."""
        query = request.query_params
        model = self._service.models.find(request.path_params["model"], query.get("version"))
        options, source = self._options(request), self._source(model, request)
        facts = request.scope[FACTS]
        received = AsyncExitStack()
        body = await received.enter_async_context(self._bodies.receive(request.receive, request.headers))

        async def work(send: Send) -> str:
            def explore(control: Control) -> str:
                return self._explore(model, source, body, options, send, control, facts)

            async with received:
                running = self._service.runs.run(at_once(explore))
                return await self._service.counted(model, running, facts)

        return await event_stream(request, work)

    def _explore(
        self,
        model: Model,
        source: Source,
        body: bytes,
        options: dict[str, Any],
        send: Send,
        control: Control,
        facts: dict[str, Any],
    ) -> str:
        """The whole run, in its thread; the result is the last event."""
        queue = time.monotonic() - control.queued
        given = source.graph(body)
        graph = given.graph if isinstance(given, PreparedGraph) else given
        model.check_graph(graph, self._service.limits)
        facts |= {"nodes": graph.nodes, "edges": graph.edges}
        waited = Waited(control.queued, queue, time.monotonic() - control.queued - queue)
        loop = model.bundle.loop(given, **options)
        trajectory = Trajectory(model.bundle.manifest, graph, options["budget"], send)
        trajectory.begin(math.isqrt(graph.nodes) if source.is_board else None)
        control.check()
        control.on_step = trajectory.observe
        result = done(control.steps(loop))
        self._service.count(model, result, waited, facts, control, alone=True)
        return event("answer", trajectory.answer(result))

    def _source(self, model: Model, request: Request) -> Source:
        """The graph that stays, the sample, or the file that a request asks for."""
        query = request.query_params
        if "graph" in query:
            return Source(lambda _: self._service.graphs.use(query["graph"], model).prepared)
        if "sample" not in query:
            return Source(lambda body: self._graph_in(model, request, body))
        samples = self._samples(model)
        sample = samples.get(query["sample"])
        if sample is None:
            raise RefusedError(
                400, f"there is no sample {short(query['sample'])!r}: choose {', '.join(samples)}"
            )
        nodes = _number(request, "nodes", sample.sizes[0])
        if nodes not in sample.sizes:
            sizes = ", ".join(f"{size:,}" for size in sample.sizes)
            raise RefusedError(400, f"nodes is {nodes}: this sample has {sizes}")
        seed = _number(request, "seed", 0)
        if not 0 <= seed < SEEDS:
            raise RefusedError(400, f"seed is {seed}: choose 0 to {SEEDS - 1:,}")
        return Source(lambda _: sample.make(nodes, seed), sample.name == BOARD)

    def _graph_in(self, model: Model, request: Request, body: bytes) -> Graph:
        """The graph in a file: `.npz`, or the JSON of a request for inference."""
        limits = self._service.limits
        body = unpacked(body, request.headers.get("content-encoding"), limits)
        if body.startswith(ZIP):
            return read_file(body, limits)
        if not body.lstrip()[:1] == b"{":
            raise RefusedError(400, NOT_A_GRAPH)
        inputs = messages.parse(body, request.headers.get(messages.HEADER_LENGTH), limits).inputs
        model.check_inputs(inputs, limits)
        return model.graph(inputs)

    def _options(self, request: Request) -> dict[str, Any]:
        """Budget, stop rule and solver."""
        most, query = self._service.limits.steps, request.query_params
        budget = _number(request, "max_steps", self._service.max_steps)
        if not 1 <= budget <= most:
            raise RefusedError(400, f"max_steps is {budget}: choose 1 to {most:,}")
        return {"budget": budget, "stop": query.get("exit"), "solver": query.get("solver", DEFAULT_SOLVER)}


def _has_rule(model: Model, name: str) -> bool:
    """Whether a bundle has what a stop rule needs, such as a calibrated time."""
    try:
        model.bundle.stop_rule(name)
    except UsageError:
        return False
    return True


def _number(request: Request, name: str, default: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not given.isascii() or not given.isdecimal() or len(given) > 9:
        raise RefusedError(400, f"{name} is {short(given)!r}, not a whole number")
    return int(given)
