"""Threads that take work in order, and small work in groups."""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Group:
    """Work that is done together, at the latest when it is due."""

    due: float
    together: Callable[[list[Any]], None]
    entries: list[Any] = field(default_factory=list)

    def work(self) -> None:
        self.together(self.entries)


class Threads:
    """A pool of threads.

    An entry of a group waits for others only while further work waits for a thread, and never longer than
    `wait`. Work must not raise exceptions.

    Args:
        count: Number of threads.
        most: Entries of a group that waits no longer.
        wait: Most seconds that an entry of a group waits for others.
    """

    def __init__(self, count: int, most: int, wait: float) -> None:
        self._most, self._wait = most, wait
        self._queue: deque[Callable[[], None]] = deque()
        self._groups: dict[Hashable, _Group] = {}  # the oldest first
        self._full: deque[_Group] = deque()
        self._lock = threading.Lock()
        self._idle: list[threading.Condition] = []  # of the threads that wait, the last one that worked last
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"run-{number}", daemon=True) for number in range(count)
        ]
        for each in self._threads:
            each.start()

    def submit(self, work: Callable[[], None]) -> bool:
        """Do the work when a thread is free. False if the threads are closed."""
        with self._lock:
            if not self._closed:
                self._queue.append(work)
                self._wake()
            return not self._closed

    def join(self, key: Hashable, entry: Any, together: Callable[[list[Any]], None]) -> None:
        """Add an entry to the group with this key. `together` receives the entries of the group."""
        with self._lock:
            group = self._groups.setdefault(key, _Group(time.monotonic() + self._wait, together))
            group.entries.append(entry)
            if len(group.entries) >= self._most:
                self._full.append(self._groups.pop(key))
            self._wake()

    def close(self) -> None:
        """Take no more work. Work that is not started is dropped; the threads end with their current work."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._groups.clear()
            self._full.clear()
            while self._idle:
                self._wake()

    def wait(self, seconds: float) -> bool:
        """Wait for the threads after `close`. False if one still works after so many seconds."""
        end = time.monotonic() + seconds
        for each in self._threads:
            each.join(max(0.0, end - time.monotonic()))
        return not any(each.is_alive() for each in self._threads)

    def _wake(self) -> None:
        """Wake the thread that worked last: its memory is still in the caches."""
        if self._idle:
            self._idle.pop().notify()

    def _run(self) -> None:
        woken = threading.Condition(self._lock)
        while (work := self._next(woken)) is not None:
            work()
            del work  # an idle thread must not keep a request

    def _next(self, woken: threading.Condition) -> Callable[[], None] | None:
        with self._lock:
            while not self._closed:
                if self._full:
                    return self._full.popleft().work
                key, oldest = next(iter(self._groups.items()), (None, None))
                if self._queue and (oldest is None or time.monotonic() < oldest.due):
                    return self._queue.popleft()
                if oldest is not None:
                    del self._groups[key]
                    return oldest.work
                self._idle.append(woken)
                woken.wait()
            return None
