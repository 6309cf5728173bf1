"""The HTTP application: the Open Inference Protocol, streaming, graphs that stay, and metrics."""

from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from adar_runtime import Step
from adar_serve import messages, metrics
from adar_serve.bodies import Bodies
from adar_serve.event_stream import Send, event_of_json, event_stream, unless_gone
from adar_serve.http_gate import FACTS, Gate
from adar_serve.http_infer import Content, Infer
from adar_serve.http_repository import RepositoryPages
from adar_serve.messages import Answer, InferRequest
from adar_serve.models import Model
from adar_serve.openapi import document
from adar_serve.page.routes import page_routes
from adar_serve.refusals import RefusedError
from adar_serve.service import ZIP, Service


def http_app(service: Service, *, page: bool = True) -> ASGIApp:
    """The application for an ASGI server; `page` adds the web page."""
    bodies = service.bodies
    pages, infer = Pages(service, bodies, page=page), Infer(service, bodies)
    model = "/v2/models/{model}"
    routes = []  # those that are used most come first: they are tried in order
    for path in (model, model + "/versions/{version}"):
        routes += [
            Route(path + "/infer", infer, methods=["POST"]),
            Route(path + "/infer_stream", pages.infer_stream, methods=["POST"]),
        ]
    routes += [
        Route("/v2", pages.server),
        Route("/v2/health/live", pages.live),
        Route("/v2/health/ready", pages.ready),
        Route("/metrics", pages.metrics),
        Route("/openapi.json", pages.openapi),
        Route("/graphs", pages.graphs),
        Route("/graphs/{graph}", pages.put_graph, methods=["PUT"]),
        Route("/graphs/{graph}", pages.get_graph, methods=["GET"]),
        Route("/graphs/{graph}", pages.delete_graph, methods=["DELETE"]),
        Route("/graphs/{graph}/nodes", pages.score_nodes, methods=["POST"]),
        *RepositoryPages(service, bodies).routes(),
    ]
    for path in (model, model + "/versions/{version}"):
        routes += [Route(path, pages.model), Route(path + "/ready", pages.model_ready)]
    if page:
        routes += page_routes(service, bodies)
    return Gate(Router(routes), service)


class Pages:
    """One method for each address."""

    def __init__(self, service: Service, bodies: Bodies, *, page: bool) -> None:
        self._service, self._bodies, self._page = service, bodies, page

    async def server(self, _request: Request) -> Response:
        """Name, version and extensions of the server."""
        return JSONResponse(self._service.server_metadata())

    async def live(self, _request: Request) -> Response:
        """The process answers."""
        return JSONResponse({"live": True})

    async def ready(self, _request: Request) -> Response:
        """The server takes requests; not any more once it shuts down."""
        return self._readiness()

    def _readiness(self) -> Response:
        ready = not self._service.draining
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def model(self, request: Request) -> Response:
        """Inputs, outputs and versions of a model."""
        return JSONResponse(self._service.models.metadata(self._model(request)))

    async def model_ready(self, request: Request) -> Response:
        """The model takes requests."""
        self._model(request)
        return self._readiness()

    async def metrics(self, _request: Request) -> Response:
        """Metrics for Prometheus."""
        families = (await self._service.snapshot())["metrics"]
        return Response(metrics.text(families), media_type=metrics.CONTENT_TYPE)

    async def openapi(self, _request: Request) -> Response:
        """The OpenAPI document of this server."""
        return JSONResponse(document(self._service, page=self._page))

    async def infer_stream(self, request: Request) -> Response:
        """Run a model, and send its steps as events while it runs."""
        model, facts = self._model(request), request.scope[FACTS]
        received = AsyncExitStack()
        body = await received.enter_async_context(self._bodies.receive(request.receive, request.headers))
        content = Content(body, request.headers, self._service.limits)

        async def answer(send: Send) -> str:
            def on_step(step: Step) -> None:
                send("step", {"step": step.index, "time": step.time, "alignment": step.alignment})

            async with received:
                return await self._service.infer(model, content.read, self._answer_event, facts, on_step)

        return await event_stream(request, answer)

    async def graphs(self, _request: Request) -> Response:
        """All graphs that stay on the server."""
        return JSONResponse({"graphs": [each.to_dict() for each in self._service.graphs.all()]})

    async def put_graph(self, request: Request) -> Response:
        """Prepare a graph once. The body is a .npz file, or an inference request with its tensors."""
        name, facts = request.path_params["graph"], request.scope[FACTS]
        model = self._model_of_graph(request)
        async with self._bodies.receive(request.receive, request.headers) as body:
            content = Content(body, request.headers, self._service.limits)

            def read() -> InferRequest | bytes:
                found = content.unpacked()
                return found if found.startswith(ZIP) else content.parsed(found)

            stored = await unless_gone(request.receive, self._service.put_graph(name, model, read, facts))
        return JSONResponse(stored.to_dict(), 201)

    async def get_graph(self, request: Request) -> Response:
        """Facts about one graph."""
        return JSONResponse(self._service.graphs.facts(request.path_params["graph"]).to_dict())

    async def delete_graph(self, request: Request) -> Response:
        """Remove a graph."""
        self._service.graphs.remove(request.path_params["graph"])
        return Response(status_code=204)

    async def score_nodes(self, request: Request) -> Response:
        """Answer for new or changed nodes of a graph that stays."""
        name, facts = request.path_params["graph"], request.scope[FACTS]
        async with self._bodies.receive(request.receive, request.headers) as body:
            content = Content(body, request.headers, self._service.limits)
            scoring = self._service.score_nodes(name, content.read, content.write, facts)
            return await unless_gone(request.receive, scoring)

    def _model(self, request: Request) -> Model:
        return self._service.models.find(request.path_params["model"], request.path_params.get("version"))

    def _model_of_graph(self, request: Request) -> Model:
        """The model in the address; the only one, if the server has only one."""
        name, models = request.query_params.get("model"), self._service.models
        if name is not None:
            return models.find(name, request.query_params.get("version"))
        if len(models.all) != 1:
            raise RefusedError(
                400, "the server does not have exactly one model: add ?model=NAME to the address"
            )
        return models.all[0]

    def _answer_event(self, asked: InferRequest, answer: Answer) -> str:
        """An event is text, so all tensors are in the JSON."""
        text = InferRequest(asked.inputs, {}, dict.fromkeys(asked.outputs, False))
        content = messages.encode(text, answer, self._service.limits)[0].decode()
        return event_of_json("answer", content)
