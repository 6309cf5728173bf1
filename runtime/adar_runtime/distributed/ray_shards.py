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
from adar_runtime.phases.workers import Message, Progress

if TYPE_CHECKING:
    from adar_runtime.bundle.bundle import Bundle

WAIT = 0.5  # seconds between two lines about the shards that are still at work


class ShardActor:
    """One shard in a process of its own."""

    def __init__(self, bundle: Path, store: Path, number: int, work: Path, *, known: bool) -> None:
        manifest = read_manifest(bundle)
        models = PhaseModels(bundle, manifest, threads=1, known=known)
        self._worker = worker_of(open_store(store).part(number), models, manifest, work)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the shard."""
        return getattr(self._worker, method)(*arguments)

    def send(self, message: Message, receivers: list[int]) -> tuple[Floats | None, ...]:
        """Call a method that sends rows. Returns the rows for each receiver, after None."""
        self.call(message[0], *message[1])
        return (None, *(self._worker.rows_for(receiver) for receiver in receivers))

    def receive(self, message: Message, _sent: None, *blocks: Floats) -> Any:
        """Call a method with the rows of other shards, in their order, after this shard has sent its own."""
        return self.call(message[0], *message[1], blocks)


class RayShards:
    """See `adar_runtime.phases.workers.Workers`."""

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
        senders = [store.part(number).senders() for number in range(self._count)]
        self._receivers = [
            [receiver for receiver, found in enumerate(senders) if number in found]
            for number in range(self._count)
        ]
        self.actors = [self._start(number) for number in range(self._count)]
        self.name = f"onnxruntime-cpu on {self._count} Ray actors"

    def each(self, method: str, *arguments: Any) -> Iterator[Any]:
        given = [self._ray.put(one) for one in arguments]
        yield from self._results(lambda: [[actor.call.remote(method, *given) for actor in self.actors]])

    def exchange(self, send: Message, receive: Message) -> list[Any]:
        sending, receiving = self._ray.put(send), self._ray.put(receive)

        def begin() -> list[list[Any]]:
            own, blocks = list[Any](), [list[Any]() for _ in self.actors]
            for actor, receivers in zip(self.actors, self._receivers, strict=True):
                sent = actor.send.options(num_returns=1 + len(receivers)).remote(sending, receivers)
                done, *rows = sent if receivers else [sent]  # of one value, Ray returns no list
                own.append(done)
                for receiver, block in zip(receivers, rows, strict=True):
                    blocks[receiver].append(block)
            received = [
                actor.receive.remote(receiving, done, *rows)
                for actor, done, rows in zip(self.actors, own, blocks, strict=True)
            ]
            return [own, received]

        return self._results(begin)

    def _results(self, begin: Callable[[], list[list[Any]]]) -> list[Any]:
        """The results of the last stage. If an actor is lost, it is started again, and all work repeated."""
        for attempt in range(RETRIES + 1):
            stages = begin()
            try:
                self._wait(stages)
                return list(self._ray.get(stages[-1]))
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

    def _wait(self, stages: list[list[Any]]) -> None:
        """Wait for all actors in each stage, and name the last ones."""
        for stage, tasks in enumerate(stages):
            waiting = list(tasks)
            while waiting:
                _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=WAIT)
                late = [str(tasks.index(task)) for task in waiting]
                is_few = 0 < len(late) <= max(1, self._count // 4) and len(late) < self._count
                note = f"waiting for shard {', '.join(late)}" if is_few else ""
                done = stage * self._count + self._count - len(waiting)
                self._on_progress(done, len(stages) * self._count, note)

    def _restart(self) -> None:
        """Start the lost actors again."""
        for number, actor in enumerate(self.actors):
            try:
                self._ray.get(actor.__ray_ready__.remote())
            except self._ray.exceptions.RayActorError:
                self.actors[number] = self._start(number)


def _cause(error: Exception) -> Exception:
    """The error of this package that an actor raised."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, AdarError) else error
