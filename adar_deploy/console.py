"""All that touches rich: where messages go, and what tables and bars look like."""

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from adar_runtime.bundle.manifest import Manifest

# Colons in names and profiles are colons: rich would make a picture of ":100:".
out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)
WIDE = 90  # columns of a window that has room for everything
TEXT = 18  # characters of a cell that is no number any more, and may be broken
GAP = 2  # blanks between two columns of a table
CHECKED = 25  # characters of what a check is of
OFTEN, SELDOM = 10.0, 60.0  # seconds between two lines of a log, if much was done between them and if not
LEVELS = "▁▂▃▄▅▆▇█"
Lines = Sequence[Sequence[str]]


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

    In a window too narrow for it, what the first column says of a row becomes a line above it; in one too
    narrow even then, the rest of the row is folded into several lines, as the heading is.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    for broken in (False, True):
        widths = _widths([columns], cells, broken=broken)
        if _room(widths) <= out.width:
            out.print(_table([columns], widths, named=True, heading=True))
            out.print(_table(cells, widths, named=True))
            return
    out.print(columns[0], style="cyan", markup=False)
    heading, folded, widths = _fold(columns[1:], [row[1:] for row in cells])
    out.print(_table(heading, widths, heading=True))
    for (name, *_), lines in zip(cells, folded, strict=True):
        if name:
            out.print(name, style="bold", markup=False)
        out.print(_table(lines, widths))


def _fold(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[Lines, Sequence[Lines], list[int]]:
    """The lines of the heading and of each row, as few as fit into the window, and how wide columns are."""
    for count in range(1, len(columns) + 1):
        length = -(-len(columns) // count)
        heading, *folded = (
            [row[i : i + length] for i in range(0, len(row), length)] for row in (columns, *rows)
        )
        for broken in (False, True) if count == 1 else (False,):
            widths = _widths(heading, [line for lines in folded for line in lines], broken=broken)
            if _room(widths) <= out.width:
                return heading, folded, widths
        missing, widest = _room(widths) - out.width, max(widths)
        if widest >= TEXT and missing <= widest / 3:  # better one cell in two lines than every row
            widths[widths.index(widest)] -= missing
            return heading, folded, widths
    return heading, folded, widths


def _widths(heading: Lines, lines: Lines, *, broken: bool) -> list[int]:
    """Of the columns. A heading that may be broken takes no more room than its longest word."""
    words = [[max(text.split() if broken else [text], key=len) for text in line] for line in heading]
    return [max(map(len, column)) for column in zip_longest(*words, *lines, fillvalue="")]


def _room(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * len(widths)


def _table(lines: Lines, widths: Sequence[int], *, named: bool = False, heading: bool = False) -> Table:
    """Its columns stand under those of other tables of these widths; the first one may be of names."""
    table = Table(box=None, padding=(0, GAP, 0, 0), show_header=False)
    for index, width in enumerate(widths):
        table.add_column(
            justify="left" if named and not index else "right",
            vertical="bottom" if heading else "top",
            overflow="fold",
            width=min(width, out.width - GAP),
            style="cyan" if heading else "",
        )
    for line in lines:
        table.add_row(*map(escape, line))
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


def predicted(count: int | None, level: str, *, regression: bool) -> str:
    """What is predicted: "7 classes of each node", or "1 number"; None is any number of them."""
    if count == 0:
        return "nothing: no labels"
    one, many = ("number", "numbers") if regression else ("class", "classes")
    what = many if count is None else f"{count:,} {one if count == 1 else many}"
    return f"{what} of each {level}"


def megabytes(manifest: "Manifest") -> str:
    """The size of a bundle's graphs."""
    return f"{sum(file.bytes for file in manifest.onnx_models.values()) / 1e6:.1f} MB"
