"""HTTP on a connection: uvicorn's fast protocol, with limits for heads and answers, and without upgrades."""

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from adar_serve.bodies import Bodies

MOST_HEAD = 2**16  # bytes of the head or the trailer of a request, if it does not arrive at once
MOST_UNSENT = 2**16  # bytes that wait in a connection before `pause_writing`; TLS alone has a larger limit


class HttpProtocol(HttpToolsProtocol):
    """One connection of a client.

    The parser has no limit for a head, and it leaves out the body of a request that offers another protocol,
    as Java's client does for HTTP/2 (`Upgrade: h2c`). This server has no other protocol, so it reads such a
    request as any other.

    Args:
        bodies: Counts the answers that clients have not read.
        seconds: Seconds after which the connection of such a client is closed.
    """

    def __init__(self, *arguments: Any, bodies: Bodies, seconds: int, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._bodies, self._seconds = bodies, seconds
        self._giving_up: asyncio.TimerHandle | None = None
        self._unfinished = 0  # bytes since the last head, part of a body, or end of a request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(MOST_UNSENT)

    def data_received(self, data: bytes) -> None:
        """Read what a client sent."""
        self._unset_keepalive_if_required()
        self._unfinished += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._read_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("the request is not valid HTTP")
            return
        if self._unfinished > MOST_HEAD:
            self.send_400_response(f"the head of the request is above {MOST_HEAD >> 10} KiB")

    def pause_writing(self) -> None:
        """The client reads its answer too slowly: the rest stays in memory, so it has to end some time."""
        super().pause_writing()
        self._bodies.unread.add(self.transport)
        self._giving_up = self.loop.call_later(self._seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read nearly all."""
        super().resume_writing()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        self._bodies.unread.discard(self.transport)
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _read_without_upgrade(self, rest: bytes) -> None:
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("this server is not a proxy")
            return
        lines = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"".join([method, b" ", self.url, b" HTTP/1.1\r\n", *lines, b"\r\n", rest]))

    def on_headers_complete(self) -> None:
        """Start the request, unless it is read again."""
        self._unfinished = 0
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body, unless the request is read again."""
        self._unfinished = 0
        if not self.parser.should_upgrade():
            super().on_message_complete()
