"""HTTP addresses of the repository and statistics calls of the protocol."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adar_serve import messages
from adar_serve.bodies import Bodies
from adar_serve.http_gate import FACTS
from adar_serve.refusals import RefusedError
from adar_serve.service import Service


class RepositoryPages:
    """One method for each address."""

    def __init__(self, service: Service, bodies: Bodies) -> None:
        self._service, self._bodies = service, bodies

    def routes(self) -> list[Route]:
        """The addresses. They come before those of the models: a model can be called stats."""
        model = "/v2/models/{model}"
        return [
            Route("/v2/repository/index", self.index, methods=["POST"]),
            Route("/v2/repository/models/{model}/load", self.load, methods=["POST"]),
            Route("/v2/repository/models/{model}/unload", self.unload, methods=["POST"]),
            Route("/v2/models/stats", self.stats),
            Route(model + "/stats", self.stats),
            Route(model + "/versions/{version}/stats", self.stats),
        ]

    async def index(self, request: Request) -> Response:
        """All models and versions, with their states."""
        async with self._bodies.receive(request.receive, request.headers) as body:
            asked = messages.read_object(body, self._service.limits) if body else {}
        ready = asked.get("ready", False)
        if not isinstance(ready, bool):
            raise RefusedError(400, "ready must be true or false")
        return JSONResponse(self._service.models.index(ready=ready))

    async def load(self, request: Request) -> Response:
        """Load a model again, or one that was unloaded."""
        self._service.check_control()
        await self._service.reload(request.path_params["model"], request.scope[FACTS])
        return Response()

    async def unload(self, request: Request) -> Response:
        """Take a model out of service."""
        self._service.check_control()
        await self._service.unload(request.path_params["model"])
        return Response()

    async def stats(self, request: Request) -> Response:
        """Counts and durations of all models, of one model, or of one version."""
        chosen = request.path_params.get("model"), request.path_params.get("version")
        return JSONResponse(await self._service.model_statistics(self._service.models.chosen(*chosen)))
