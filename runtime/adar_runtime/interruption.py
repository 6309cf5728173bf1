"""Long computations that a caller may stop: it sets a check, which the computation calls between its parts.

The check belongs to one thread (it is a context variable), so that functions in between need no parameter.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextmanager
def interruptible(check: Callable[[], None]) -> Iterator[None]:
    """Inside the block, `interruption_point` calls `check`, which may raise an exception."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def interruption_point() -> None:
    """Between two parts of a long computation: raise what the check of the caller raises, if there is one."""
    check = _check.get()
    if check is not None:
        check()
