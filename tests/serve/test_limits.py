"""Limits, tokens and TLS: what a request may not do, and who may ask."""

import gzip
import socket
import threading
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest

from adar_deploy.paths import PRETRAINED, named_bundle
from adar_runtime import Graph, write_graph
from adar_runtime.errors import UsageError
from adar_serve import Limits
from tests.helpers import random_graph
from tests.serve.servers import Running, Settings, Tokens, certificate, eventually, running, tensor, tensors

LIVE = "/inference.GRPCInferenceService/ServerLive"
TOKEN = "a-token-of-enough-characters"
ENDLESS = {"max_steps": 2_000_000, "exit": "final"}  # minutes of work


def test_bodies_are_limited_before_and_after_decompression(served: Running) -> None:
    address, large = "/v2/models/board/infer", b" " * (4 * 2**20 + 1)
    for content in (large, iter([large[: 2**20]] * 5)):
        try:
            response = served.http.post(address, content=content)
            assert (response.status_code, "above 4 MiB" in response.text) == (413, True)
        except httpx.TransportError:  # the server may close the connection while the client still sends
            assert served.log()[-1]["status"] == 413
    bomb = gzip.compress(bytes(9 * 2**20))
    response = served.http.post(address, content=bomb, headers={"Content-Encoding": "gzip"})
    assert (response.status_code, "unpacked body is above 8 MiB" in response.text) == (413, True)


def test_a_body_that_does_not_arrive_is_refused(bundle_folder: Path) -> None:
    """In time, also if some of it arrives; and a client that goes away leaves nothing behind."""
    settings = Settings(port=0, grpc_port=None, limits=Limits(seconds=1, bodies=1), drain_seconds=0)
    head = b"POST /v2/models/board/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n"
    with running([f"board={bundle_folder}"], settings) as found:
        address = found.addresses["http"].removeprefix("http://").split(":")
        for sent in (head, head + b" " * 900_000, head + b" " * 900_000):
            with socket.create_connection((address[0], int(address[1])), 20) as client:
                client.sendall(sent)
                answer = client.recv(2**16)
                assert answer.startswith(b"HTTP/1.1 408 ")
                assert b"did not arrive in 1 seconds" in answer
                assert client.recv(1) == b""  # closed
        with socket.create_connection((address[0], int(address[1])), 20) as client:
            client.sendall(head + b" " * 900_000)
        assert eventually(lambda: found.log()[-1]["status"] == 499)
        assert found.http.post("/v2/models/board/infer", content=b" " * 900_000).status_code == 400


@pytest.mark.parametrize(
    ("name", "shape"), [("x", (5001, 6)), ("edge_index", (2, 20_001)), ("target_x", (10, 6))]
)
def test_sizes_of_graphs_are_limited(served: Running, name: str, shape: tuple[int, int]) -> None:
    inputs = {each["name"]: each for each in tensors(random_graph(9, 20))}
    inputs[name] = tensor(name, np.zeros(shape, np.int64), "INT64" if name == "edge_index" else "FP32")
    response = served.infer([*inputs.values()], "described")
    assert (response.status_code, "this server takes at most" in response.text) == (413, True)


def test_time_and_queue_are_limited(bundle_folder: Path, board: Graph) -> None:
    limits = Limits(seconds=2, concurrent=1, queue=0, steps=2_000_000)
    settings = Settings(port=0, grpc_port=None, limits=limits, drain_seconds=0)
    with running([f"board={bundle_folder}"], settings) as found:
        answers: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: answers.append(found.infer(tensors(board), parameters=ENDLESS))
        )
        thread.start()
        assert eventually(lambda: found.service.runs.running == 1)
        busy = found.infer(tensors(board), parameters={"max_steps": 1})
        assert (busy.status_code, int(busy.headers["retry-after"]) >= 1) == (429, True)
        thread.join(20)
        assert (answers[0].status_code, "not finished after 2 seconds" in answers[0].text) == (504, True)
        assert found.infer(tensors(board), parameters={"max_steps": 1}).status_code == 200


