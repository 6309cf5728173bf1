"""What a server keeps of requests that ended: nothing, whatever their clients do."""

import gc
import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from open_inference.grpc import protocol

from adar_runtime import Graph
from adar_serve import Limits, Settings
from adar_serve.bodies import Bodies
from adar_serve.limits import MIB
from adar_serve.refusals import RefusedError
from tests.helpers import random_graph
from tests.serve.servers import Running, certificate, eventually, running, tensors

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
NODES = 200_000
LARGE = np.zeros((NODES, 5), np.float32)  # 4 MB, of too many nodes


@pytest.fixture(scope="module")
def small(bundle_folder: Path) -> Iterator[Running]:
    limits = Limits(nodes=5000, seconds=2, bodies=8, concurrent=2)
    settings = Settings(port=0, grpc_port=0, limits=limits, drain_seconds=0)
    with running([f"board={bundle_folder}"], settings) as found:
        yield found


@pytest.fixture
def held() -> Iterator[Any]:
    """The number of large objects that came up and are still there, without a run of Python's collector."""
    gc.collect()
    gc.disable()

    def count() -> int:
        gc.set_debug(gc.DEBUG_SAVEALL)  # what only the collector finds goes to this list
        gc.collect()
        gc.set_debug(0)
        tracked = list(gc.garbage)
        gc.garbage.clear()
        reached = {id(part): part for each in tracked for part in gc.get_referents(each)}
        return sum(isinstance(part, bytes) and len(part) >= LARGE.nbytes for part in reached.values())

    try:
        yield count
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def body_as_bytes() -> tuple[bytes, dict[str, str]]:
    sized = {"parameters": {"binary_data_size": LARGE.nbytes}}
    header = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [NODES, 5], **sized}]}
    ).encode()
    return header + LARGE.tobytes(), {"inference-header-content-length": str(len(header))}


def send(address: str, method: str, path: str) -> int:
    """Send the body from a plain socket: a client of this process would keep it as well."""
    content, headers = body_as_bytes()
    host, port = address.removeprefix("http://").split(":")
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {len(content)}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
        return int(connection.makefile("rb").readline().split()[1])


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v2/models/board/infer"), ("POST", "/v2/models/board/infer_stream"), ("PUT", "/graphs/g")],
)
def test_a_refused_body_is_freed_at_once(small: Running, held: Any, method: str, path: str) -> None:
    for _ in range(3):
        assert send(small.addresses["http"], method, path) == 413
    assert eventually(lambda: small.service.runs.admitted == 0)
    assert held() == 0


