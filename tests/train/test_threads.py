"""Training leaves cores that other processes use."""

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from adar_train import threads

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs Linux and two cores")


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.delenv(threads.GIVEN, raising=False)
    torch.set_num_threads(2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(CORES[:2]))
    yield
    torch.set_num_threads(before)


def stat(busy: int) -> str:
    """The file of a machine whose first cores are busy: they have other work in four of five ticks."""
    lines = [
        f"cpu{core} {80 * (index < busy)} 0 0 {20 if index < busy else 100} 0 0 0 0 0 0"
        for index, core in enumerate(CORES)
    ]
    return "\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *lines, "intr 5", ""])


@pytest.mark.parametrize(("busy", "used"), [(0, 2), (1, 1), (2, 1)])
def test_it_uses_the_idle_cores(
    busy: int, used: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, notes = tmp_path / "stat", list[str]()
    file.write_text("\n".join(f"cpu{core} 0 0 0 0 0 0 0 0 0 0" for core in CORES))
    monkeypatch.setattr(threads, "STAT", file)
    monkeypatch.setattr("time.sleep", lambda _: file.write_text(stat(busy)))
    threads.avoid_busy_cores(notes.append)
    assert torch.get_num_threads() == used
    assert len(notes) == (used < 2)
    assert not notes or notes[0].startswith(f"{busy} processor core")


def test_a_given_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.GIVEN, "2")
    monkeypatch.setattr(threads, "STAT", None)  # not read
    threads.avoid_busy_cores(pytest.fail)
    assert torch.get_num_threads() == 2


def test_without_the_file_no_core_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "STAT", tmp_path / "missing")
    assert threads.busy_cores() == 0


def _spin(ready: "multiprocessing.synchronize.Event") -> None:
    ready.set()
    while True:
        pass


def test_a_real_process_keeps_a_core_busy() -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_spin, args=(ready,), daemon=True)
    process.start()
    try:
        assert ready.wait(10)
        assert threads.busy_cores() >= 1
    finally:
        process.kill()
        process.join()
