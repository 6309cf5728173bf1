"""Requests for inference over HTTP: their bodies, their answers, and the address that is used most."""

from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adar_serve import messages
from adar_serve.bodies import Bodies
from adar_serve.compression import packed, unpacked
from adar_serve.event_stream import unless_gone
from adar_serve.http_gate import FACTS, HEADERS
from adar_serve.limits import Limits
from adar_serve.messages import HEADER_LENGTH, Answer, InferRequest
from adar_serve.service import Service

QUICK = 2**17  # bytes of a body that is read in a millisecond or two


class Content:
    """The body of a request with its headers, which say how to read it and how to answer."""

    def __init__(self, body: bytes, headers: Mapping[str, str], limits: Limits) -> None:
        self._body, self._headers, self._limits = body, headers, limits

    @property
    def is_quick(self) -> bool:
        """Whether it takes little time to read."""
        return len(self._body) <= QUICK and "content-encoding" not in self._headers

    def unpacked(self) -> bytes:
        """The body without its compression."""
        return unpacked(self._body, self._headers.get("content-encoding"), self._limits)

    def read(self) -> InferRequest:
        """The request in the body."""
        return self.parsed(self.unpacked())

    def parsed(self, unpacked: bytes) -> InferRequest:
        """The request in the body without its compression."""
        return messages.parse(unpacked, self._headers.get(HEADER_LENGTH), self._limits)

    def write(self, asked: InferRequest, answer: Answer) -> Response:
        """The response of an inference, compressed if the client accepts it."""
        body, header_length = messages.encode(asked, answer, self._limits)
        body, encoding = packed(body, self._headers.get("accept-encoding"))
        kind = b"application/json" if header_length is None else b"application/octet-stream"
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", kind)]
        if header_length is not None:
            headers.append((HEADER_LENGTH.encode(), b"%d" % header_length))
        if encoding is not None:
            headers += [(b"content-encoding", encoding.encode()), (b"vary", b"accept-encoding")]
        return Reply(body, headers)


class Reply(Response):
    """A response with the status 200 whose headers are complete."""

    def __init__(self, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.status_code, self.background, self.body, self.raw_headers = 200, None, body, headers


class Infer:
    """Run a model. It is an ASGI application, so that Starlette does not wrap it."""

    __name__ = "infer"

    def __init__(self, service: Service, bodies: Bodies) -> None:
        self._service, self._bodies = service, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers, chosen = scope[HEADERS], scope["path_params"]
        model = self._service.models.find(chosen["model"], chosen.get("version"))
        async with self._bodies.receive(receive, headers) as body:
            content = Content(body, headers, self._service.limits)
            answering = self._service.infer(
                model, content.read, content.write, scope[FACTS], here=content.is_quick
            )
            response = await unless_gone(receive, answering)
        del body, content, answering  # the client may read the answer slowly
        await response(scope, receive, send)
