"""Runs in threads: how many at a time, how many wait, how long each may take, and how one is cancelled.

A run of a small graph that is the only one begins in the event loop: a thread would take longer to wake.
"""

import asyncio
import math
import time
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar, cast

from adar_runtime import Loop, Result, Step
from adar_runtime.interruption import interruptible
from adar_serve.limits import Limits
from adar_serve.refusals import CLIENT_GONE, RefusedError, release
from adar_serve.threads import Threads

LAST_CALL = 20.0  # seconds that a server waits for the end of a cell call, which cannot be interrupted
TURN = 0.005  # seconds of a run in the event loop, before it looks at its connections
TURNS = 0.02  # seconds after which such a run goes on in a thread
QUIET = 0.1  # seconds since two requests were there together, before a run begins in the event loop

T = TypeVar("T")
Work = Generator[bool, None, T]  # yields after each step: whether the next one may take long
Leave = Callable[[Any, BaseException | None], None]  # takes what was found, or the error


@dataclass(eq=False)
class Control:
    """How the event loop and the thread of one run talk to each other."""

    deadline: float
    seconds: int
    on_step: Callable[[Step], None] | None = None
    cancelled: bool = False  # by the client
    ending: bool = False  # the server ends, and does not finish its requests
    after: Callable[[], None] | None = None  # what the event loop does once the answer is on its way
    queued: float = field(default_factory=time.monotonic)

    def problem(self) -> RefusedError | None:
        """Why a run has to stop: nobody waits for it, the server ends, or it takes too long."""
        if self.cancelled:
            return RefusedError(CLIENT_GONE, "the client closed the connection")
        if self.ending:
            return _shutting_down()
        if time.monotonic() > self.deadline:
            return RefusedError(
                504,
                f"not finished after {self.seconds} seconds: ask for fewer steps (max_steps), or send a "
                "smaller graph",
            )
        return None

    def check(self) -> None:
        """Stop a run that has a problem."""
        problem = self.problem()
        if problem is not None:
            raise problem

    def steps(self, loop: Loop) -> Work[Result]:
        """Run a loop to its end, and check after every step."""
        for step in loop:
            if self.on_step is not None:
                self.on_step(step)
            self.check()
            yield False
        return loop.result()


@dataclass(frozen=True)
class Joined(Generic[T]):
    """Work that goes on in a batch: `finish` makes the answer from the result."""

    result: "Future[Result]"
    finish: Callable[[Result], T]


