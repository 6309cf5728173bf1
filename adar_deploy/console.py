"""All that touches rich: where messages go, and what tables and bars look like."""

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from adar_runtime.manifest import Manifest

# Colons in names and profiles are colons: rich would make a picture of ":100:".
out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)
WIDE = 90  # columns of a window that has room for everything
GAP = 2  # blanks between two columns of a table
CHECKED = 25  # characters of what a check is of
NARROWEST = 6  # characters that a column keeps, however narrow the window
OFTEN, SELDOM = 10.0, 60.0  # seconds between two lines of a log, if much was done between them and if not
LEVELS = "▁▂▃▄▅▆▇█"


def printable(text: object) -> str:
    """One line in which nothing can move the cursor: names come from files, and files from anywhere."""
    line = " ".join(str(text).split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def print_error(message: str) -> None:
    """One line, unbroken however narrow the window, so that it can be searched for."""
    err.print(f"[bold red]error:[/] {escape(printable(message))}", soft_wrap=True)


def print_facts(title: str, facts: Mapping[str, Any], indent: int = 0) -> None:
    """A short table: a name, and what there is to say about it."""
    if title:
        out.print(" " * indent + printable(title), style="bold" if not indent else "", markup=False)
    table = Table(show_header=False, box=None, padding=(0, GAP, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(" " * 2 * indent + escape(printable(name)), escape(printable(value)))
    out.print(table)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table with a heading; all but the first column are numbers.

    In a window too narrow for it, what the first column says of a row becomes a line above it.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [
        max([len(row[index]) for row in cells] + [len(word) for word in column.split()])
        for index, column in enumerate(columns)
    ]
    if sum(widths) + GAP * len(widths) <= out.width:
        out.print(_table(columns, cells))
        return
    widest = max(range(1, len(widths)), key=lambda index: widths[index])
    others = sum(widths[1:]) - widths[widest] + GAP * len(widths)
    widths[widest] = max(NARROWEST, min(widths[widest], out.width - others))
    out.print(columns[0], style="cyan")
    shown = False
    for name, *rest in cells:
        if name:
            out.print(name, style="bold", markup=False)
        out.print(_table(columns[1:], [rest], widths[1:], heading=not shown))
        shown = True


def _table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    widths: Sequence[int] | None = None,
    *,
    heading: bool = True,
) -> Table:
    """With widths that are given, its columns stand under those of other tables, and all are numbers."""
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="cyan", show_header=heading)
    for index, column in enumerate(columns):
        table.add_column(
            column,
            justify="right" if index or widths else "left",
            overflow="fold",
            width=widths[index] if widths else None,
        )
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def print_checks(title: str, rows: Iterable[tuple[str, str, str, str, str]]) -> None:
    """A mark and its colour, what was looked at, what was found and, unbroken, the command that mends it."""
    out.print(title, style="bold", markup=False)
    for mark, colour, name, detail, mend in rows:
        table = Table(show_header=False, box=None, padding=(0, GAP, 0, 0))
        table.add_column(style=colour, width=1)
        table.add_column(no_wrap=True, width=CHECKED, overflow="ellipsis")
        table.add_column(overflow="fold")
        table.add_row(mark, escape(printable(name)), escape(printable(detail)))
        out.print(table)
        if mend:
            out.print(f"   [dim]→[/] {escape(printable(mend))}", soft_wrap=True)


def print_note(message: str, to: Console = out) -> None:
    """Something that the reader should not miss; to stderr while the answer is still to come."""
    to.print(f"[yellow]note:[/] {escape(message)}", soft_wrap=True)


def print_warning(message: str) -> None:
    """Something that will cost the reader something."""
    out.print(f"[bold yellow]warning:[/] {escape(printable(message))}", soft_wrap=True)


def print_next(*words: object) -> None:
    """The arguments of `adar-deploy` to go on with, as a shell takes them."""
    command = shlex.join(["adar-deploy", *(printable(word) for word in words)])
    out.print(f"[dim]next:[/] {escape(command)}", soft_wrap=True)


class Bar:
    """How far work has come, on stderr: a bar that is gone at the end or, in a log, a line now and then."""

    def __init__(self, title: str, total: float, *, counted: bool = True, shown: bool = True) -> None:
        self.shown = shown
        self.moves = shown and err.is_terminal
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None if err.width >= WIDE else 8),
            *([MofNCompleteColumn()] if counted else []),
            TextColumn("{task.fields[status]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=err,
            transient=True,
            disable=not self.moves,
        )
        self._task: TaskID = self._progress.add_task(title, total=total, status="")
        self._log = _Log(title, total, counted=counted)

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, completed: float, status: str) -> None:
        if self.moves:
            self._progress.update(self._task, completed=completed, status=status)
        elif self.shown:
            self._log.update(completed, status)


class _Log:
    """A line for each tenth of the work and its end; none of what is quick, one a minute of what is slow."""

    def __init__(self, title: str, total: float, *, counted: bool) -> None:
        self._title, self._total, self._counted = title, total, counted
        self._started = self._told = time.monotonic()
        self._tenth = 0

    def update(self, completed: float, status: str) -> None:
        now, tenth = time.monotonic(), int(10 * completed / self._total)
        wait = OFTEN if tenth != self._tenth else SELDOM
        if 0 < self._tenth < 10 <= tenth:
            wait = 0.0  # who has read of the work wants to read of its end
        if now - self._told < wait:
            return
        self._told, self._tenth = now, tenth
        share = min(1.0, completed / self._total)
        done = f"{int(completed):,}/{int(self._total):,}" if self._counted else f"{share:.0%}"
        line = f"{self._title}  {done}  {status}  after {now - self._started:.0f} s"
        err.print(line, markup=False, soft_wrap=True)


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve in a few characters, from its lowest value to its highest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    places = range(min(width, len(values)))
    picked = [values[round(i * (len(values) - 1) / max(1, len(places) - 1))] for i in places]
    top = len(LEVELS) - 1
    return "".join(LEVELS[round(top * (value - low) / ((high - low) or 1))] for value in picked)


def percent(value: float) -> str:
    """A share of one, as people read it."""
    return f"{100 * value:.2f} %"


def megabytes(manifest: "Manifest") -> str:
    """The size of a bundle's graphs."""
    return f"{sum(file.bytes for file in manifest.graphs.values()) / 1e6:.1f} MB"
