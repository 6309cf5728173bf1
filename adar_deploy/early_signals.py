"""The handler of Ctrl-C, SIGTERM and SIGHUP outside a command: it prints one line and ends the process.

The program installs it before it imports anything else. `signal` and `contextlib` would take some
hundredths of a second, in which a signal ends Python with a traceback or without a message.
"""

import _signal
import atexit
import os

EXIT_SIGNAL = 128  # plus the number of the signal
SIGNALS: tuple[int, ...] = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)


def exit_at_once(number: int, _frame: object) -> None:
    """Print the line and end the process. Outside a command there is nothing to clean up."""
    try:
        os.write(2, b"error: interrupted\n")
    finally:
        os._exit(EXIT_SIGNAL + number)


def ignore_signals() -> None:
    """Let Python end in peace: without a handler of its own, a signal would end the finished program."""
    for number in SIGNALS:
        _signal.signal(number, _signal.SIG_IGN)


def install_early() -> None:
    """Use this handler until the command line replaces it. A signal that is ignored stays ignored.

    `atexit` calls its first function last. Then Python removes all handlers, and frees PyTorch for a second.
    """
    atexit.register(ignore_signals)
    for number in SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, exit_at_once)
