"""Reading ahead: the next thing is fetched in the background while the one before is worked on."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def read_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items in the same order; what fetching one raises comes out in its place."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "read-ahead") as reader:
        upcoming = reader.submit(next, source, end)
        while (item := upcoming.result()) is not end:
            upcoming = reader.submit(next, source, end)
            yield item  # type: ignore[misc]
