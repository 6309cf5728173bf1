"""The same HTTP application on Ray Serve: replicas on a cluster, as many as the waiting requests need."""

import asyncio
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from adar_runtime.distributed.cluster import RETRIES, check_workers, connected
from adar_runtime.errors import BackendError, MissingExtraError, UsageError, reason, short
from adar_serve.http_app import http_app
from adar_serve.isolation import Isolation
from adar_serve.models import load_models, named
from adar_serve.server import Addresses, Settings, listen, signals
from adar_serve.service import Service
from adar_serve.snapshots import Snapshot, merged, of_ended
from adar_serve.tokens import Tokens

NAME = "adar"  # of the application, and of its deployment
PUSH_SECONDS = 5.0  # between two snapshots of a replica
GONE_SECONDS = 30.0  # without a snapshot: the replica has ended
LONGEST = 500  # characters of a replica's error
UPSCALE_SECONDS, DOWNSCALE_SECONDS = 3.0, 60.0  # that the queue must stay long or short


def serve_on_ray(
    address: str,
    bundles: Sequence[str],
    settings: Settings,
    options: dict[str, Any],
    on_ready: Callable[[Addresses], None] | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then let the replicas finish their requests.

    Args:
        address: "auto" or a number of CPUs starts a cluster on this machine; ray://HOST:PORT uses one.
        bundles: The bundles, as the command line names them. Every replica reads them from there.
        settings: How the server is reached; `workers` is the largest number of replicas.
        options: Options of `adar_runtime.load`.
        on_ready: Called with the address when the first replica is ready.

    Raises:
        AdarError: Ray Serve is not installed, the cluster does not start, or a bundle cannot be loaded.
    """
    check_workers(address, "--ray")
    check_settings(settings)
    _import_serve()
    with connected(address), deployed(bundles, settings, options) as addresses:
        if on_ready is not None:
            on_ready(addresses)
        asyncio.run(_until_signal())


async def _until_signal() -> None:
    ending = asyncio.Event()
    with signals(ending.set, lambda: None):  # a new start loads other bundles
        await ending.wait()


def check_settings(settings: Settings) -> None:
    """Refuse what Ray Serve does not do."""
    refused = {
        "--tls-cert": settings.tls_cert is not None,
        "--model-control": settings.model_control,
    }
    for option, is_set in refused.items():
        if is_set:
            raise UsageError(f"--ray does not take {option}: docs/serving.md says what to use instead")


@contextmanager
def deployed(bundles: Sequence[str], settings: Settings, options: dict[str, Any]) -> Iterator[Addresses]:
    """Deploy the application on the cluster that Ray is connected to, and remove it at the end."""
    serve = _import_serve()
    if serve.status().proxies:
        raise UsageError(
            "Ray Serve runs on this cluster already, and listens on its own address: use another cluster, or "
            "end it with serve shutdown"
        )
    bundles, limits = [_absolute(each) for each in bundles], settings.limits
    collector = f"adar-{uuid.uuid4().hex}"
    counting = _start_collector(collector)
    tokens = None if settings.tokens is None else Tokens.read(settings.tokens)

    def build() -> ASGIApp:
        return replica(bundles, settings, options, tokens, collector)

    deployment = serve.deployment(
        name=NAME,
        max_ongoing_requests=limits.concurrent + limits.queue,
        max_queued_requests=limits.queue,
        graceful_shutdown_timeout_s=limits.seconds + 5,
        autoscaling_config={
            "min_replicas": 1,
            "max_replicas": settings.workers,
            "target_ongoing_requests": limits.concurrent,
            "upscale_delay_s": UPSCALE_SECONDS,
            "downscale_delay_s": DOWNSCALE_SECONDS,
        },
    )(serve.ingress(build)())
    with listen(settings.host, settings.port) as free:  # fails if another server listens
        port = free.getsockname()[1]
    _start(serve, deployment.bind(), {"host": settings.host, "port": port})
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        yield {"http": f"http://{host}:{port}"}
    finally:
        serve.shutdown()
        del counting  # the actor ends with its handle


def _absolute(bundle: str) -> str:
    """A bundle with its absolute path: a replica has another working folder."""
    name, version, folder = named(bundle)
    return f"{name}:{version}={Path(folder).absolute()}" if Path(folder).exists() else bundle


def _start(serve: Any, application: Any, http_options: dict[str, Any]) -> None:
    """Start Ray Serve with an application. A start that takes too long for Ray (60 s) is tried again."""
    for attempt in range(RETRIES + 1):
        try:
            serve.start(proxy_location="HeadOnly", http_options=http_options)
            serve.run(application, name=NAME, route_prefix="/")
            return
        except Exception as error:  # Ray raises many types
            why = _problem(serve) or reason(error)
            serve.shutdown()
            if attempt == RETRIES or isinstance(error, RuntimeError):  # the application failed
                raise BackendError(f"Ray Serve did not start the application: {why}") from error


def _problem(serve: Any) -> str:
    """The error of a replica, which is the last line of a traceback; empty if there is none."""
    found = serve.status().applications.get(NAME)
    texts = [] if found is None else [each.message for each in found.deployments.values()]
    lines = [line.strip() for text in texts for line in text.splitlines() if "Error" in line]
    return short(lines[-1], LONGEST) if lines else ""


def _import_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise MissingExtraError("--ray", "serve-ray") from error
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    return serve


class Collector:
    """An actor that has the last snapshot of every replica."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, Snapshot]] = {}
        self._ended: Snapshot = {"metrics": [], "statistics": []}

    def put(self, replica: str, snapshot: Snapshot) -> Snapshot:
        """Keep the snapshot of a replica. Return that of all replicas, also of those that have ended."""
        now = time.monotonic()
        self._last[replica] = now, snapshot
        for name, (when, last) in [*self._last.items()]:
            if now - when > GONE_SECONDS:
                self._ended = merged([self._ended, of_ended(last)])
                del self._last[name]
        return merged([self._ended, *(last for _, last in self._last.values())])


def _start_collector(name: str) -> Any:
    """Replicas find the actor by its name: they cannot use a handle of a Ray client."""
    import ray

    return ray.remote(Collector).options(num_cpus=0, name=name, namespace=NAME).remote()


class Replicas:
    """All replicas, as a service asks them."""

    def __init__(self, collector: str) -> None:
        import ray

        self._collector = ray.get_actor(collector, namespace=NAME)
        self._name = f"{socket.gethostname()}-{uuid.uuid4().hex}"
        self.service: Service

    async def call(self, _method: str, /, **_arguments: Any) -> Any:
        """The snapshot of all: nothing else is asked, because models do not change."""
        return await self._collector.put.remote(self._name, self.service.own_snapshot())

    def push(self) -> None:
        """Send snapshots again and again, for requests that other replicas answer."""
        import ray

        while True:
            time.sleep(PUSH_SECONDS)
            with suppress(ray.exceptions.RayError):
                ray.get(self._collector.put.remote(self._name, self.service.own_snapshot()))


def replica(
    bundles: Sequence[str], settings: Settings, options: dict[str, Any], tokens: Tokens | None, collector: str
) -> ASGIApp:
    """The application of one replica, in its process."""
    replicas = Replicas(collector)
    replicas.service = Service(
        load_models(bundles, **options),
        settings.limits,
        settings.max_steps,
        tokens,
        isolation=Isolation(settings.limits, options) if settings.isolate else None,
        parent=replicas,
        no_graphs="--ray",
    )
    threading.Thread(target=replicas.push, name="snapshots", daemon=True).start()
    return http_app(replicas.service, page=settings.page and not settings.isolate)