def test_the_preparation_for_a_pretrained_model_is_interrupted(tmp_path: Path) -> None:
    """By the limit of time, and when the client goes away. It took minutes, and the graph stayed."""
    random, nodes = np.random.default_rng(0), 150_000
    features, labels = random.standard_normal((nodes, 12)), random.integers(0, 20, nodes)
    graph = Graph(
        features, random.integers(0, nodes, (2, 2 * nodes)), labels, train_mask=np.arange(nodes) < nodes // 2
    )
    write_graph(tmp_path / "graph.npz", graph)
    content = (tmp_path / "graph.npz").read_bytes()
    settings = Settings(port=0, grpc_port=None, limits=Limits(seconds=3, concurrent=1), drain_seconds=0)
    with running([f"pretrained={named_bundle(PRETRAINED)}"], settings) as found:
        for method, address in (("PUT", "/graphs/g"), ("POST", "/explore/pretrained")):
            late = found.http.request(method, address, content=content)
            assert (late.status_code, "not finished after 3 seconds" in late.text) == (504, True)
        with pytest.raises(httpx.ReadTimeout):
            found.http.put("/graphs/g", content=content, timeout=1)
        assert eventually(lambda: found.service.runs.running == 0)
        assert (found.log()[-1]["status"], found.http.get("/graphs").json()) == (499, {"graphs": []})


def test_tokens(bundle_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"# of the team\n{TOKEN}\n\nanother-one-for-tests\n")
    settings = Settings(port=0, grpc_port=None, tokens=tmp_path / "tokens", drain_seconds=0)
    with running([f"board={bundle_folder}"], settings) as found:
        assert found.http.get("/v2/health/ready").status_code == 200
        for wrong in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Basic {TOKEN}"}):
            for address in ("/v2", "/metrics", "/graphs", "/nothing"):
                response = found.http.get(address, headers=wrong)
                assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        for token in (TOKEN, "another-one-for-tests"):
            assert found.http.get("/v2", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        assert TOKEN not in found.written.getvalue()


@pytest.mark.parametrize("text", ["", "# nothing\n", "short\n", "é" * 20])
def test_files_without_good_tokens_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(UsageError, match="tokens"):
        Tokens.read(tmp_path / "tokens")
    with pytest.raises(UsageError, match="cannot be read"):
        Tokens.read(tmp_path / "none")


def test_messages_contain_no_paths(served: Running) -> None:
    response = served.http.put("/graphs/g?model=board", content=b"PK\x03\x04 not a zip file")
    assert (response.status_code, "/tmp" in response.text, "graph.npz" in response.text) == (400, False, True)


def test_mutual_tls(bundle_folder: Path, tmp_path: Path) -> None:
    import ssl

    (cert, key), (client_cert, client_key) = certificate(tmp_path, "server"), certificate(tmp_path, "client")
    settings = Settings(
        port=0, grpc_port=0, tls_cert=cert, tls_key=key, tls_client_ca=client_cert, drain_seconds=0
    )
    trusting = ssl.create_default_context(cafile=str(cert))
    with running([f"board={bundle_folder}"], settings, verify=trusting) as found:
        address = found.addresses["http"].replace("127.0.0.1", "localhost") + "/v2/health/live"
        assert address.startswith("https://")
        with pytest.raises(httpx.TransportError):
            httpx.get(address, verify=trusting)
        known = ssl.create_default_context(cafile=str(cert))
        known.load_cert_chain(client_cert, client_key)
        assert httpx.get(address, verify=known).status_code == 200
        target = found.addresses["grpc"].replace("127.0.0.1", "localhost")
        root, pair = cert.read_bytes(), (client_key.read_bytes(), client_cert.read_bytes())
        with grpc.secure_channel(target, grpc.ssl_channel_credentials(root, *pair)) as channel:
            assert channel.unary_unary(LIVE)(b"", timeout=30) == b"\x08\x01"  # live: true
        with (
            grpc.secure_channel(target, grpc.ssl_channel_credentials(root)) as channel,
            pytest.raises(grpc.RpcError),
        ):
            channel.unary_unary(LIVE)(b"", timeout=30)
    with pytest.raises(UsageError, match="--tls-cert and --tls-key"):
        Settings(tls_cert=cert)


def test_a_port_in_use_is_one_line(served: Running) -> None:
    import asyncio

    from adar_serve.server import Server

    used = int(served.addresses["http"].rpartition(":")[2])
    with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1 port {used}"):
        asyncio.run(Server(served.service, Settings(port=used)).run())
