"""Fair timing: the sides of a comparison take turns, each in its own process.

In one process the thread pools of two frameworks would wait for each other. In its own process a side also
has its own peak memory.
"""

import multiprocessing as mp
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import BackendError, reason
from adar_runtime.interrupts import deferred_signals

Turn = Callable[..., tuple[float, Any]]
"""Runs a side once; returns the seconds and any other results."""

REST = 0.3  # seconds of pause before a turn: threads of the previous turn keep spinning for a while
STATUS = Path("/proc/self/status")
SAFE_PATH = "PYTHONSAFEPATH"


class Worker:
    """The process of one side. There, `build(*args)` makes the turn. The process ends with its parent."""

    def __init__(self, build: Callable[..., Turn], *args: Any) -> None:
        context = mp.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, build, args), daemon=True)
        try:
            with deferred_signals(), _safe_path(), _no_interrupts():
                self._process.start()
        except BaseException:  # a signal that waited for the start
            if self._process.pid is not None:
                self.end()
            raise
        other.close()  # so that the parent notices when the process dies

    def turn(self, *args: Any) -> tuple[float, Any]:
        """Run one turn and wait for it. Raises BackendError if the turn fails."""
        try:
            self._pipe.send(args)
            seconds, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise BackendError("the benchmark process died, perhaps because memory ran out") from error
        if seconds is None:
            raise BackendError(answer)
        return seconds, answer

    def end(self) -> None:
        """End the process and free its memory."""
        self._pipe.close()
        self._process.kill()  # even while it starts, or in the middle of a turn
        self._process.join()


def race(
    workers: Mapping[str, Worker],
    repeats: int,
    *args: Any,
    on_turn: Callable[[str, Any], None] = lambda *_: None,
    on_problem: Callable[[str, BackendError], None] | None = None,
) -> dict[str, list[float]]:
    """Let all sides take turns; return the seconds of each turn, by side.

    `args` go to every turn. A side that fails ends the race with its error. With `on_problem`, the race
    reports the error and continues without that side.
    """
    seconds: dict[str, list[float]] = {side: [] for side in workers}
    for _ in range(repeats):
        for side in list(seconds):
            time.sleep(REST)
            try:
                spent, answer = workers[side].turn(*args)
            except BackendError as error:
                if on_problem is None:
                    raise
                del seconds[side]
                on_problem(side, error)
                continue
            seconds[side].append(spent)
            on_turn(side, answer)
    return seconds


@contextmanager
def _safe_path() -> Iterator[None]:
    """Keep Python processes that start inside the block from importing from the current folder."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """A process that starts inside the block never receives Ctrl-C, not even while it starts.

    Threads of this process still receive signals, so `deferred_signals` is needed too.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, build: Callable[..., Turn], args: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C; see also _no_interrupts
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGHUP])
    turn: Turn | None = None
    with suppress(EOFError, OSError):  # the parent has ended or has closed the pipe
        while True:
            given = pipe.recv()
            try:
                turn = turn or build(*args)
                pipe.send(turn(*given))
            except Exception as error:  # the parent raises it as a BackendError
                pipe.send((None, reason(error)))


def spread(values: list[float] | NDArray[np.float64], digits: int) -> str:
    """Median and quartiles as text: `3.0 [2.0, 4.0]`."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def peak_bytes() -> int:
    """Peak memory of this process."""
    with suppress(OSError, KeyError):
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024  # ru_maxrss would include the parent's peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
