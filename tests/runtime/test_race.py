"""Sides in their own processes: turns, errors and termination."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from adar_runtime.benchmarking.race import Worker, _no_interrupts, peak_bytes, race, spread
from adar_runtime.errors import BackendError


def noted(side: str, log: str):
    """A side that logs its turns and its process."""

    def turn(word: str) -> tuple[float, int]:
        with Path(log).open("a") as file:
            file.write(f"{side}{word} ")
        return 0.5, os.getpid()

    return turn


def holding(size: int):
    held = np.ones(size, np.uint8)
    return lambda: (float(held[-1]), peak_bytes())


def failing():
    raise ValueError("no such device\nand more")


def dying():
    return lambda: os._exit(3)


def endless():
    def turn() -> tuple[float, None]:
        time.sleep(600)
        return 0.0, None

    return turn


def test_sides_take_turns_in_processes_of_their_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    workers = {side: Worker(noted, side, str(log)) for side in "ab"}
    processes = []
    seconds = race(workers, 3, "!", on_turn=lambda side, process: processes.append((side, process)))
    for worker in workers.values():
        worker.end()
    assert log.read_text() == "a! b! a! b! a! b! "
    assert seconds == {"a": [0.5] * 3, "b": [0.5] * 3}
    assert len({process for _, process in processes} | {os.getpid()}) == 3


@pytest.mark.parametrize(("build", "message"), [(failing, "^no such device$"), (dying, "died")])
def test_what_goes_wrong_there_is_an_error_here(build, message: str) -> None:
    worker = Worker(build)
    with pytest.raises(BackendError, match=message):
        worker.turn()
    worker.end()


def test_the_end_does_not_wait_for_a_turn() -> None:
    worker = Worker(endless)
    worker._pipe.send(())
    started = time.monotonic()
    worker.end()
    assert time.monotonic() - started < 30


def test_a_peak_is_of_a_side_alone() -> None:
    """The peak excludes the memory of the parent and of other sides."""
    parent = np.ones(2**28, np.uint8)
    workers = {size: Worker(holding, size) for size in (2**20, 2**27)}
    small, large = (worker.turn()[1] for worker in workers.values())
    for worker in workers.values():
        worker.end()
    assert 2**26 < large - small < 2**28
    assert peak_bytes() > small + parent.nbytes / 2


def test_spread() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0], 1) == "3.0 [2.0, 4.0]"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_waits_until_a_process_has_started(number: signal.Signals) -> None:
    """Otherwise that process prints a traceback: what it has to do never arrives."""
    received = list[int]()
    before = signal.signal(number, lambda found, _: received.append(found))
    try:
        with _no_interrupts():
            signal.raise_signal(number)
            assert received == []
        assert received == [number]
    finally:
        signal.signal(number, before)
