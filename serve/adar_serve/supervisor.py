"""Several worker processes on the same ports, and the parent that starts them again, reloads and drains them.

Each worker listens on both ports; the system divides the connections among them (SO_REUSEPORT). The parent
keeps the ports and the folder of the graphs that stay, and loads no bundle.
"""

import asyncio
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from adar_runtime.backends.isolated.child_process import child_command
from adar_runtime.errors import UsageError
from adar_serve.models import named
from adar_serve.peers import LONGEST, GoneError, Method, Peer
from adar_serve.refusals import RefusedError
from adar_serve.request_log import RequestLog
from adar_serve.server import Addresses, Settings, listen, signals
from adar_serve.snapshots import Snapshot, merged, of_ended
from adar_serve.worker import packed_settings

SNAPSHOT_SECONDS = 5.0  # between two snapshots, and the longest wait for one
MOST_SILENT = 3  # snapshots in a row that a worker may fail to answer, before it is killed
LONGEST_PAUSE = 30.0  # before another start of a worker that does not stay
STEADY_SECONDS = 10.0  # a worker that ran as long is started again at once


@dataclass(eq=False)
class _Worker:
    """A process, from its start to its end."""

    process: asyncio.subprocess.Process
    started: "asyncio.Future[Addresses]"
    peer: Peer = field(init=False)
    last: Snapshot | None = None
    silent: int = 0  # snapshots in a row that it did not answer