def test_a_body_whose_client_goes_away_is_freed_at_once(small: Running, board: Graph, held: Any) -> None:
    edges = np.zeros((2, LARGE.nbytes // 16), np.int64)
    given = {"x": ("FP32", np.zeros((2000, board.width), np.float32)), "edge_index": ("INT64", edges)}
    described = [
        {
            "name": name,
            "datatype": kind,
            "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, (kind, array) in given.items()
    ]
    parameters = {"max_steps": 3000, "exit": "final", "solver": "euler"}
    json_head = json.dumps({"inputs": described, "parameters": parameters}).encode()
    content = json_head + b"".join(array.tobytes() for _, array in given.values())
    host, port = small.addresses["http"].removeprefix("http://").split(":")
    lines = ["POST /v2/models/board/infer HTTP/1.1", "host: x", f"content-length: {len(content)}"]
    lines += [f"inference-header-content-length: {len(json_head)}", "", ""]
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall("\r\n".join(lines).encode() + content)
        del content
        assert eventually(lambda: small.service.runs.running == 1)
    assert eventually(lambda: small.log()[-1]["status"] == 499)
    assert eventually(lambda: small.service.runs.admitted == 0)
    assert held() == 0


def message() -> bytes:
    asked = protocol.ModelInferRequest(model_name="board")
    asked.inputs.add(name="x", datatype="FP32", shape=[NODES, 5])
    asked.raw_input_contents.append(LARGE.tobytes())
    return asked.SerializeToString()


def test_a_refused_message_is_freed_at_once(small: Running, held: Any) -> None:
    content = message()
    with grpc.insecure_channel(small.addresses["grpc"]) as channel:
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(INFER)(content, timeout=20)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            del refused
            assert len(list(channel.stream_stream(STREAM)(iter([content]), timeout=20))) == 1
    assert held() == 0


def test_messages_of_grpc_count_as_bodies() -> None:
    bodies = Bodies(Limits(body=64, bodies=100))
    with (
        bodies.counted(60 * MIB),
        pytest.raises(RefusedError, match="too much at once"),
        bodies.counted(60 * MIB),
    ):
        pass
    with bodies.counted(60 * MIB):  # those that ended do not count
        pass


def test_a_message_beyond_the_bodies_is_refused(bundle_folder: Path) -> None:
    settings = Settings(port=0, grpc_port=0, limits=Limits(bodies=1, nodes=5000), drain_seconds=0)
    with (
        running([f"board={bundle_folder}"], settings) as found,
        grpc.insecure_channel(found.addresses["grpc"]) as channel,
    ):
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(INFER)(message(), timeout=20)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        (answer,) = channel.stream_stream(STREAM)(iter([message()]), timeout=20)
        assert b"too much at once" in answer


def unread(address: str, body: bytes, tls: ssl.SSLContext | None) -> socket.socket:
    """A client that asks and does not read."""
    host, port = address.split("//")[1].split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    if tls is not None:
        connection = tls.wrap_socket(connection, server_hostname=host)
    head = f"POST /v2/models/board/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def many_classes() -> Graph:
    """A small graph whose answer has about 14 MB as JSON."""
    graph = random_graph(700, 2000)
    described = np.ones((1000, graph.width), np.float32)
    return Graph(graph.features, graph.edge_index, target_features=described)


@pytest.mark.parametrize("encrypted", [False, True])
def test_answers_that_nobody_reads_are_limited_and_end(
    described_bundle: Path, tmp_path: Path, encrypted: bool
) -> None:
    """They count as bodies, and their connections are closed after the time limit."""
    limits = Limits(seconds=8, bodies=16, json=1024)
    settings, tls = Settings(port=0, grpc_port=None, limits=limits, drain_seconds=0), None
    if encrypted:
        cert, key = certificate(tmp_path, "server")
        settings, tls = replace(settings, tls_cert=cert, tls_key=key), ssl.create_default_context(cafile=cert)
        tls.check_hostname = False  # it is for localhost
    graph = many_classes()
    with running([f"board={described_bundle}"], settings, verify=tls or True) as found:
        assert found.http.put("/graphs/g", json={"inputs": tensors(graph)}).status_code == 201
        parameters = {"graph": "g", "max_steps": 1, "solver": "euler"}
        body = json.dumps({"inputs": [], "parameters": parameters}).encode()
        clients, bodies = list[socket.socket](), found.service.bodies
        try:
            for number in range(1, 4):
                clients.append(unread(found.addresses["http"], body, tls))
                assert eventually(lambda number=number: len(bodies.unread) + refused(found) == number, 20)
            assert refused(found)
            assert bodies.bytes < 2 * limits.bodies * MIB
            assert eventually(lambda: not bodies.unread, 40)
            assert eventually(lambda: bodies.bytes == 0)
        finally:
            for each in clients:
                each.close()
        small = replace(graph, target_features=graph.features[:2])
        assert found.infer(tensors(small), parameters={"max_steps": 1}).status_code == 200


def refused(found: Running) -> int:
    return sum(each["status"] == 429 for each in found.log())


def test_a_client_that_reads_slowly_gets_its_whole_answer(described_bundle: Path) -> None:
    """Only a client that stops reading is left: the time begins again with each piece."""
    settings = Settings(port=0, grpc_port=None, limits=Limits(seconds=3, json=1024), drain_seconds=0)
    with running([f"board={described_bundle}"], settings) as found:
        assert found.http.put("/graphs/g", json={"inputs": tensors(many_classes())}).status_code == 201
        parameters = {"graph": "g", "max_steps": 1, "solver": "euler"}
        body = json.dumps({"inputs": [], "parameters": parameters}).encode()
        with unread(found.addresses["http"], body, None) as client, client.makefile("rb") as answer:
            started = time.monotonic()
            lines = list(iter(answer.readline, b"\r\n"))
            size = int(next(line for line in lines if line.startswith(b"content-length")).split()[1])
            while size and (part := answer.read(min(size, 2**20))):
                size -= len(part)
                time.sleep(0.5)
        assert size == 0
        assert time.monotonic() - started > 2 * settings.limits.seconds
