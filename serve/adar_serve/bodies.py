"""The bodies of requests: a limit for each, and one for all in memory together, with unread answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.requests import ClientDisconnect, Request

from adar_serve.limits import MIB, Limits
from adar_serve.refusals import CLIENT_GONE, RefusedError


class Bodies:
    """Counts the bytes of all bodies in memory. Only the event loop uses it."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._bytes = limits, 0
        self.unread: set[asyncio.Transport] = set()
        """Connections whose client does not read its answer as fast as it is sent."""

    @contextmanager
    def counted(self, size: int) -> Iterator[None]:
        """Count a message of gRPC, which was received already, until the block ends."""
        self._bytes += size
        try:
            self._check(size)
            yield
        finally:
            self._bytes -= size

    @asynccontextmanager
    async def receive(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request. Its bytes count until the block ends."""
        self._check(self._announced(request))
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.seconds):
                async for part in request.stream():
                    size += len(part)
                    self._bytes += len(part)
                    self._check(size)
                    parts.append(part)
            body = b"".join(parts)
            parts.clear()
            yield body
        except ClientDisconnect as error:
            raise RefusedError(CLIENT_GONE, "the client closed the connection") from error
        except TimeoutError as error:
            raise RefusedError(
                408, f"the body did not arrive in {self._limits.seconds} seconds: send it faster"
            ) from error
        finally:
            self._bytes -= size

    def _announced(self, request: Request) -> int:
        given = request.headers.get("content-length", "0")
        return int(given) if given.isascii() and given.isdecimal() and len(given) < 19 else 2**63

    def _check(self, size: int) -> None:
        if size > self._limits.body * MIB:
            raise RefusedError(413, f"the body is above {self._limits.body} MiB: send a smaller graph")
        unread = sum(each.get_write_buffer_size() for each in self.unread)
        if self._bytes + unread > self._limits.bodies * MIB:
            raise RefusedError(429, "the server is receiving too much at once: try again", retry_after=1)
