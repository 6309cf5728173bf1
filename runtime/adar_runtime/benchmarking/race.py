"""How things are measured: by sides that take turns, each in a process of its own.

Thread pools that share a machine with another framework's would be timed waiting for each other; in a process
of its own, a side's peak of memory is its own too.
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

Turn = Callable[..., tuple[float, Any]]
"""How long it took, and whatever else there is to say of it."""

REST = 0.3  # seconds before a turn: threads of the turn before go on spinning for some time
STATUS = Path("/proc/self/status")
SAFE_PATH = "PYTHONSAFEPATH"


class Worker:
    """The process of one side; it ends with its parent. `build` makes the turn there, from `args`."""

    def __init__(self, build: Callable[..., Turn], *args: Any) -> None:
        context = mp.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, build, args), daemon=True)
        with _safe_path():
            self._process.start()
        other.close()  # so that a side that has died is heard

    def turn(self, *args: Any) -> tuple[float, Any]:
        """Let it have a turn, while the others wait; a BackendError says what it could not do."""
        try:
            self._pipe.send(args)
            seconds, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise BackendError("the process that measured it died, perhaps for want of memory") from error
        if seconds is None:
            raise BackendError(answer)
        return seconds, answer

    def end(self) -> None:
        """Let it go, with all the memory that it holds."""
        self._pipe.close()
        self._process.terminate()  # it may be in the middle of a turn that nobody waits for any more
        self._process.join()


def race(
    workers: Mapping[str, Worker],
    repeats: int,
    *args: Any,
    on_turn: Callable[[str, Any], None] = lambda *_: None,
    on_problem: Callable[[str, BackendError], None] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each turn, by side; `args` are for every turn.

    A side that fails ends the race, unless somebody wants to hear of it: then the others go on without it.
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
    """A Python that starts in here imports nothing from the folder one happens to be in."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


def _serve(pipe: Connection, build: Callable[..., Turn], args: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    turn: Turn | None = None
    with suppress(EOFError, OSError):  # the parent has ended, or wants no more
        while True:
            given = pipe.recv()
            try:
                turn = turn or build(*args)
                pipe.send(turn(*given))
            except Exception as error:  # whatever it was, the parent says it
                pipe.send((None, reason(error)))


def spread(values: list[float] | NDArray[np.float64], digits: int) -> str:
    """Median [quartiles]."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def peak_bytes() -> int:
    """The most memory that this process has held."""
    with suppress(OSError, KeyError):
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024  # of this program alone, not of who started it
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
