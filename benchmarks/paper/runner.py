"""Run the rows that are missing, each in a child process, and keep every result."""

import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.paper.parts import PARTS
from benchmarks.paper.table import Key, Table, make_row
from benchmarks.paper.tasks import Task

ROOT = Path(__file__).parents[2]
# Training allocates and frees large arrays. Without these settings, glibc returns them to the system each
# time, and half of the time of a baseline goes into page faults. Memory is measured without them.
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "67108864"}
MEASURES_MEMORY = ("compute",)
Show = Callable[[Task, float, str], None]


@dataclass(frozen=True)
class Selection:
    """What the user asked for. `sets`, `methods` and `settings` of None are all of a part."""

    parts: Sequence[str]
    sets: Sequence[str] | None
    methods: Sequence[str] | None
    quick: bool
    settings: Sequence[str] | None = None

    def planned(self, table: Table) -> list[Task]:
        """All tasks, whether or not they are done."""
        found = []
        for name in self.parts:
            part = PARTS[name]
            sets = tuple(one for one in part.sets if self.sets is None or one in self.sets)
            found += part.tasks(table, sets, self.quick)
        return [task for task in found if self._selects(task.key)]

    def _selects(self, key: Key) -> bool:
        return (self.methods is None or key.method in self.methods) and (
            self.settings is None or key.setting in self.settings
        )

    def left(self, table: Table) -> list[Task]:
        """The tasks that are not done."""
        return [task for task in self.planned(table) if not table.is_done(task.key, quick=self.quick)]


def is_ready(task: Task, table: Table) -> bool:
    """Whether all rows that this task waits for have ended."""
    return all(table.find(key) is not None or table.failure(key) is not None for key in task.waits_for)


def estimate(task: Task, table: Table, *, quick: bool) -> float:
    """Seconds of a task: the median of rows of this method and set, else of this method, else the guess."""
    quick = quick and task.has_quick_form
    rows = [
        row for row in table.rows(task.key.part) if row["method"] == task.key.method and row["quick"] == quick
    ]
    same = [row["wall_seconds"] for row in rows if row["set"] == task.key.set and "wall_seconds" in row]
    return median(same) if same else task.guess * (0.4 if quick else 1.0)


class Worker:
    """The child process. It serves many rows, because it takes seconds to import PyTorch."""

    def __init__(self, threads: int, *, memory: bool) -> None:
        self.memory = memory
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.paper.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)} | ({} if memory else MALLOC),
            cwd=ROOT,
            process_group=0,  # Ctrl-C reaches the parent alone, which ends the whole group
        )

    def measure(self, task: str, show: Callable[[float, str], None]) -> dict[str, Any]:
        """Send a task and wait for its row or its error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(task + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                answer: dict[str, Any] = json.loads(line)
                if "share" not in answer:
                    return answer
                show(answer["share"], answer["text"])
        except BrokenPipeError:
            pass
        return {"error": f"the process ended with code {self._process.wait()}, perhaps without memory"}

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """End the process and the processes that it started."""
        with self._process as process:  # closes the pipes
            if self.alive:
                os.killpg(process.pid, signal.SIGTERM)


def run_all(
    table: Table,
    selection: Selection,
    data: Path,
    show: Show,
    threads: int,
    seconds: float = math.inf,
) -> list[Key]:
    """Run what is left; return the rows that failed in this run. The plan is made again after each row.

    Ctrl-C ends the child process and loses only the current row. After `seconds`, no row is started.
    """
    failed: list[Key] = []
    worker: Worker | None = None
    about = provenance(threads)
    began = time.monotonic()
    try:
        while True:
            todo = [task for task in selection.left(table) if task.key not in failed]
            task = next((one for one in todo if is_ready(one, table)), None)
            if task is None or time.monotonic() - began >= seconds:
                return failed
            memory = task.key.part in MEASURES_MEMORY
            if (
                worker is None or memory or worker.memory or not worker.alive
            ):  # a new peak needs a new process
                if worker is not None:
                    worker.end()
                worker = Worker(threads, memory=memory)
            show(task, 0.0, "starts")
            quick = selection.quick and task.has_quick_form
            answer = worker.measure(task.to_json(data.resolve(), quick=quick), partial(show, task))
            values = answer["row"] if "row" in answer else {"error": answer["error"]}
            table.add(make_row(task.key, quick=quick, **_finite(values), **about))
            if "error" in answer:
                failed.append(task.key)
            show(task, 1.0, answer.get("error") or "done")
    finally:
        if worker is not None:
            worker.end()


def provenance(threads: int) -> dict[str, Any]:
    """Where and with what a row was measured."""
    return {
        "revision": revision(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "threads": threads,
        "torch": version("torch"),
        "torch_geometric": version("torch_geometric"),
    }


def revision() -> str:
    """The commit of the code, with a + if files of the packages differ from it."""
    try:
        commit = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--", "train", "runtime", "adar_deploy", "benchmarks/paper")
    except (OSError, subprocess.CalledProcessError):
        return f"release {version('adar-deploy')}"
    return commit + ("+" if changed else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _finite(value: Any) -> Any:
    """The same value with None instead of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value
