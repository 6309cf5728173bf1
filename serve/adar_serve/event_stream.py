"""A run as server-sent events, and the end of its work when the client goes away."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive

from adar_serve.refusals import CLIENT_GONE, RefusedError, release

WATCH_SECONDS = 0.02  # after which a request watches its connection: many are answered by then
T = TypeVar("T")
Send = Callable[[str, dict[str, Any]], None]
"""Sends an event with this name and content. Any thread may call it."""


def event(name: str, content: dict[str, Any]) -> str:
    """The text of one event."""
    return event_of_json(name, json.dumps(content))


def event_of_json(name: str, content: str) -> str:
    """The text of one event whose content is JSON already."""
    return f"event: {name}\ndata: {content}\n\n"


async def event_stream(request: Request, work: Callable[[Send], Coroutine[Any, Any, str]]) -> Response:
    """The response of `work`, which sends events and returns the text of the last one.

    The response waits for the first event, so that work which is refused before it has its own status.
    """
    events: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def send(name: str, content: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(events.put_nowait, event(name, content))

    run = asyncio.create_task(work(send))
    run.add_done_callback(lambda _: events.put_nowait(None))
    try:
        first = await unless_gone(request.receive, events.get())
    except BaseException:
        run.cancel()
        raise
    if first is None:
        run.result()  # raises: work without an error has events
    return StreamingResponse(_events(first, events, run), media_type="text/event-stream")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Wait for the work, and cancel it if the client closes the connection."""
    asking, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert asking is not None
    watching: asyncio.Task[None] | None = None
    is_working = True

    def on_gone(ended: asyncio.Task[None]) -> None:
        if is_working and not ended.cancelled():
            asking.cancel()

    def watch() -> None:
        nonlocal watching
        watching = asyncio.create_task(_disconnected(receive))
        watching.add_done_callback(on_gone)

    timer = loop.call_later(WATCH_SECONDS, watch)  # so that the thread of the work starts first
    try:
        return await work
    except asyncio.CancelledError as error:
        if watching is None or not watching.done() or asking.uncancel():
            raise
        raise RefusedError(CLIENT_GONE, "the client closed the connection") from error
    finally:
        is_working = False
        timer.cancel()
        if watching is not None:
            watching.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _events(
    first: str | None, events: "asyncio.Queue[str | None]", run: "asyncio.Task[str]"
) -> AsyncIterator[str]:
    try:
        text = first
        while text is not None:
            yield text
            text = await events.get()
        try:
            yield run.result()
        except RefusedError as refused:
            release(refused)
            yield event("error", {"error": refused.message})
    finally:
        run.cancel()
