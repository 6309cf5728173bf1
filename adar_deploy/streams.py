"""stdout and stderr: any character in any locale, warnings as one line, and one error if a stream is full."""

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from adar_deploy.console import discard, err, print_note

LAST_STREAM = 2  # descriptor of stderr
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EPIPE, errno.EBADF)
"""Errors of a stream that cannot be written. Errors of files are reported where the file is written."""


def prepare_streams() -> None:
    """Write a character that the locale does not have as an escape sequence, instead of failing.

    Descriptors 0 to 2 that a shell closed (`adar-deploy … <&- 2>&-`) are opened again: otherwise the next
    file would get the number of stderr, and messages of libraries would be written into it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= LAST_STREAM:
        os.set_inheritable(number, True)
    os.close(number)
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:  # closed by the shell: `adar-deploy … >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - open until the process ends
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print each different AdarWarning once, as one line on stderr."""
    from adar_runtime.errors import AdarWarning

    printed: set[str] = set()

    def show(message: Any, category: type[Warning], *where: Any, **others: Any) -> None:
        if not issubclass(category, AdarWarning):
            before(message, category, *where, **others)
        elif str(message) not in printed:
            printed.add(str(message))
            print_note(str(message), to=err)

    with warnings.catch_warnings():
        before, warnings.showwarning = warnings.showwarning, show
        warnings.simplefilter("always", AdarWarning)
        yield


@contextmanager
def writable_output() -> Iterator[None]:
    """Raise a UsageError if stdout cannot be written, for example because a disk is full."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except (OSError, SystemExit) as error:
        # Typer and rich, which print the help, turn a pipe that nobody reads into an exit.
        failed = error.__context__ if isinstance(error, SystemExit) else error
        if not isinstance(failed, OSError) or failed.filename is not None or failed.errno not in FULL:
            raise
        discard(sys.stdout)
        from adar_runtime.errors import UsageError

        raise UsageError(f"the output cannot be written: {failed.strerror}") from failed
