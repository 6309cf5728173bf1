"""The results on disk: one JSON line per row, one file per part. A row is never changed, only superseded."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """What identifies a row. `setting` is a short name; the row itself has all settings."""

    part: str
    set: str
    split: int
    method: str
    setting: str = "default"
    seed: int = 0

    @classmethod
    def of(cls, row: Row) -> "Key":
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})

    def __str__(self) -> str:
        place = f"{self.set} {self.split}" if self.split else self.set
        seed = f" seed {self.seed}" if self.seed else ""
        return f"{self.part}: {place}, {self.method}, {self.setting}{seed}"


class Table:
    """All rows of a folder. A finished full row counts before a quick one, a quick one before a failure."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[Key, Row] = {}
        self._quick: dict[Key, Row] = {}
        for file in sorted(folder.glob("*.jsonl")):
            for row in _read(file):
                self._take(row)

    def add(self, row: Row) -> None:
        """Append a row to its file. The line is on disk when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps(row, sort_keys=True, allow_nan=False) + "\n"
        with (self.folder / f"{row['part']}.jsonl").open("a+b") as file:
            if file.tell() and not _ends_with_newline(file):  # the last run was killed while it wrote
                line = "\n" + line
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        self._take(row)

    def find(self, key: Key) -> Row | None:
        """The finished row, full or quick."""
        row = self._rows.get(key)
        return row if row is not None and "error" not in row else None

    def find_alike(self, keys: Iterable[Key]) -> dict[Key, Row]:
        """The finished rows of these keys in one form: if not all are full, the quick ones."""
        found = {key: row for key in keys if (row := self.find(key)) is not None}
        if len({row["quick"] for row in found.values()}) > 1:
            found = {key: self._quick[key] for key in found if key in self._quick}
        return found

    def failure(self, key: Key) -> str | None:
        """The message of a row that failed."""
        row = self._rows.get(key)
        return None if row is None else row.get("error")

    def is_done(self, key: Key, *, quick: bool) -> bool:
        """Whether nothing is left to run: a full run does not accept a quick row."""
        row = self.find(key)
        return row is not None and (quick or not row["quick"])

    def rows(self, part: str) -> list[Row]:
        """The finished rows of a part."""
        return [row for key, row in self._rows.items() if key.part == part and "error" not in row]

    def _take(self, row: Row) -> None:
        key = Key.of(row)
        if row["quick"] and "error" not in row:
            self._quick[key] = row
        if key not in self._rows or _rank(row) >= _rank(self._rows[key]):
            self._rows[key] = row


def make_row(key: Key, *, quick: bool, **values: Any) -> Row:
    """A row with its key."""
    return {**asdict(key), "quick": quick, **values}


def _rank(row: Row) -> int:
    return 0 if "error" in row else 1 if row["quick"] else 2


def _read(file: Path) -> Iterator[Row]:
    """The rows of a file. A line that was cut off when a run was killed is no row."""
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
            Key.of(row)
        except (ValueError, KeyError, TypeError):
            continue
        yield row


def _ends_with_newline(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    last: bytes = file.read(1)
    return last == b"\n"
