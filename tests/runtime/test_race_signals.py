"""A signal while the process of a benchmark starts."""

import multiprocessing as mp
import os
import signal
import threading
import time
from multiprocessing.process import BaseProcess

import pytest

from adar_runtime.benchmarking.race import Worker


def test_a_process_that_was_just_started_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program waited until it had imported everything: SIGTERM is blocked until then."""
    start = BaseProcess.start

    def start_and_interrupt(process: BaseProcess) -> None:
        start(process)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(BaseProcess, "start", start_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        Worker(dict)
    assert mp.active_children() == []


def test_a_signal_that_another_thread_receives_waits_for_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of numerical libraries do not block signals. A process that half starts prints a traceback."""
    start, started, done = BaseProcess.start, list[BaseProcess](), threading.Event()

    def interrupt_and_start(process: BaseProcess) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        start(process)
        started.append(process)

    thread = threading.Thread(target=done.wait)
    thread.start()
    monkeypatch.setattr(BaseProcess, "start", interrupt_and_start)
    with pytest.raises(KeyboardInterrupt):
        Worker(dict)
    done.set()
    thread.join()
    assert len(started) == 1
    assert mp.active_children() == []
