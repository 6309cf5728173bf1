"""A progress bar in a notebook: one output that is updated. It needs IPython, which a notebook has."""

import html
import time
from importlib import import_module
from typing import Any

REFRESH = 0.2  # seconds between two updates: every update is a message to the browser


class NotebookBar:
    """Shows the progress of one task below the cell. The last state stays."""

    def __init__(self, title: str, total: float) -> None:
        self._title, self._total = title, total
        self._display: Any = None  # the handle of the output
        self._started = time.monotonic()
        self._shown = 0.0
        self._last: tuple[float, str] | None = None  # the state that is not shown yet

    def update(self, completed: float, status: str) -> None:
        """Show a new state, or keep it for `close` if the last update was just before."""
        self._last = (completed, status)
        if time.monotonic() - self._shown >= REFRESH:
            self._show()

    def close(self) -> None:
        """Show the last state."""
        if self._last is not None:
            self._show()

    def _show(self) -> None:
        ipython: Any = import_module("IPython.display")  # it has no types
        assert self._last is not None
        (completed, status), self._last = self._last, None
        self._shown = time.monotonic()
        text = f"{status}  after {self._shown - self._started:.0f} s".strip()
        content = ipython.HTML(
            f"<div>{html.escape(self._title)} <progress value='{min(completed, self._total):g}' "
            f"max='{self._total:g}'></progress> {html.escape(text)}</div>"
        )
        if self._display is None:
            self._display = ipython.display(content, display_id=True)
        else:
            self._display.update(content)
