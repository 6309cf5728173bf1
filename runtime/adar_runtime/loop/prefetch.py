"""Fetch the next item in the background while the caller works on the current one."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetch(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the same items in the same order; an error while fetching an item is raised in its place."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "prefetch") as reader:
        upcoming = reader.submit(next, source, end)
        while (item := upcoming.result()) is not end:
            upcoming = reader.submit(next, source, end)
            yield item  # type: ignore[misc]
