"""Output with rich: messages, tables and progress bars. No other module uses rich to print."""

import errno
import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from adar_deploy.notebook_bar import NotebookBar


class Results(Console):
    """stdout. If nobody reads it any more, that is an error of the command, as for a full disk."""

    def on_broken_pipe(self) -> None:
        """Raise the error. Rich would end the process with exit code 1 and without a message."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Messages(Results):
    """stderr. A message that cannot be written is dropped: it must not end a training."""

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError:
            discard(sys.stderr)


def discard(stream: Any) -> None:
    """Send what is left in the buffer nowhere: Python would report the same error again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# No emoji: rich would replace ":100:" in a name or profile by a picture.
out = Results(highlight=False, emoji=False)
err = Messages(stderr=True, highlight=False, emoji=False)
WIDE = 90  # width of a terminal that has room for a full status line
TEXT = 18  # a cell with at least this many characters is text and may be wrapped
GAP = 2  # spaces between two columns of a table
CHECK_NAME = 25  # width of the column of names in print_checks
# Seconds between two lines of a log: with and without a tenth of the work done in between.
LOG_INTERVAL, SLOW_LOG_INTERVAL = 10.0, 60.0
LEVELS = "▁▂▃▄▅▆▇█"
Lines = Sequence[Sequence[str]]


