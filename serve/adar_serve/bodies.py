"""The bodies of requests: a limit for each, and one for all in memory together, with unread answers."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from starlette.types import Message, Receive, Send

from adar_serve.limits import MIB, Limits
from adar_serve.refusals import CLIENT_GONE, RefusedError

PIECE = 2**18  # bytes of an answer that a connection gets at once


class Bodies:
    """Counts the bytes of all bodies in memory. Only the event loop uses it."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.bytes = limits, 0
        self.unread: set[asyncio.Transport] = set()
        """Connections whose client does not read its answer as fast as it is sent."""

    @contextmanager
    def counted(self, size: int) -> Iterator[None]:
        """Count a message of gRPC, which was received already, until the block ends."""
        self.bytes += size
        try:
            self.check(size)
            yield
        finally:
            self.bytes -= size

    def receive(self, receive: Receive, headers: Mapping[str, str]) -> "Receiving":
        """The body of a request. Its bytes count until the block ends."""
        return Receiving(self, receive, headers)

    async def send(self, send: Send, message: Message) -> None:
        """Send a message of an answer. A large one is sent in pieces, and those that wait count.

        With TLS, a connection takes all that it gets, and does not tell that its client reads nothing.
        """
        body, more = message.get("body", b""), message.get("more_body", False)
        if len(body) <= PIECE:
            await send(message)
            return
        left = len(body)
        self.bytes += left
        try:
            for start in range(0, len(body), PIECE):
                piece = body[start : start + PIECE]
                await send({**message, "body": piece, "more_body": more or len(piece) < left})
                left -= len(piece)
                self.bytes -= len(piece)
        finally:
            self.bytes -= left

    def check(self, size: int) -> None:
        """Refuse a body of this size, or the bodies of all requests together."""
        if size > self.limits.body * MIB:
            raise RefusedError(413, f"the body is above {self.limits.body} MiB: send a smaller graph")
        unread = sum(each.get_write_buffer_size() for each in self.unread)
        if self.bytes + unread > self.limits.bodies * MIB:
            raise RefusedError(429, "the server is receiving too much at once: try again", retry_after=1)


class Receiving:
    """A block with the body of one request. A generator and `asyncio.timeout` would take longer."""

    def __init__(self, bodies: Bodies, receive: Receive, headers: Mapping[str, str]) -> None:
        self._bodies, self._receive, self._headers = bodies, receive, headers
        self._size, self._is_late = 0, False

    async def __aenter__(self) -> bytes:
        seconds, receiving = self._bodies.limits.seconds, asyncio.current_task()
        assert receiving is not None
        self._bodies.check(_announced(self._headers))
        timer = asyncio.get_running_loop().call_later(seconds, self._end, receiving)
        try:
            return await self._read()
        except BaseException as error:
            self._release()
            if not self._is_late or receiving.uncancel():
                raise
            message = f"the body did not arrive in {seconds} seconds: send it faster"
            raise RefusedError(408, message) from error
        finally:
            timer.cancel()

    def _end(self, receiving: "asyncio.Task[object]") -> None:
        self._is_late = receiving.cancel()

    async def __aexit__(self, *_: object) -> None:
        self._release()

    async def _read(self) -> bytes:
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise RefusedError(CLIENT_GONE, "the client closed the connection")
            part, more = message.get("body", b""), message.get("more_body", False)
            self._size += len(part)
            self._bodies.bytes += len(part)
            self._bodies.check(self._size)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _release(self) -> None:
        self._bodies.bytes -= self._size
        self._size = 0


def _announced(headers: Mapping[str, str]) -> int:
    given = headers.get("content-length", "0")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 19 else 2**63
