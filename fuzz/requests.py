"""Fuzz a real server with HTTP and gRPC requests that are wrong in random ways, by seed.

    python -m fuzz.requests SECONDS

A status below 500 is a correct result, and so is a gRPC code that blames the request. A status from 500, a
lost connection or another code is a bug; the request is printed.
"""

import asyncio
import gzip
import io
import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import numpy as np
from open_inference.grpc import protocol

from adar_runtime.selftest import packaged
from adar_serve import Limits, Settings
from adar_serve.grpc_app import OPEN, SERVICE, UNARY
from adar_serve.models import load_models
from adar_serve.request_log import RequestLog
from adar_serve.server import Server
from adar_serve.service import Service
from fuzz.mutations import mutated

CORPUS = Path(__file__).with_name("corpus")
LENGTH = "Inference-Header-Content-Length"
BLAMES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
Request = tuple[str, str, dict[str, str], bytes]


class Requests:
    """Valid requests for a model, and their mutations.

    Args:
        model: Name of the model.
        features: Number of feature columns that the model takes.
    """

    def __init__(self, model: str, features: int) -> None:
        self._model = model
        x = np.cos(np.arange(4 * features, dtype=np.float32)).reshape(4, features)
        self._arrays = {"x": ("FP32", x), "edge_index": ("INT64", np.array([[0, 1, 2], [1, 2, 3]]))}
        self._corpus = [path.read_bytes()[1:] for path in sorted(CORPUS.iterdir())]

    def http(self, chance: random.Random) -> Request:
        """Method, address, headers and body."""
        address = f"/v2/models/{self._model}/infer"
        kind = chance.randrange(6)
        if kind == 0:  # a graph file of the readers' corpus
            content = self._bytes_changed(chance.choice(self._corpus), chance)
            return "PUT", f"/graphs/g?model={self._model}", {}, content
        if kind == 1:
            method, address = chance.choice(["GET", "PUT", "POST", "DELETE"]), self._address(chance)
            return method, address, {}, json.dumps(mutated(self._content(), chance)).encode()
        if kind == 2:
            return "POST", address + chance.choice(["", "_stream"]), *self._binary(chance)
        body = json.dumps(mutated(self._content(), chance)).encode()
        if kind == 3:
            packed = self._bytes_changed(gzip.compress(body), chance)
            return "POST", address, {"Content-Encoding": "gzip"}, packed
        if kind == 4:
            body = self._bytes_changed(body, chance)
        return "POST", address + chance.choice(["", "", "_stream"]), {}, body

    def grpc(self, chance: random.Random) -> tuple[str, bytes]:
        """A call and its message."""
        if chance.random() < 0.3:
            return chance.choice((*OPEN, *UNARY)), chance.randbytes(chance.randrange(40))
        raw = chance.random() < 0.5
        message = protocol.ModelInferRequest(model_name=self._model)
        message.parameters["max_steps"].int64_param = 2
        for name, (datatype, array) in self._arrays.items():
            added = message.inputs.add(name=name, datatype=datatype, shape=array.shape)
            if raw:
                message.raw_input_contents.append(array.tobytes())
            else:
                field = {"FP32": "fp32_contents", "INT64": "int64_contents"}[datatype]
                getattr(added.contents, field).extend(array.ravel().tolist())
        return "ModelInfer", self._bytes_changed(message.SerializeToString(), chance)

    def _content(self) -> dict[str, Any]:
        inputs = [
            {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.ravel().tolist()}
            for name, (datatype, array) in self._arrays.items()
        ]
        outputs = [{"name": "prediction", "parameters": {"binary_data": True}}]
        return {"id": "1", "inputs": inputs, "parameters": {"max_steps": 2}, "outputs": outputs}

    def _binary(self, chance: random.Random) -> tuple[dict[str, str], bytes]:
        content = self._content()
        for one in content["inputs"]:
            del one["data"]
            one["parameters"] = {"binary_data_size": self._arrays[one["name"]][1].nbytes}
        header = json.dumps(content if chance.random() < 0.5 else mutated(content, chance)).encode()
        data = b"".join(array.tobytes() for _, array in self._arrays.values())
        length = chance.choice([len(header), len(header), len(header) + 1, 0, -1, 10**30, "x"])
        return {LENGTH: str(length)}, header + self._bytes_changed(data, chance)

    def _address(self, chance: random.Random) -> str:
        words = ["v2", "models", self._model, "versions", "1", "infer", "stats", "ready", "graphs", "nodes"]
        words += ["repository", "index", "load", "unload", "metrics", "%00", "..", "%ff", "a" * 300]
        return "/" + "/".join(chance.choice(words) for _ in range(chance.randint(1, 5)))

    @staticmethod
    def _bytes_changed(content: bytes, chance: random.Random) -> bytes:
        """One to three changes: other bytes, fewer bytes, more bytes."""
        found = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(found) + 1)
            action = chance.randrange(3)
            if action == 0 and place < len(found):
                found[place] = chance.randrange(256)
            elif action == 1:
                del found[place : place + chance.randint(1, 8)]
            else:
                found[place:place] = chance.randbytes(chance.randint(1, 8))
        return bytes(found)


