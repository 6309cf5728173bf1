"""Ctrl-C, SIGTERM and SIGHUP: one line on stderr, the usual exit code, and no half-written files.

Outside a command there is nothing to clean up: the program prints the line and ends at once. Inside a
command the signals arrive as a KeyboardInterrupt, so every `finally` block runs: temporary files are
deleted and training writes its checkpoint.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from types import CodeType, FrameType
from typing import Any

import typer

from adar_deploy.console import print_error
from adar_deploy.early_signals import EXIT_SIGNAL, SIGNALS, exit_at_once
from adar_deploy.streams import writable_output

EXIT_USER_ERROR = 2
EXIT_GATE = 3  # a measured value is beyond the limit that the user gave; nothing failed
RETRY = 0.02  # seconds until a signal is delivered again
Handler = Callable[[int, FrameType | None], None]


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


def install(handler: Handler) -> dict[int, Any]:
    """Set the handler of these signals and return the old ones. A signal that is ignored stays ignored."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        return {}
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, handler)
    return before


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    """Use this handler inside the block."""
    before = install(handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class Interrupts:
    """The handler inside a command: raises KeyboardInterrupt in the main thread, at a moment that is safe.

    An exception in the middle of an import leaves a half-imported module, which some packages turn into
    another error or ignore. Python prints and ignores exceptions of finalisers and of callbacks from C. In
    these cases the signal is delivered again a moment later. Imports of PyTorch and PyG take seconds, or a
    minute on a busy machine: if no block of the command has anything to clean up, the program ends at once.
    """

    def __init__(self, outermost: CodeType) -> None:
        self.number: int | None = None  # of the signal that arrived
        self._outermost = outermost  # frames outside of it do not matter

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        if self._is_safe(frame):
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if self._is_clean(frame):
            with suppress(Exception):
                sys.stdout.flush()
            exit_at_once(number, frame)
        self._retry()

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Inside the block the signals are raised as exceptions."""
        hook, sys.unraisablehook = sys.unraisablehook, self._on_ignored_exception
        try:
            with handled_by(self):
                yield
        finally:
            if self.number is None:
                sys.unraisablehook = hook
            else:  # the finalisers of what was interrupted are yet to come
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _frames(self, frame: FrameType | None) -> Iterator[FrameType]:
        """The frames of the command, the innermost one first."""
        while frame is not None and frame.f_code is not self._outermost:
            yield frame
            frame = frame.f_back

    def _is_safe(self, frame: FrameType | None) -> bool:
        return not any(_imports(one) or one.f_code.co_name == "__del__" for one in self._frames(frame))

    def _is_clean(self, frame: FrameType | None) -> bool:
        """Whether the command is importing, outside all of its `with` and `try` blocks."""
        frames = list(self._frames(frame))
        importing = [index for index, one in enumerate(frames) if _imports(one)]
        return bool(importing) and not any(map(in_block, frames[importing[-1] + 1 :]))

    def _retry(self) -> None:
        signal.signal(signal.SIGALRM, self._deliver_again)
        signal.setitimer(signal.ITIMER_REAL, RETRY)

    def _deliver_again(self, _number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            signal.raise_signal(self.number)  # another handler may be active now, such as a deferring one

    def _on_ignored_exception(self, ignored: Any) -> None:
        """Deliver a signal again, or print the error. A signal may leave objects whose finalisers fail."""
        if self.number is not None and issubclass(ignored.exc_type, KeyboardInterrupt):
            self._retry()
        elif self.number is None or getattr(ignored.object, "__name__", None) != "__del__":
            sys.__unraisablehook__(ignored)


def _imports(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")


def in_block(frame: FrameType) -> bool:
    """Whether a frame is inside a `with` or `try` block, by the exception table of its code.

    The table has four numbers for each block: its first instruction, its length, its handler and its depth. A
    number consists of groups of six bits, the highest first; bit 6 marks all groups except the last.
    """
    numbers, value = list[int](), 0
    for byte in frame.f_code.co_exceptiontable:
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
    now = frame.f_lasti // 2
    blocks = zip(numbers[::4], numbers[1::4], strict=True)
    return any(first <= now < first + length for first, length in blocks)


def interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that an interrupt prints one line with the next action. Typer would print nothing."""

    @wraps(command)
    def wrapped(*args: Any, **options: Any) -> None:
        interrupts, notes = Interrupts(sys._getframe().f_code), list[str]()
        try:
            with writable_output(), interrupts.raised():  # Typer would exit with 1, without a message
                command(*args, **options)
        except KeyboardInterrupt as interrupt:
            interrupts.number = interrupts.number or _number(interrupt)
            notes = getattr(interrupt, "__notes__", [])
        except Exception:
            if interrupts.number is None:  # otherwise the error is a consequence of the interrupt
                raise
        if interrupts.number is not None:
            _exit_interrupted(interrupts.number, notes)

    return wrapped


def _number(interrupt: KeyboardInterrupt) -> int:
    return signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT


def _exit_interrupted(number: int, notes: list[str]) -> None:
    print_error("; ".join(["interrupted", *notes]))
    raise typer.Exit(EXIT_SIGNAL + number)
