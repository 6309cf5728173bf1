"""Ctrl-C and SIGTERM: one line, the exit code that shells expect, and nothing half-written.

Both arrive as a KeyboardInterrupt, so that every `finally` on the way out is heard: temporary files
go, and training writes its checkpoint.
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
EXIT = 128  # and the number of the signal


class Terminated(KeyboardInterrupt):
    """SIGTERM."""


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM does what Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The command, made to say that it was interrupted and what to do next. Typer would say nothing."""

    @wraps(command)
    def wrapped(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except KeyboardInterrupt as interrupt:
            print_error("; ".join(["interrupted", *getattr(interrupt, "__notes__", ())]))
            number = signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT
            raise typer.Exit(EXIT + number) from interrupt

    return wrapped
