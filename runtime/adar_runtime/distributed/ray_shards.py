"""The shards of a graph store in Ray actors, one actor for each part.

Rows go from actor to actor through Ray's object store. Every state is also in the folder of the unfinished
inference, which all machines have to share: a lost actor is started again, reads its state there, and the
step is made again from its beginning.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_runtime.bundle.reading import read_manifest
from adar_runtime.distributed.cluster import RETRIES, import_ray, is_lost
from adar_runtime.errors import AdarError, BackendError, reason
from adar_runtime.graph import Floats
from adar_runtime.graph.store import GraphStore, open_store
from adar_runtime.phases.models import PhaseModels
from adar_runtime.phases.run_store import worker_of
from adar_runtime.phases.sharded_recurrence import Message, Progress

if TYPE_CHECKING:
    from adar_runtime.bundle.bundle import Bundle

WAIT = 0.5  # seconds between two lines about the shards that are still at work


class ShardActor:
    """One shard in a process of its own."""

    def __init__(self, bundle: Path, store: Path, number: int, work: Path, *, known: bool) -> None:
        manifest, opened = read_manifest(bundle), open_store(store)
        self._parts = opened.parts
        models = PhaseModels(bundle, manifest, threads=1, known=known)
        self._worker = worker_of(opened.part(number), models, manifest, work)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the shard."""
        return getattr(self._worker, method)(*arguments)

    def send(self, message: Message) -> list[Floats]:
        """Call a method that sends rows. Returns the rows for each shard."""
        self.call(message[0], *message[1])
        return [self._worker.rows_for(receiver) for receiver in range(self._parts)]

    def receive(self, message: Message, *blocks: Floats) -> Any:
        """Call a method with the rows of all shards."""
        return self.call(message[0], *message[1], blocks)


class RayShards:
    """See `adar_runtime.phases.sharded_recurrence.Workers`."""

    def __init__(
        self, cpus: int, bundle: "Bundle", store: GraphStore, work: Path, on_progress: Progress
    ) -> None:
        self._ray, self._count, self._on_progress = import_ray(), store.parts, on_progress
        share = min(1.0, cpus / self._count)
        actor = self._ray.remote(ShardActor).options(num_cpus=share)
        paths = bundle.path.absolute(), store.path.absolute(), work.absolute()
        self._start: Callable[[int], Any] = lambda number: actor.remote(
            paths[0], paths[1], number, paths[2], known=bundle.is_made_here
        )
        self._actors = [self._start(number) for number in range(self._count)]
        self.name = f"onnxruntime-cpu on {self._count} Ray actors"

    def each(self, method: str, *arguments: Any) -> Iterator[Any]:
        given = [self._ray.put(one) for one in arguments]
        yield from self._results(lambda: [actor.call.remote(method, *given) for actor in self._actors])

    def exchange(self, send: Message, receive: Message) -> list[Any]:
        sending, receiving = self._ray.put(send), self._ray.put(receive)

        def begin() -> list[Any]:
            sent = [actor.send.options(num_returns=self._count).remote(sending) for actor in self._actors]
            blocks = zip(*sent, strict=True) if self._count > 1 else [()]  # one shard receives nothing
            return [
                actor.receive.remote(receiving, *rows)
                for actor, rows in zip(self._actors, blocks, strict=True)
            ]

        return self._results(begin)

    def _results(self, begin: Callable[[], list[Any]]) -> list[Any]:
        """The results of all actors. If an actor is lost, it is started again, and all work is repeated."""
        for attempt in range(RETRIES + 1):
            tasks = begin()
            try:
                self._wait(tasks)
                return list(self._ray.get(tasks))
            except Exception as error:
                if not is_lost(error):
                    raise _cause(error) from error
                if attempt == RETRIES:
                    raise BackendError(
                        f"a process of the shards ended {RETRIES + 1} times ({reason(error)}): there may be "
                        "too little memory, so write the store with more parts"
                    ) from error
            self._restart()
        raise AssertionError

    def _wait(self, tasks: list[Any]) -> None:
        """Wait for all actors, and name the last ones."""
        waiting = list(tasks)
        while waiting:
            _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=WAIT)
            late = [str(tasks.index(task)) for task in waiting]
            note = f"waiting for shard {', '.join(late)}" if 0 < len(late) <= self._count / 4 else ""
            self._on_progress(self._count - len(waiting), self._count, note)

    def _restart(self) -> None:
        """Start the lost actors again."""
        for number, actor in enumerate(self._actors):
            try:
                self._ray.get(actor.__ray_ready__.remote())
            except self._ray.exceptions.RayActorError:
                self._actors[number] = self._start(number)


def _cause(error: Exception) -> Exception:
    """The error of this package that an actor raised."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, AdarError) else error
