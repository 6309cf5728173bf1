"""A server process: sockets, TLS, signals, and the drain before the end."""

import asyncio
import logging
import signal
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import uvicorn
import uvloop

from adar_runtime.errors import UsageError, reason
from adar_serve.grpc_app import grpc_server
from adar_serve.http_app import http_app
from adar_serve.http_protocol import HttpProtocol
from adar_serve.isolation import Isolation
from adar_serve.limits import Limits
from adar_serve.models import load_models
from adar_serve.request_log import RequestLog
from adar_serve.service import Service
from adar_serve.tokens import Tokens

Addresses = dict[str, str]


@dataclass(frozen=True)
class Settings:
    """How a server is reached.

    Args:
        host: Address to listen on.
        port: Port of HTTP; 0 chooses a free one.
        grpc_port: Port of gRPC; 0 chooses a free one, None switches gRPC off.
        max_steps: Budget of requests that name none.
        limits: What requests may use.
        tokens: File with one bearer token per line; None accepts every request.
        tls_cert: Certificate chain, a PEM file; None is without TLS.
        tls_key: Private key of the certificate, a PEM file.
        tls_client_ca: Certificates that clients have to be signed by (mutual TLS), a PEM file.
        model_control: Whether clients may load and unload models.
        isolate: Run graphs in child processes with limits of memory and time.
        drain_seconds: Seconds between the first status 503 of `ready` and the end of new requests.
        page: Serve the web page at `/`.
        workers: Number of processes that share the ports.

    Examples:
        >>> Settings(port=9000, limits=Limits(nodes=50_000)).host
        '127.0.0.1'
    """

    host: str = "127.0.0.1"
    port: int = 8080
    grpc_port: int | None = 8081
    max_steps: int = 300
    limits: Limits = field(default_factory=Limits)
    tokens: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    model_control: bool = False
    isolate: bool = False
    drain_seconds: float = 2.0
    page: bool = True
    workers: int = 1

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("TLS needs both files: --tls-cert and --tls-key")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise UsageError("--tls-client-ca needs --tls-cert and --tls-key")
        if self.workers < 1:
            raise UsageError(f"--workers is {self.workers}: choose at least 1")


def serve(
    bundles: Sequence[str],
    settings: Settings | None = None,
    on_ready: Callable[[Addresses], None] | None = None,
    **options: Any,
) -> None:
    """Serve bundles until SIGTERM or Ctrl-C. SIGHUP loads them again.

    Args:
        bundles: Folders of bundles, as FOLDER, NAME=FOLDER or NAME:VERSION=FOLDER.
        settings: Addresses, limits, tokens and TLS.
        on_ready: Called with the addresses when the server listens.
        options: Options of `adar_runtime.load`, such as `backend` and `threads`.

    Raises:
        AdarError: A bundle, a file or an address cannot be used.

    Examples:
        >>> serve(["bundle"], Settings(port=8080), backend="onnxruntime-cpu")  # doctest: +SKIP
    """
    settings = settings or Settings()
    if settings.workers > 1:
        from adar_serve.supervisor import Supervisor

        asyncio.run(Supervisor(bundles, settings, options).run(on_ready))
        return
    tokens = None if settings.tokens is None else Tokens.read(settings.tokens)
    models = load_models(bundles, **options)
    service = Service(
        models,
        settings.limits,
        settings.max_steps,
        tokens,
        model_control=settings.model_control,
        isolation=Isolation(settings.limits, options) if settings.isolate else None,
    )
    run_loop(Server(service, settings).run(on_ready))


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, on a fast event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


