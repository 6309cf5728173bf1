"""What a row needs: its key, the name of the work, and options that the child process receives."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.paper.table import Key, Row, Table

SEARCH_SPLIT, CHOSEN = 0, "chosen"


@dataclass(frozen=True)
class Task:
    """One row to measure. `guess` is a rough number of seconds, used until similar rows were measured."""

    key: Key
    guess: float
    options: dict[str, Any] = field(default_factory=dict)
    waits_for: tuple[Key, ...] = ()  # rows that decide this task's options
    has_quick_form: bool = True  # False: `--quick` measures the full row

    def to_json(self, data: Path, *, quick: bool) -> str:
        """The argument of the child process."""
        fields = {"key": asdict(self.key), "options": self.options, "data": str(data), "quick": quick}
        return json.dumps(fields)


@dataclass(frozen=True)
class Work:
    """What the child process gets: the task, the data folder and how to report progress."""

    key: Key
    options: dict[str, Any]
    data: Path
    quick: bool
    report: Callable[[float, str], None]  # share of the work, and a few words

    def file(self, name: str | None = None) -> Path:
        """The file of a set; by default, of the row's set."""
        file = self.data / f"{name or self.key.set}.npz"
        return file if file.exists() else self.data / "more" / file.name


@dataclass(frozen=True)
class Part:
    """A part of the benchmark: its tasks, given the rows so far, and the function that measures one."""

    name: str
    sets: tuple[str, ...]
    tasks: Callable[[Table, tuple[str, ...], bool], list[Task]]
    measure: Callable[[Work], Row]


def best_setting(table: Table, key: Key, settings: list[str]) -> str | None:
    """The setting with the best validation metric on the split of the search; None before all have ended.

    A setting that failed takes no part.
    """
    keys = {name: _searched(key, name) for name in settings}
    if any(table.find(one) is None and table.failure(one) is None for one in keys.values()):
        return None
    found = {name: row["val"] for name, one in keys.items() if (row := table.find(one)) is not None}
    return max(found, key=lambda name: found[name]) if found else None


def _searched(key: Key, setting: str) -> Key:
    return Key(key.part, key.set, SEARCH_SPLIT, key.method, setting, key.seed)


def searched_keys(key: Key, settings: list[str]) -> tuple[Key, ...]:
    """The rows of the search that a chosen row waits for."""
    return tuple(_searched(key, name) for name in settings)
