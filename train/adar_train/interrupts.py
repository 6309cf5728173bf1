"""Signals wait for the end of an epoch, so that a checkpoint is always of a whole one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

HELD_BACK = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_back() -> Iterator[None]:
    """What arrives inside the block is handled, as it would have been, when the block ends."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return
    arrived: list[int] = []
    before = {number: signal.signal(number, lambda n, _: arrived.append(n)) for number in HELD_BACK}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        signal.raise_signal(arrived[0])
