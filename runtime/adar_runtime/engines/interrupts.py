"""Ctrl-C and SIGTERM in the middle of somebody else's C++, which no Python exception may cross."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class HeldBack:
    """Signals that came, and are heard later."""

    def __init__(self) -> None:
        self.came: list[int] = []

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.came.append(number)


@contextmanager
def held_back() -> Iterator[HeldBack]:
    """Inside, a signal raises nothing; it does what it would have done when the block is left."""
    waiting = HeldBack()
    if threading.current_thread() is not threading.main_thread():  # which alone is given signals
        yield waiting
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heard = {number: handler for number, handler in before.items() if callable(handler)}
    for number in heard:
        signal.signal(number, waiting)
    try:
        yield waiting
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)
    for came in waiting.came:
        heard[signal.Signals(came)](came, None)
