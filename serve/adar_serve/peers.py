"""Calls between the parent process and its workers: JSON lines over two pipes, in both directions."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from adar_serve.refusals import RefusedError

LONGEST = 2**26  # bytes of a line: metrics and statistics of a worker with many models
Method = Callable[..., Awaitable[Any]]


class Parent(Protocol):
    """What a worker asks about all workers."""

    async def call(self, method: str, /, **arguments: Any) -> Any: ...


class GoneError(RefusedError):
    """The other process has ended."""

    def __init__(self) -> None:
        super().__init__(503, "the server is shutting down: try again", retry_after=1)


class Peer:
    """The other process. Calls of both sides run at the same time; `run` has to go on meanwhile.

    Args:
        reader: Lines of the other process.
        writer: Lines to the other process.
        methods: What the other process may call. Arguments and values are JSON.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, methods: Mapping[str, Method]
    ) -> None:
        self._reader, self._writer, self._methods = reader, writer, methods
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._is_gone = False

    async def call(self, method: str, /, **arguments: Any) -> Any:
        """Call a method of the other process.

        Raises:
            RefusedError: The method refused.
            GoneError: The other process has ended.
        """
        if self._is_gone:
            raise GoneError
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send({"number": number, "method": method, "arguments": arguments})
        try:
            return await future
        finally:
            self._waiting.pop(number, None)

    async def run(self) -> None:
        """Receive lines until the other process ends."""
        try:
            while line := await self._reader.readline():
                self._receive(json.loads(line))
        finally:
            self._is_gone = True
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(GoneError())

    def _receive(self, message: dict[str, Any]) -> None:
        if "method" in message:
            task = asyncio.create_task(self._answer(message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        future = self._waiting.get(message["number"])
        if future is None or future.done():
            return
        if "refused" in message:
            future.set_exception(RefusedError(message["status"], message["refused"]))
        else:
            future.set_result(message["value"])

    async def _answer(self, message: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"number": message["number"]}
        try:
            answer["value"] = await self._methods[message["method"]](**message["arguments"])
        except RefusedError as refused:
            answer |= {"status": refused.status, "refused": refused.message}
        except Exception:
            self._send(answer | {"status": 500, "refused": "an error on the server: its log has the reason"})
            raise  # asyncio writes it to the log
        self._send(answer)

    def _send(self, message: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")
