"""What happens to every HTTP request: an id, the token, the log, the metrics, and errors as JSON."""

import asyncio
import time
import traceback
from collections.abc import Mapping
from typing import Any, TypeGuard

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from adar_serve.refusals import RefusedError, release
from adar_serve.request_log import request_id
from adar_serve.service import Service
from adar_serve.tracing import span

OPEN = (
    "/v2/health/live",
    "/v2/health/ready",
    "/",
    "/openapi.json",
)  # probes have no token; the page asks for one
OPEN_FOLDER = "/page/"  # the files of the page, which are the same on every server
SAFE = ("GET", "HEAD")
HEADERS = "adar_headers"  # the key of a request's headers in its scope, names in lower case
FACTS = "adar_facts"  # the key of a request's facts in its scope
FAILED = "an error on the server: its log has this request by its x-request-id"


class Gate:
    """The application around the addresses."""

    def __init__(self, router: Router, service: Service) -> None:
        self._router, self._service = router, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":  # the start and the end of the application, of servers that tell it
            await self._router(scope, receive, send)
            return
        # The first of several headers with one name counts. A dictionary is faster than Starlette's headers.
        listed = reversed([*scope["headers"]])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in listed}
        scope[HEADERS], started = headers, time.monotonic()
        identity, status = request_id(headers.get("x-request-id")), 0
        facts: dict[str, Any] = scope.setdefault(FACTS, {})
        scope["app"] = self._router  # an unknown address is then an exception

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", identity.encode())]
            await self._service.bodies.send(send, message)

        async def respond(response: Response) -> None:
            if not status:  # otherwise a response has begun, and the server closes the connection
                await response(scope, receive, send_named)

        with span(f"{scope['method']} {scope['path'][:200]}", headers, facts):
            try:
                _refuse_other_sites(scope["method"], headers)
                if scope["path"] not in OPEN and not scope["path"].startswith(OPEN_FOLDER):
                    self._service.tokens.check(headers.get("authorization"))
                await self._router(scope, receive, send_named)
            except RefusedError as refused:
                facts.setdefault("reason", refused.message)
                release(refused)
                await respond(refusal_response(refused))
            except HTTPException as error:
                await respond(self._no_route(scope, error.status_code))
            except Exception as error:
                facts["traceback"] = traceback.format_exc()
                release(error)
                await respond(refusal_response(RefusedError(500, FAILED)))
            finally:
                seconds = time.monotonic() - started
                # The event loop writes the answer first: it writes at the end of a round.
                asyncio.get_running_loop().call_soon(self._record, scope, identity, status, seconds, facts)

    def _no_route(self, scope: Scope, status: int) -> Response:
        message = {404: "there is no such address", 405: "this address has another method"}
        response = refusal_response(RefusedError(status, message.get(status, "the request is not valid")))
        if status == 405:
            methods = [each.methods or () for each in self._router.routes if _is_at(each, scope)]
            response.headers["allow"] = ", ".join(sorted(set().union(*methods)))
        return response

    def _record(
        self, scope: Scope, identity: str, status: int, seconds: float, facts: dict[str, Any]
    ) -> None:
        action = getattr(scope.get("endpoint"), "__name__", "other")
        self._service.metrics.count_request("http", action, status, seconds)
        request = {"protocol": "http", "method": scope["method"], "path": scope["path"][:200]}
        self._service.log.write(
            "request", request_id=identity, **request, status=status, seconds=round(seconds, 6), **facts
        )


def _refuse_other_sites(method: str, headers: Mapping[str, str]) -> None:
    """A page of another site must not use a server that listens on the visitor's own computer."""
    if method not in SAFE and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise RefusedError(403, "a page of another site sent this request: use the page of this server")


def _is_at(route: BaseRoute, scope: Scope) -> TypeGuard[Route]:
    """Whether a route has the address of a request."""
    return isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE


def refusal_response(refused: RefusedError) -> Response:
    """An error as JSON."""
    headers = {}
    if refused.retry_after is not None:
        headers["retry-after"] = str(refused.retry_after)
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refused.status in (408, 413):  # the rest of the body is not read
        headers["connection"] = "close"
    return JSONResponse({"error": refused.message}, refused.status, headers)
