"""A real server in a thread, and the clients that talk to it."""

import asyncio
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from adar_runtime import Graph
from adar_serve import Settings
from adar_serve.isolation import Isolation
from adar_serve.models import load_models
from adar_serve.request_log import RequestLog
from adar_serve.runs import at_once
from adar_serve.server import Server, run_loop
from adar_serve.service import Service
from adar_serve.tokens import Tokens


@dataclass
class Running:
    """A server, its addresses, and its log."""

    http: httpx.Client
    addresses: dict[str, str]
    service: Service
    server: Server
    thread: threading.Thread
    written: io.StringIO

    def log(self, event: str = "request") -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.written.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    def infer(self, inputs: list[dict], model: str = "board", **others: Any) -> httpx.Response:
        return self.http.post(f"/v2/models/{model}/infer", json={"inputs": inputs, **others})


@contextmanager
def running(bundles: list[str], settings: Settings | None = None, **client: Any) -> Iterator[Running]:
    """Start a server on free ports, and stop it at the end."""
    settings = settings or Settings(port=0, grpc_port=0, drain_seconds=0)
    written, started, found = io.StringIO(), threading.Event(), dict[str, str]()
    tokens = None if settings.tokens is None else Tokens.read(settings.tokens)
    options = {"backend": "onnxruntime-cpu", "threads": 1}
    models = load_models(bundles, **options)
    service = Service(
        models, settings.limits, settings.max_steps, tokens, RequestLog(written),
        model_control=settings.model_control,
        isolation=Isolation(settings.limits, options) if settings.isolate else None,
    )  # fmt: skip
    server = Server(service, settings)

    def on_ready(addresses: dict[str, str]) -> None:
        found.update(addresses)
        started.set()

    thread = threading.Thread(target=lambda: run_loop(server.run(on_ready)))
    thread.start()
    assert started.wait(20)
    try:
        with httpx.Client(base_url=found["http"], timeout=30, **client) as http:
            yield Running(http, found, service, server, thread, written)
    finally:
        if thread.is_alive():
            server.stop()
            thread.join(20)
        assert not thread.is_alive()


def tensor(name: str, array: Any, datatype: str | None = None) -> dict[str, Any]:
    array = np.asarray(array)
    kind = datatype or {"f": "FP32", "i": "INT64"}[array.dtype.kind]
    return {"name": name, "datatype": kind, "shape": list(array.shape), "data": array.ravel().tolist()}


def tensors(graph: Graph) -> list[dict[str, Any]]:
    found = [tensor("x", graph.features), tensor("edge_index", graph.edge_index)]
    return found if graph.target_features is None else [*found, tensor("target_x", graph.target_features)]


def outputs(response: httpx.Response) -> dict[str, np.ndarray]:
    assert response.status_code == 200, response.text
    return {
        each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in response.json()["outputs"]
    }


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Wait until a condition holds."""
    waiting = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return True
        waiting.wait(0.02)
    return False


@contextmanager
def occupied(found: Running, requests: int) -> Iterator[None]:
    """Keep the only thread of the server busy until this many requests wait."""
    release, runs, loop = threading.Event(), found.service.runs, found.server._loop
    assert loop is not None
    occupying = asyncio.run_coroutine_threadsafe(runs.run(at_once(lambda _: release.wait(30))), loop)
    assert eventually(lambda: runs.admitted == 1)
    yield
    assert eventually(lambda: runs.admitted == 1 + requests)
    release.set()
    assert occupying.result(30)


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert, private = folder / f"{name}.pem", folder / f"{name}.key"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, pem, plain))
    return cert, private


@contextmanager
def running_with(served: Running, **limits: int) -> Iterator[None]:
    """Other limits for a while. They are read for every request."""
    before = {name: getattr(served.service.limits, name) for name in limits}
    try:
        for name, value in limits.items():
            object.__setattr__(served.service.limits, name, value)
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(served.service.limits, name, value)