def printable(text: object) -> str:
    """One line without control characters: names come from files, and files may come from anybody."""
    line = " ".join(str(text).split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def print_error(message: str) -> None:
    """Print one line. It is never wrapped, so that users can search for it."""
    err.print(f"[bold red]error:[/] {escape(printable(message))}", soft_wrap=True)


def print_facts(title: str, facts: Mapping[str, Any], indent: int = 0) -> None:
    """Print a table of names and values."""
    if title:
        out.print(" " * indent + printable(title), style="bold" if not indent else "", markup=False)
    table = Table(show_header=False, box=None, padding=(0, GAP, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(" " * 2 * indent + escape(printable(name)), escape(printable(value)))
    out.print(table)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table with a heading. All columns but the first contain numbers.

    In a narrow terminal the first cell of a row becomes a line above the row. In a terminal that is still
    too narrow, the heading and each row are folded into several lines.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    for wrapped in (False, True):
        widths = _widths([columns], cells, wrapped=wrapped)
        if _total_width(widths) <= out.width:
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
    """Fold the heading and the rows into as few lines as fit; also return the widths of the columns."""
    for count in range(1, len(columns) + 1):
        length = -(-len(columns) // count)
        heading, *folded = (
            [row[i : i + length] for i in range(0, len(row), length)] for row in (columns, *rows)
        )
        for wrapped in (False, True) if count == 1 else (False,):
            widths = _widths(heading, [line for lines in folded for line in lines], wrapped=wrapped)
            if _total_width(widths) <= out.width:
                return heading, folded, widths
        missing, widest = _total_width(widths) - out.width, max(widths)
        if widest >= TEXT and missing <= widest / 3:  # wrapping one cell is better than folding every row
            widths[widths.index(widest)] -= missing
            return heading, folded, widths
    return heading, folded, widths


def _widths(heading: Lines, lines: Lines, *, wrapped: bool) -> list[int]:
    """Widths of the columns. A heading that may be wrapped needs the width of its longest word."""
    words = [[max(text.split() if wrapped else [text], key=len) for text in line] for line in heading]
    return [max(map(len, column)) for column in zip_longest(*words, *lines, fillvalue="")]


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * len(widths)


def _table(lines: Lines, widths: Sequence[int], *, named: bool = False, heading: bool = False) -> Table:
    """A table with fixed widths, so that it lines up with others. `named`: the first column is text."""
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
    """Print rows of mark, colour, name, detail and fix. The fix is a command: it is never wrapped."""
    out.print(title, style="bold", markup=False)
    for mark, colour, name, detail, fix in rows:
        table = Table(show_header=False, box=None, padding=(0, GAP, 0, 0))
        table.add_column(style=colour, width=1)
        table.add_column(no_wrap=True, width=CHECK_NAME, overflow="ellipsis")
        table.add_column(overflow="fold")
        table.add_row(mark, escape(printable(name)), escape(printable(detail)))
        out.print(table)
        if fix:
            out.print(f"   [dim]→[/] {escape(printable(fix))}", soft_wrap=True)


def print_note(message: str, to: Console = out) -> None:
    """Print a note; to stderr while the command is still working."""
    to.print(f"[yellow]note:[/] {escape(printable(message))}", soft_wrap=True)


def print_warning(message: str) -> None:
    """Print a warning about a likely problem."""
    out.print(f"[bold yellow]warning:[/] {escape(printable(message))}", soft_wrap=True)


def print_next(*words: object) -> None:
    """Print the next `adar-deploy` command, quoted for a shell."""
    command = shlex.join(["adar-deploy", *(printable(word) for word in words)])
    out.print(f"[dim]next:[/] {escape(command)}", soft_wrap=True)


class _CutText(TextColumn):
    """A text that is cut if its column is too narrow."""

    def render(self, task: Task) -> Text:
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


def _bar_columns(counted: bool, wide: bool) -> Iterator[ProgressColumn]:
    """The columns of a bar. In a wide terminal the bar takes the space that is left, otherwise the status."""
    fixed = Column(no_wrap=True)
    yield TextColumn("[bold]{task.description}", table_column=fixed)
    yield BarColumn(bar_width=None) if wide else BarColumn(bar_width=8, table_column=fixed)
    if counted:
        yield MofNCompleteColumn(table_column=fixed)
    yield _CutText("{task.fields[status]}", markup=False, table_column=Column(no_wrap=wide))
    yield TimeRemainingColumn(compact=True, table_column=fixed)


class Bar:
    """Progress on stderr: a bar that disappears at the end or, in a log file, a line from time to time.

    In a notebook, it is an output of the cell.
    """

    def __init__(self, title: str, total: float, *, counted: bool = True, shown: bool = True) -> None:
        self.shown = shown
        self.moves = shown and err.is_terminal and not err.is_jupyter
        self._notebook = NotebookBar(title, total) if shown and err.is_jupyter else None
        self._progress = Progress(
            *_bar_columns(counted, wide=err.width >= WIDE),
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
        if self._notebook is not None:
            self._notebook.close()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Print inside the block without mixing lines with the bar."""
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()

    def update(self, completed: float, status: str) -> None:
        if self._notebook is not None:
            self._notebook.update(completed, status)
        elif self.moves:
            self._progress.update(self._task, completed=completed, status=status)
        elif self.shown:
            self._log.update(completed, status)


class _Log:
    """One line per tenth of the work and at the end; none for short work, one per minute for slow work."""

    def __init__(self, title: str, total: float, *, counted: bool) -> None:
        self._title, self._total, self._counted = title, total, counted
        self._started = self._printed = time.monotonic()
        self._tenth = 0

    def update(self, completed: float, status: str) -> None:
        now, tenth = time.monotonic(), int(10 * completed / self._total)
        wait = LOG_INTERVAL if tenth != self._tenth else SLOW_LOG_INTERVAL
        if 0 < self._tenth < 10 <= tenth:
            wait = 0.0  # a log that has a line about the work also has a line about its end
        if now - self._printed < wait:
            return
        self._printed, self._tenth = now, tenth
        share = min(1.0, completed / self._total)
        done = f"{int(completed):,}/{int(self._total):,}" if self._counted else f"{share:.0%}"
        seconds = now - self._started
        left = f", about {seconds * (1 / share - 1):.0f} s left" if 0 < share < 1 else ""
        line = f"{self._title}  {done}  {status}  after {seconds:.0f} s{left}"
        err.print(line, markup=False, soft_wrap=True)


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve drawn with block characters, scaled from its lowest value to its highest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    count = min(width, len(values))
    picked = [values[round(i * (len(values) - 1) / max(1, count - 1))] for i in range(count)]
    top = len(LEVELS) - 1
    return "".join(LEVELS[round(top * (value - low) / ((high - low) or 1))] for value in picked)
