"""Ctrl-C and SIGTERM: one line on stderr, the usual exit code, and no half-written files.

Both signals arrive as a KeyboardInterrupt, so every `finally` block runs: temporary files are deleted and
training writes its checkpoint.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any

import typer

from adar_deploy.console import print_error

EXIT_USER_ERROR = 2
EXIT_SIGNAL = 128  # plus the number of the signal


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Inside this context SIGTERM raises `Terminated`, as Ctrl-C raises KeyboardInterrupt."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that an interrupt prints one line with the next action. Typer would print nothing."""

    @wraps(command)
    def wrapped(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except KeyboardInterrupt as interrupt:
            print_error("; ".join(["interrupted", *getattr(interrupt, "__notes__", ())]))
            number = signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT
            raise typer.Exit(EXIT_SIGNAL + number) from interrupt

    return wrapped
