"""The first mutations of fuzz/requests.py: no request makes the server fail. `make fuzz` sends many more."""

import random

import grpc

from adar_runtime import Graph
from fuzz.requests import Requests, check_grpc, check_http
from tests.serve.servers import Running

COUNT = 450


def test_mutated_requests_are_answered_or_refused(served: Running, board: Graph) -> None:
    requests, http = Requests("board", board.width), served.addresses["http"].removeprefix("http://")
    with grpc.insecure_channel(served.addresses["grpc"]) as channel:
        for seed in range(COUNT):
            chance = random.Random(seed)
            check_http(http, requests.http(chance))
            check_grpc(channel, *requests.grpc(chance))
    assert not [line for line in served.log() if "traceback" in line]
    assert served.http.get("/v2/health/ready").status_code == 200


def test_bytes_that_are_not_a_message_are_refused(served: Running) -> None:
    with grpc.insecure_channel(served.addresses["grpc"]) as channel:
        for name in ("ModelInfer", "RepositoryIndex"):
            method = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
            try:
                method(b"\xff\xff", timeout=20)
            except grpc.RpcError as error:
                refused = error
            assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.details() == f"the message is not a {name}Request"
