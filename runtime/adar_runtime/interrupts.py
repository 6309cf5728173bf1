"""Deferred signals: Ctrl-C, SIGTERM and SIGHUP are handled at the end of a block, not in the middle of it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DeferredSignals:
    """A signal handler that only records the signals."""

    def __init__(self) -> None:
        self.arrived: list[int] = []

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.arrived.append(number)


@contextmanager
def deferred_signals() -> Iterator[DeferredSignals]:
    """Record signals inside the block, and run their own handlers when the block ends.

    A signal that is ignored stays ignored, for example SIGHUP under nohup.

    Two uses: no Python exception may pass through C++ code that calls back into Python, and a checkpoint is
    only written after a whole epoch.
    """
    deferred = DeferredSignals()
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield deferred
        return
    heeded = [number for number in DEFERRED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, deferred) for number in heeded}
    try:
        yield deferred
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for arrived in deferred.arrived:
        signal.raise_signal(arrived)