class Supervisor:
    """The parent of several workers.

    Args:
        bundles: The bundles, as the command line names them.
        settings: How the server is reached.
        options: Options of `adar_runtime.load`.
    """

    def __init__(self, bundles: Sequence[str], settings: Settings, options: dict[str, Any]) -> None:
        self._names = list(dict.fromkeys(named(each).name for each in bundles))
        self._task = {"bundles": list(bundles), "options": options}
        self._settings, self._log = settings, RequestLog()
        self._workers = dict[int, _Worker]()
        self._unloaded = set[str]()
        self._changing = asyncio.Lock()  # models change only while no worker starts
        self._ended: Snapshot = {"metrics": [], "statistics": []}
        self._restarts, self._draining = 0, False

    async def run(self, on_ready: Callable[[Addresses], None] | None = None) -> None:
        """Serve until a signal, then let all workers finish their requests.

        Raises:
            AdarError: A worker cannot be started for the first time.
        """
        with TemporaryDirectory(prefix="adar-serve-") as folder, self._reserved_ports() as settings:
            self._task |= {"settings": packed_settings(settings), "folder": folder}
            with signals(self._stop, self._reload_all):
                try:
                    numbers = range(self._settings.workers)
                    addresses = await asyncio.gather(*map(self._start, numbers))
                    self._log.write("workers started", workers=len(numbers), **addresses[0])
                    if on_ready is not None:
                        on_ready(addresses[0])
                    watching = asyncio.create_task(self._watch())
                    await asyncio.gather(*map(self._keep, numbers))
                    watching.cancel()
                except UsageError:
                    if not self._draining:  # else a signal ended the workers while they were started
                        raise
                finally:
                    for worker in self._workers.values():
                        await _end(worker)
        self._log.write("workers stopped")

    def _stop(self) -> None:
        """Let all workers drain; the second time, stop them at once."""
        self._draining = True
        for worker in self._workers.values():
            with suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGTERM)

    async def _start(self, number: int) -> Addresses:
        """Start a worker, and wait until it listens."""
        process = await asyncio.create_subprocess_exec(
            *child_command("adar_serve.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LONGEST,
            start_new_session=True,  # Ctrl-C reaches the parent only, which tells the workers
        )
        started: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
        worker = self._workers[number] = _Worker(process, started)
        assert process.stdout is not None
        assert process.stdin is not None

        self._log.write("worker started", worker=number, pid=process.pid)

        async def on_started(addresses: Addresses) -> None:
            started.set_result(addresses)
            if self._draining:  # meanwhile it had no process, or ignored SIGTERM as its parent does
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)

        async def on_failed(message: str) -> None:
            started.set_exception(UsageError(message))

        methods: dict[str, Method] = {"reload": self.reload, "unload": self.unload}
        methods |= {"snapshots": self.snapshots, "started": on_started, "failed": on_failed}
        worker.peer = Peer(process.stdout, process.stdin, methods)
        process.stdin.write(
            json.dumps(self._task | {"worker": number, "unloaded": [*self._unloaded]}).encode()
        )
        process.stdin.write(b"\n")
        receiving = asyncio.create_task(worker.peer.run())
        receiving.add_done_callback(lambda _: started.done() or started.cancel())
        try:
            return await started
        except asyncio.CancelledError:
            if not receiving.done():
                raise
            raise UsageError(f"worker {number} ended while it was started: its log says why") from None

    async def _keep(self, number: int) -> None:
        """Start a worker again whenever it ends, until the server stops."""
        since, pause = time.monotonic(), 0.5
        while True:
            worker = self._workers[number]
            code = await worker.process.wait()
            if self._draining:
                return
            self._log.write("worker ended", worker=number, code=code)
            if worker.last is not None:
                self._ended, worker.last = merged([self._ended, of_ended(worker.last)]), None
            if time.monotonic() - since < STEADY_SECONDS:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                pause = 0.5
            since = time.monotonic()
            self._restarts += 1
            async with self._changing:
                if self._draining:
                    return
                try:
                    await self._start(number)
                except UsageError as error:
                    self._log.write("worker not started", worker=number, reason=str(error))
                    await _end(self._workers[number])

    async def _tell(self, method: str, **arguments: Any) -> list[Any]:
        """Call a method of all workers at the same time. Return their values and refusals."""
        calls = [worker.peer.call(method, **arguments) for worker in self._workers.values()]
        found = await asyncio.gather(*calls, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, RefusedError | GoneError):
                raise each
        return [each for each in found if not isinstance(each, GoneError)]

    async def reload(self, name: str) -> None:
        """Load a model again in all workers, or in none if one cannot load it or has loaded another one."""
        async with self._changing:
            found = await self._tell("open", name=name)
            refused = next((each for each in found if isinstance(each, RefusedError)), None)
            if refused is None and any(each != found[0] for each in found):
                reason = "its bundle was replaced while the workers loaded it"
                self._log.write("reload failed", model=name, reason=reason)
                refused = RefusedError(503, f"the model {name} was not changed: {reason}: try again")
            if refused is not None:
                await self._tell("discard", name=name)
                raise refused
            await self._tell("exchange", name=name)
            self._unloaded.discard(name)

    async def unload(self, name: str) -> None:
        """Take a model out of service in all workers."""
        async with self._changing:
            self._unloaded.add(name)
            await self._tell("withdraw", name=name)

    def _reload_all(self) -> None:
        async def reload() -> None:
            for name in self._names:
                with suppress(RefusedError):  # the log says why
                    await self.reload(name)

        self._reloading = asyncio.create_task(reload())

    async def snapshots(self) -> Snapshot:
        """Metrics and statistics of all workers, also of those that have ended."""
        await asyncio.gather(*(_look(worker) for worker in self._workers.values()))
        found = [worker.last for worker in self._workers.values() if worker.last is not None]
        return merged([self._ended, *found, {"metrics": self._own_metrics(), "statistics": []}])

    def _own_metrics(self) -> list[dict[str, Any]]:
        alive = sum(worker.process.returncode is None for worker in self._workers.values())
        return [
            _family("adar_workers", "gauge", "Worker processes.", "adar_workers", alive),
            _family(
                "adar_worker_restarts", "counter", "Workers that ended and were started again.",
                "adar_worker_restarts_total", self._restarts,
            ),
        ]  # fmt: skip

    async def _watch(self) -> None:
        """Take snapshots, so that the counts of a worker that ends are not lost. Kill those that hang."""
        while True:
            await asyncio.sleep(SNAPSHOT_SECONDS)
            started = {number: each for number, each in self._workers.items() if each.started.done()}
            answered = await asyncio.gather(*map(_look, started.values()))
            for (number, worker), has_answered in zip(started.items(), answered, strict=True):
                worker.silent = 0 if has_answered else worker.silent + 1
                if worker.silent == MOST_SILENT:
                    self._log.write("worker hangs", worker=number, pid=worker.process.pid)
                    with suppress(ProcessLookupError):
                        worker.process.kill()  # `_keep` starts it again

    @contextmanager
    def _reserved_ports(self) -> Iterator[Settings]:
        """Keep the ports while no worker listens, so that no other program takes them."""
        settings = self._settings
        with ExitStack() as sockets:
            keep = partial(_kept_port, sockets, settings.host)
            grpc_port = None if settings.grpc_port is None else keep(settings.grpc_port)
            yield replace(settings, port=keep(settings.port), grpc_port=grpc_port)


def _kept_port(sockets: ExitStack, host: str, port: int) -> int:
    """Bind a socket that does not listen, so that it gets no connections. Return its port."""
    with listen(host, port) as free:  # fails if another server listens
        port = free.getsockname()[1]
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((host, port))
    sockets.enter_context(bound)
    return port


def _family(name: str, kind: str, text: str, sample: str, value: float) -> dict[str, Any]:
    return {"name": name, "type": kind, "help": text, "samples": [[sample, {}, value]]}


async def _look(worker: _Worker) -> bool:
    """Take the snapshot of a worker; the last one stays if the worker is too slow. False if it is."""
    try:
        async with asyncio.timeout(SNAPSHOT_SECONDS):
            worker.last = await worker.peer.call("snapshot")
    except TimeoutError:
        return False
    except GoneError:  # it has ended, which is not silence
        pass
    return True


async def _end(worker: _Worker) -> None:
    """End a process that still runs, and wait for it."""
    with suppress(ProcessLookupError):
        worker.process.kill()
    await worker.process.wait()
