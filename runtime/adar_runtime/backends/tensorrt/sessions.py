"""The sessions of a bundle's engines: reused for graphs of the same shapes, and released to save memory."""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock

from adar_runtime.backends.tensorrt.context import Shape
from adar_runtime.backends.tensorrt.cuda import OutOfMemoryError
from adar_runtime.backends.tensorrt.session import Session

Shapes = frozenset[tuple[str, Shape]]
IDLE_SHARE = 0.25  # of the device's memory: what idle sessions may hold
MOST_IDLE = 16  # idle sessions: TensorRT does not say how much memory the contexts of a session hold
REMEMBERED_SHAPES = 4096  # to know whether shapes are seen again
EAGER_SHAPES = 4  # shapes for which kernels are compiled at once; later ones only when they are seen again


class SessionPool:
    """Idle sessions by the shapes that they are prepared for."""

    def __init__(self, make: Callable[[bool], Session]) -> None:
        self._make = make  # from whether kernels are compiled for the shapes before the first run
        self._idle: list[tuple[Shapes, Session]] = []  # the least recently used first
        self._returned: deque[tuple[Shapes, Session]] = deque()  # not yet in `_idle`
        self._seen: dict[Shapes, None] = {}  # the first seen first
        self._lock = Lock()

    def run(self, shapes: Mapping[str, Shape], prepare: Callable[[Session], None]) -> Session:
        """A session after `prepare`. If the device has too little memory, without idle sessions."""
        key = frozenset(shapes.items())
        with suppress(OutOfMemoryError):
            return _prepared(self._take(key), prepare)
        self.release()
        return _prepared(self._take(key), prepare)

    def give_back(self, shapes: Mapping[str, Shape], session: Session) -> None:
        """Keep a session for the next graph of these shapes.

        The garbage collector calls this at any time, also in a thread that holds the lock: it takes no lock.
        """
        self._returned.append((frozenset(shapes.items()), session))

    def release(self) -> None:
        """Free the memory of all idle sessions."""
        with self._lock:
            self._collect()
            self._idle.clear()

    def _collect(self) -> None:
        """Add returned sessions to the idle ones, and release those that were not used for longest."""
        while self._returned:
            self._idle.append(self._returned.popleft())
        del self._idle[:-MOST_IDLE]
        while self._idle and self._idle_bytes() > IDLE_SHARE * self._idle[0][1].cuda.total_memory:
            self._idle.pop(0)

    def _idle_bytes(self) -> int:
        return sum(session.bytes for _, session in self._idle)

    def _take(self, key: Shapes) -> Session:
        with self._lock:
            eager = self._is_eager(key)
            self._collect()
            for index in reversed(range(len(self._idle))):
                if self._idle[index][0] == key:
                    found = self._idle.pop(index)[1]
                    if found.eager or not eager:
                        return found
                    break  # the captured steps of a lazy session keep its general kernels
        return self._make(eager)

    def _is_eager(self, key: Shapes) -> bool:
        """Whether to wait for specialised kernels. A stream of ever new shapes would wait for each graph."""
        eager = key in self._seen or len(self._seen) < EAGER_SHAPES
        self._seen[key] = None
        if len(self._seen) > REMEMBERED_SHAPES:
            del self._seen[next(iter(self._seen))]
        return eager


def _prepared(session: Session, prepare: Callable[[Session], None]) -> Session:
    prepare(session)
    return session