def check_http(address: str, request: Request) -> None:
    """Send a request over HTTP. The response must be the client's fault, or a success."""
    method, path, headers, body = request
    connection = HTTPConnection(address, timeout=20)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = response.read()
        assert response.status < 500, f"status {response.status}: {content[:300]!r}"
    finally:
        connection.close()


def check_grpc(channel: Any, name: str, content: bytes) -> None:
    """Send bytes as the message of a call. The code must be the client's fault, or OK."""
    method = channel.unary_unary(f"/{SERVICE}/{name}", request_serializer=bytes, response_deserializer=bytes)
    try:
        method(content, timeout=20)
    except grpc.RpcError as error:
        assert error.code() in BLAMES, f"{name}: {error.code()} {error.details()}"


@contextmanager
def served(bundle: Path) -> Iterator[dict[str, str]]:
    """A server in this process, with small limits."""
    limits = Limits(body=1, unpacked=1, nodes=1000, edges=10_000, steps=50, seconds=10, graphs=1)
    service = Service(load_models([f"model={bundle}"], threads=1), limits, 10, log=RequestLog(io.StringIO()))
    server = Server(service, Settings(port=0, grpc_port=0, limits=limits, drain_seconds=0))
    started, addresses = threading.Event(), dict[str, str]()

    def on_ready(found: dict[str, str]) -> None:
        addresses.update(found)
        started.set()

    thread = threading.Thread(target=lambda: asyncio.run(server.run(on_ready)))
    thread.start()
    started.wait()
    try:
        yield addresses
    finally:
        server.stop()
        thread.join()


def main() -> None:
    """Send requests until the time is over, and print those that a server must not answer like this."""
    end, seed, found = time.monotonic() + float(sys.argv[1]), 0, 0
    with TemporaryDirectory(prefix="adar-fuzz-") as folder:
        bundle = packaged.unpack(Path(folder))["node fp32"]
        features = json.loads((bundle / "manifest.json").read_text())["features"]
        requests = Requests("model", features)
        with served(bundle) as addresses, grpc.insecure_channel(addresses["grpc"]) as channel:
            http = addresses["http"].removeprefix("http://")
            while time.monotonic() < end:
                chance = random.Random(seed)  # noqa: S311 - not for secrets
                request, call = requests.http(chance), requests.grpc(chance)
                try:
                    check_http(http, request)
                    check_grpc(channel, *call)
                except Exception as error:
                    found += 1
                    print(f"{seed}: {type(error).__name__}: {error}\n  {request!r}, {call!r}", flush=True)
                seed += 1
    print(f"{seed:,} requests over HTTP and as many over gRPC, {found} bugs")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