class Server:
    """The network of a service. `stop` may be called from another thread.

    Args:
        service: The service.
        settings: How it is reached.
        shares_ports: Whether other processes listen on the same ports.
    """

    def __init__(self, service: Service, settings: Settings, *, shares_ports: bool = False) -> None:
        self._service, self._settings, self._shares_ports = service, settings, shares_ports
        self._loop: asyncio.AbstractEventLoop | None = None
        self._uvicorn: uvicorn.Server | None = None

    async def run(self, on_ready: Callable[[Addresses], None] | None = None) -> None:
        """Serve until `stop` or a signal, then finish the requests that run."""
        settings, service = self._settings, self._service
        listening = listen(settings.host, settings.port, reuse_port=self._shares_ports)
        self._loop = asyncio.get_running_loop()
        self._uvicorn = _Http(self._http_config())
        addresses = {"http": _address(listening, "https" if settings.tls_cert else "http")}
        calls: Any = None
        self._ending = asyncio.Event()
        try:
            if settings.grpc_port is not None:
                calls = grpc_server(service, shares_port=self._shares_ports)
                addresses["grpc"] = self._grpc_address(calls, settings.grpc_port)
                await calls.start()
            with _json_logging(service.log), signals(self.stop, self._reload):
                service.log.write("listening", **addresses, models=[one.name for one in service.models.all])
                if on_ready is not None:
                    on_ready(addresses)
                ending = asyncio.create_task(self._end_calls(calls))
                await self._uvicorn.serve(sockets=[listening])
                self._ending.set()
                await ending
        except BaseException:
            if calls is not None:  # an error before `_end_calls`: gRPC cannot stop after its event loop
                await calls.stop(0)
            raise
        finally:
            service.close()
            listening.close()
        await service.runs.finish()
        service.log.write("stopped")

    def stop(self) -> None:
        """Drain: `ready` says 503, and after `drain_seconds` no new request is taken. Again: stop now."""
        assert self._loop is not None
        assert self._uvicorn is not None
        if self._service.draining:
            self._uvicorn.should_exit = self._uvicorn.force_exit = True
            return
        self._service.draining = True
        self._service.log.write("draining", seconds=self._settings.drain_seconds)
        self._loop.call_soon_threadsafe(self._loop.call_later, self._settings.drain_seconds, self._end)

    def _reload(self) -> None:
        assert self._loop is not None
        self._reloading = self._loop.create_task(self._service.reload_all())

    def _end(self) -> None:
        """Take no new request, of HTTP and of gRPC."""
        assert self._uvicorn is not None
        self._uvicorn.should_exit = True
        self._ending.set()

    async def _end_calls(self, calls: Any) -> None:
        await self._ending.wait()
        assert self._uvicorn is not None
        if calls is not None:
            await calls.stop(0 if self._uvicorn.force_exit else self._settings.limits.seconds + 5)

    def _grpc_address(self, calls: Any, port: int) -> str:
        """Bind the port of gRPC, and return its address without a scheme, as clients take it."""
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            if settings.tls_cert is None or settings.tls_key is None:
                bound = calls.add_insecure_port(f"{host}:{port}")
            else:
                ca = None if settings.tls_client_ca is None else settings.tls_client_ca.read_bytes()
                pair = (settings.tls_key.read_bytes(), settings.tls_cert.read_bytes())
                credentials = grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)
                bound = calls.add_secure_port(f"{host}:{port}", credentials)
        except (OSError, RuntimeError) as error:
            message = "is the port in use? Choose another --grpc-port, or --no-grpc"
            raise UsageError(f"cannot listen on {host} port {port} for gRPC: {message}") from error
        return f"{host}:{bound}"

    def _http_config(self) -> uvicorn.Config:
        settings = self._settings
        protocol = partial(HttpProtocol, bodies=self._service.bodies, seconds=settings.limits.seconds)
        config = uvicorn.Config(
            http_app(self._service, page=settings.page and not settings.isolate),
            http=cast("type[asyncio.Protocol]", protocol),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=settings.limits.seconds + 5,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            ssl_ca_certs=None if settings.tls_client_ca is None else str(settings.tls_client_ca),
            ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
        )
        try:
            config.load()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise UsageError(f"the TLS files cannot be used: {reason(error)}") from error
        return config


@contextmanager
def signals(stop: Callable[[], None], reload: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop`, and SIGHUP calls `reload`. A signal that is ignored stays ignored.

    Only the main thread receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    actions = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload}
    before = {number: signal.getsignal(number) for number in actions}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        loop.add_signal_handler(number, actions[number])
    try:
        yield
    finally:
        for number in before:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])


class _Http(uvicorn.Server):
    """uvicorn without its own signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A socket that listens. `reuse_port`: the connections of the port are divided among all its sockets."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=512, reuse_port=reuse_port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen on {host} port {port}: {reason(error)}") from error
    # Accepted connections inherit this. Otherwise the body of an answer waits until the client has confirmed
    # its headers, which takes 40 ms. asyncio sets it only for sockets with an explicit protocol number.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _address(listening: socket.socket, scheme: str) -> str:
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@contextmanager
def _json_logging(log: RequestLog) -> Iterator[None]:
    """Warnings of Python, uvicorn, asyncio and gRPC as lines of the log."""

    def show(message: Any, category: type[Warning], *_where: Any, **_others: Any) -> None:
        log.write("warning", kind=category.__name__, message=str(message))

    before, warnings.showwarning = warnings.showwarning, show
    handler = _Handler(log)
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio", "grpc")]
    for each in loggers:
        each.addHandler(handler)
    try:
        yield
    finally:
        warnings.showwarning = before
        for each in loggers:
            each.removeHandler(handler)


class _Handler(logging.Handler):
    def __init__(self, log: RequestLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write("library", library=record.name, level=record.levelname, message=self.format(record))
