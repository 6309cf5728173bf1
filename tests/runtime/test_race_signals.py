"""A signal while the process of a benchmark starts."""

import multiprocessing as mp
import os
import signal
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