class Runs:
    """The threads of a server. `limits.concurrent` of them run, `limits.queue` requests wait."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._threads = Threads(limits.concurrent, limits.batch, limits.batch_wait / 1000)
        self._last_seconds = 1.0
        self._busy = -math.inf  # when two requests were there together
        self._admitted = set[Control]()  # of requests that run or wait; only the event loop changes it

    @property
    def admitted(self) -> int:
        return len(self._admitted)

    @property
    def running(self) -> int:
        return min(self.admitted, self._limits.concurrent)

    @property
    def waiting(self) -> int:
        return max(0, self.admitted - self._limits.concurrent)

    async def run(
        self,
        work: Callable[[Control], Work[T | Joined[T]]],
        on_step: Callable[[Step], None] | None = None,
        *,
        here: bool = False,
    ) -> T:
        """Do the work in a thread. If the caller is cancelled, the work ends after its current step.

        Args:
            work: What to do.
            on_step: Called with each step, in the thread.
            here: Whether the work may begin in the event loop, if no other request is there.

        Raises:
            RefusedError: The queue is full, or the work refused the request.
        """
        seconds = self._limits.seconds
        control = Control(time.monotonic() + seconds, seconds, on_step)
        self._admit(control)
        begun = work(control)
        if not here or control.queued < self._busy + QUIET:
            found = await self._in_thread(begun, control)
        else:
            found = await self._in_turns(begun, control)
        if control.after is not None:
            asyncio.get_running_loop().call_soon(control.after)
        return found

    async def _in_turns(self, begun: Work[T | Joined[T]], control: Control) -> T:
        """Do the work in the event loop, in short turns. A thread does the rest if others come."""
        turn, end = control.queued + TURN, control.queued + TURNS
        try:
            while not next(begun) and (now := time.monotonic()) < end:
                if now > turn:
                    await asyncio.sleep(0)  # what has arrived is read,
                    await asyncio.sleep(0)  # and what was read is begun
                    if self.admitted > 1:
                        break
                    turn = time.monotonic() + TURN
        except StopIteration as ended:
            self._left(control)
            return cast("T", ended.value)  # only work beside others is joined
        except BaseException:
            self._left(control)
            raise
        return await self._in_thread(begun, control)

    async def _in_thread(self, begun: Work[T | Joined[T]], control: Control) -> T:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[T] = loop.create_future()

        def leave(found: T | None, error: BaseException | None) -> None:
            self._left(control)
            if answered.done():  # the caller is cancelled
                if error is not None:
                    release(error)
            elif error is None:
                answered.set_result(cast("T", found))
            else:
                answered.set_exception(error)

        if not self._threads.submit(partial(_do, begun, control, partial(_call, loop, leave))):
            leave(None, _shutting_down())
        try:
            return await answered
        except asyncio.CancelledError:
            control.cancelled = True
            raise

    def join(self, key: Hashable, entry: Any, together: Callable[[list[Any]], None]) -> None:
        """Let an entry wait for others with the same key, see `Threads.join`."""
        self._threads.join(key, entry, together)

    def _admit(self, control: Control) -> None:
        if self.admitted >= self._limits.concurrent + self._limits.queue:
            wait = max(1, math.ceil(self._last_seconds))
            raise RefusedError(429, f"the server is busy: try again in {wait} s", retry_after=wait)
        self._admitted.add(control)
        if self.admitted > 1:
            self._busy = time.monotonic()

    def _left(self, control: Control) -> None:
        if self.admitted > 1:
            self._busy = time.monotonic()
        self._admitted.remove(control)
        self._last_seconds = time.monotonic() - control.queued

    def close(self) -> None:
        """Accept no more work."""
        self._threads.close()

    async def finish(self) -> None:
        """Wait for the current cell calls: a process that ends during one of ONNX Runtime gets SIGABRT.

        Runs that are not finished, because a second signal ended the server, make no further call.
        """
        for control in self._admitted:
            control.ending = True
        await asyncio.to_thread(self._threads.wait, LAST_CALL)


def _shutting_down() -> RefusedError:
    return RefusedError(503, "the server is shutting down: try again", retry_after=1)


def _call(loop: asyncio.AbstractEventLoop, leave: Leave, found: Any, error: BaseException | None) -> None:
    """Let the event loop call `leave`, unless the server has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(leave, found, error)


def at_once(work: Callable[[Control], T]) -> Callable[[Control], Work[T]]:
    """Work of one step, which may take long."""

    def begun(control: Control) -> Work[T]:
        yield True
        return work(control)

    return begun


def done(work: Work[T]) -> T:
    """What the work returns."""
    try:
        while True:
            next(work)
    except StopIteration as ended:
        return cast("T", ended.value)


def _do(begun: Work[T | Joined[T]], control: Control, leave: Leave) -> None:
    """Do the work, unless the client is gone, and give its outcome to `leave`."""
    try:
        control.check()  # the request may have waited too long
        with interruptible(control.check):
            found = done(begun)
    except BaseException as error:  # the thread goes on
        leave(None, error)
        return
    if isinstance(found, Joined):
        found.result.add_done_callback(lambda result: _finish(lambda: found.finish(result.result()), leave))
    else:
        leave(found, None)


def _finish(work: Callable[[], Any], leave: Leave) -> None:
    try:
        found = work()
    except BaseException as error:
        leave(None, error)
    else:
        leave(found, None)
