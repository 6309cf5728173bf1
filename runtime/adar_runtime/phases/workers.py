"""Who runs the shards of a graph: the interface, and all shards in this process."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from adar_runtime.backends import CPU
from adar_runtime.phases.shard_worker import ShardWorker

Progress = Callable[[int, int, str], None]
"""Receives the shards that are done in this step, the number of all of them, and which ones are late."""

Message = tuple[str, tuple[Any, ...]]
"""A method of `ShardWorker`, and its arguments."""


class Workers(Protocol):
    """Who runs the shards. Arguments and results are those of the methods of `ShardWorker`."""

    name: str

    def each(self, method: str, *arguments: Any) -> Iterator[Any]:
        """Call a method of every shard. Yields the results in the order of the shards."""
        ...

    def exchange(self, send: Message, receive: Message) -> list[Any]:
        """Call a method of every shard; then another one, with the rows that the shard receives."""
        ...


class InTurn:
    """All shards in this process, one after the other."""

    name = CPU

    def __init__(self, workers: Sequence[ShardWorker], on_progress: Progress) -> None:
        self._workers, self._on_progress = workers, on_progress

    def each(self, method: str, *arguments: Any) -> Iterator[Any]:
        for number, worker in enumerate(self._workers):
            yield getattr(worker, method)(*arguments)
            self._on_progress(number + 1, len(self._workers), "")

    def exchange(self, send: Message, receive: Message) -> list[Any]:
        (sending, sent), (receiving, arguments) = send, receive
        found, count = [], len(self._workers)
        for number, worker in enumerate(self._workers):
            getattr(worker, sending)(*sent)
            self._on_progress(number + 1, 2 * count, "")
        for number, worker in enumerate(self._workers):
            blocks = [one.rows_for(number) for one in self._workers]
            found.append(getattr(worker, receiving)(*arguments, blocks))
            self._on_progress(count + number + 1, 2 * count, "")
        return found
