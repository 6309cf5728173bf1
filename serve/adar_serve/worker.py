"""One of several server processes. The parent tells it what to serve, and it answers on the shared ports."""

import asyncio
import json
import os
import shutil
import signal
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adar_runtime.errors import AdarError
from adar_serve.isolation import Isolation
from adar_serve.limits import Limits
from adar_serve.models import load_models
from adar_serve.peers import LONGEST, GoneError, Peer
from adar_serve.request_log import RequestLog
from adar_serve.server import Addresses, Server, Settings, run_loop
from adar_serve.service import Service
from adar_serve.shared_graphs import SharedGraphs
from adar_serve.snapshots import Snapshot
from adar_serve.tokens import Tokens

FORGET_SECONDS = 5.0  # after which graphs that other workers removed leave the memory
FILES = ("tokens", "tls_cert", "tls_key", "tls_client_ca")


def packed_settings(settings: Settings) -> dict[str, Any]:
    """Settings as JSON."""
    return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(settings).items()}


def unpacked_settings(content: dict[str, Any]) -> Settings:
    """Settings from JSON."""
    files = {name: None if content[name] is None else Path(content[name]) for name in FILES}
    return Settings(**{**content, **files, "limits": Limits(**content["limits"])})


def main() -> None:
    """Serve until the parent sends SIGTERM or ends."""
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):  # what native code prints must not reach the pipe
        os.dup2(nothing, descriptor)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # also if the parent ignores it, as this process then would
    run_loop(_work(reading, writing))


async def _work(reading: int, writing: int) -> None:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=LONGEST)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb"))
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())  # for the flow control of the writer
    transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(writing, "wb"))
    task = json.loads(await reader.readline())
    worker = Worker()
    parent = Peer(reader, asyncio.StreamWriter(transport, protocol, None, loop), worker.methods())
    receiving = asyncio.create_task(parent.run())
    with suppress(GoneError):
        try:
            await worker.run(task, parent, receiving)
        except AdarError as error:
            await parent.call("failed", message=str(error))
    if receiving.done():  # the parent was killed, so that nobody else removes the folder
        shutil.rmtree(task["folder"], ignore_errors=True)
    receiving.cancel()


class Worker:
    """What the parent may ask of a worker."""

    _service: Service

    def methods(self) -> dict[str, Any]:
        return {"open": self._open, "exchange": self._exchange, "discard": self._discard} | {
            "withdraw": self._withdraw,
            "snapshot": self._snapshot,
        }

    async def run(self, task: dict[str, Any], parent: Peer, receiving: "asyncio.Task[None]") -> None:
        """Load the bundles, and serve."""
        settings, options = unpacked_settings(task["settings"]), task["options"]
        models = load_models(task["bundles"], task["unloaded"], **options)
        self._service = Service(
            models,
            settings.limits,
            settings.max_steps,
            None if settings.tokens is None else Tokens.read(settings.tokens),
            RequestLog(worker=task["worker"]),
            model_control=settings.model_control,
            isolation=Isolation(settings.limits, options) if settings.isolate else None,
            graphs=SharedGraphs(settings.limits, Path(task["folder"]), models),
            parent=parent,
        )
        server, tasks = Server(self._service, settings, shares_ports=True), list[asyncio.Task[None]]()

        async def with_parent(addresses: Addresses) -> None:
            with suppress(GoneError):
                await parent.call("started", addresses=addresses)
            await asyncio.wait({receiving})
            server.stop()

        def on_ready(addresses: Addresses) -> None:
            tasks.extend([asyncio.create_task(with_parent(addresses)), asyncio.create_task(self._forget())])

        try:
            await server.run(on_ready)
        finally:
            for each in tasks:
                each.cancel()

    async def _forget(self) -> None:
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            self._service.graphs.all()

    async def _open(self, name: str) -> list[str]:
        return await self._service.open(name, {})

    async def _exchange(self, name: str) -> None:
        self._service.exchange(name)

    async def _discard(self, name: str) -> None:
        self._service.discard(name)

    async def _withdraw(self, name: str) -> None:
        self._service.withdraw(name)

    async def _snapshot(self) -> Snapshot:
        return self._service.own_snapshot()
