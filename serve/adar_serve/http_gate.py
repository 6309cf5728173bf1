"""What happens to every HTTP request: an id, the token, the log, the metrics, and errors as JSON."""

import time
import traceback
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adar_serve.refusals import RefusedError
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
FACTS = "adar_facts"  # the key of a request's facts in its scope


class Gate:
    """The application around the application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":  # the start and the end of the application, of servers that tell it
            await self._app(scope, receive, send)
            return
        headers, started = Headers(scope=scope), time.monotonic()
        identity, status = request_id(headers.get("x-request-id")), 0
        facts: dict[str, Any] = scope.setdefault(FACTS, {})

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = identity
            await send(message)

        try:
            with span(f"{scope['method']} {scope['path'][:200]}", headers, facts):
                _refuse_other_sites(scope["method"], headers)
                if scope["path"] not in OPEN and not scope["path"].startswith(OPEN_FOLDER):
                    self._service.tokens.check(headers.get("authorization"))
                await self._app(scope, receive, send_named)
        except RefusedError as refused:
            await refusal_response(refused)(scope, receive, send_named)
        except Exception:  # the application has sent the status 500
            facts["traceback"] = traceback.format_exc()
        finally:
            self._record(scope, identity, status, time.monotonic() - started, facts)

    def _record(
        self, scope: Scope, identity: str, status: int, seconds: float, facts: dict[str, Any]
    ) -> None:
        action = getattr(scope.get("endpoint"), "__name__", "other")
        self._service.metrics.requests.labels("http", action, status).inc()
        self._service.metrics.seconds.labels("http", action).observe(seconds)
        request = {"protocol": "http", "method": scope["method"], "path": scope["path"][:200]}
        self._service.log.write(
            "request", request_id=identity, **request, status=status, seconds=round(seconds, 6), **facts
        )


def _refuse_other_sites(method: str, headers: Headers) -> None:
    """A page of another site must not use a server that listens on the visitor's own computer."""
    if method not in SAFE and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise RefusedError(403, "a page of another site sent this request: use the page of this server")


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
