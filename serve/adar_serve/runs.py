"""Runs in threads: how many at a time, how many wait, how long each may take, and how one is cancelled."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from adar_runtime import Loop, Result, Step
from adar_serve.limits import Limits
from adar_serve.refusals import CLIENT_GONE, RefusedError

T = TypeVar("T")


@dataclass
class Control:
    """How the event loop and the thread of one run talk to each other."""

    deadline: float
    seconds: int
    on_step: Callable[[Step], None] | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    queued: float = field(default_factory=time.monotonic)

    def check(self) -> None:
        """Stop a run that nobody waits for, or that takes too long."""
        if self.cancelled.is_set():
            raise RefusedError(CLIENT_GONE, "the client closed the connection")
        if time.monotonic() > self.deadline:
            raise RefusedError(
                504,
                f"not finished after {self.seconds} seconds: ask for fewer steps (max_steps), or send a "
                "smaller graph",
            )

    def drive(self, loop: Loop) -> Result:
        """Run a loop to its end, and check after every step."""
        for step in loop:
            if self.on_step is not None:
                self.on_step(step)
            self.check()
        return loop.result()


class Runs:
    """The threads of a server. `limits.concurrent` of them run, `limits.queue` requests wait."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(limits.concurrent, thread_name_prefix="run")
        self._lock = threading.Lock()
        self._admitted = 0
        self._last_seconds = 1.0

    @property
    def running(self) -> int:
        return min(self._admitted, self._limits.concurrent)

    @property
    def waiting(self) -> int:
        return max(0, self._admitted - self._limits.concurrent)

    async def run(self, work: Callable[[Control], T], on_step: Callable[[Step], None] | None = None) -> T:
        """Do the work in a thread. If the caller is cancelled, the work ends after its current step.

        Raises:
            RefusedError: The queue is full, or the work refused the request.
        """
        self._admit()
        seconds = self._limits.seconds
        control = Control(time.monotonic() + seconds, seconds, on_step)
        try:
            future = self._threads.submit(self._timed, work, control)
        except RuntimeError as error:  # the server is shutting down
            self._leave(None)
            raise RefusedError(503, "the server is shutting down: try again", retry_after=1) from error
        future.add_done_callback(self._leave)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            control.cancelled.set()
            raise

    def _admit(self) -> None:
        with self._lock:
            if self._admitted >= self._limits.concurrent + self._limits.queue:
                wait = max(1, math.ceil(self._last_seconds))
                raise RefusedError(429, f"the server is busy: try again in {wait} s", retry_after=wait)
            self._admitted += 1

    def _leave(self, _future: "Future[T] | None") -> None:
        with self._lock:
            self._admitted -= 1

    def _timed(self, work: Callable[[Control], T], control: Control) -> T:
        control.check()  # the request may have waited too long
        started = time.monotonic()
        try:
            return work(control)
        finally:
            self._last_seconds = time.monotonic() - started

    def close(self) -> None:
        """Accept no more work. Threads that still run end with the process."""
        self._threads.shutdown(wait=False, cancel_futures=True)
