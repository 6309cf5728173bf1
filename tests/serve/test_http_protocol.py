"""Bytes on a connection that no usual client sends, against a real server."""

import json
import socket
from urllib.parse import urlsplit

import pytest

from adar_runtime import Graph
from adar_serve.http_protocol import MOST_HEAD
from tests.serve.servers import Running, tensors

UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
CHUNKED = b"POST /v2/models/board/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def connection(served: Running) -> socket.socket:
    address = urlsplit(served.addresses["http"])
    with socket.create_connection((address.hostname, address.port), timeout=10) as found:
        yield found


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the body of the next response."""
    received = connection.makefile("rb")
    status, length = int(received.readline().split()[1]), 0
    while line := received.readline().strip():
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    return status, received.read(length)


def test_a_request_that_offers_another_protocol_is_answered(
    connection: socket.socket, served: Running, board: Graph
) -> None:
    body = json.dumps({"inputs": tensors(board), "parameters": {"max_steps": 3}}).encode()
    expected = served.infer(tensors(board), parameters={"max_steps": 3}).json()
    head = b"POST /v2/models/board/infer HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n" % len(body)
    for extra in (UPGRADE, b"", UPGRADE):  # on the same connection
        connection.sendall(head + extra + b"\r\n" + body[:10])
        connection.sendall(body[10:])
        status, content = answer(connection)
        assert (status, json.loads(content)) == (200, expected)


@pytest.mark.parametrize(
    "start",
    [
        b"GET /v2 HTTP/1.1\r\nX-Long: ",
        b"GET /" + b"x" * 50,
        CHUNKED + b"2\r\n{}\r\n0\r\nX-Long: ",
    ],
    ids=["header", "address", "trailer"],
)
def test_a_head_without_an_end_is_refused(connection: socket.socket, start: bytes) -> None:
    connection.sendall(start)
    sent = 0
    try:
        while sent < 8 * MOST_HEAD:
            sent += connection.send(b"x" * 4096)
    except OSError:  # the server has closed the connection
        return
    status, content = answer(connection)
    assert (status, b"64 KiB" in content) == (400, True)


@pytest.mark.parametrize("text", [b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x00\r\n\r\n"])
def test_what_is_not_a_request_to_this_server_is_refused(connection: socket.socket, text: bytes) -> None:
    connection.sendall(text)
    assert answer(connection)[0] == 400
    assert connection.recv(1) == b""
