"""One JSON line on stderr for each request, and for what happens to the server."""

import json
import re
import secrets
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

TO_JSON = json.JSONEncoder(default=str)
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestLog:
    """Writes JSON lines. Threads can share it.

    Args:
        stream: Where the lines go; stderr by default.
        worker: The number of the worker process, for all lines.
    """

    def __init__(self, stream: TextIO | None = None, worker: int | None = None) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._worker = {} if worker is None else {"worker": worker}

    def write(self, event: str, **facts: Any) -> None:
        """Write one line. Facts that are None are left out."""
        line: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
        line |= self._worker | {key: value for key, value in facts.items() if value is not None}
        text = TO_JSON.encode(line)
        with self._lock, suppress(OSError, ValueError):  # nobody may be reading stderr
            stream = self._stream or sys.stderr
            stream.write(text + "\n")
            stream.flush()


def request_id(given: str | None) -> str:
    """The id of a request: the client's, if it is a short word; else a new one."""
    return given if given and REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
