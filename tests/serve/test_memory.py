"""Requests that would take far more memory than their bytes are refused before it is allocated."""

import gzip
import io
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from open_inference.grpc import protocol

from adar_runtime import Graph
from adar_serve import Limits, Settings
from adar_serve.grpc_messages import parse_message
from adar_serve.messages import HEADER_LENGTH, check_answer, parse
from adar_serve.refusals import RefusedError
from tests.serve.servers import Running, running, running_with, tensor, tensors

INFER = "/v2/models/board/infer"
CALL = "/inference.GRPCInferenceService/"
SMALL = Limits(json=1)


@contextmanager
def little_memory(most: int = 2**22) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("values", [b"[],", b"{},", b"1.5,", b"[1],"])
def test_json_that_grows_when_it_is_parsed_is_refused_before(values: bytes) -> None:
    body = b'{"inputs":[' + values * 100_000 + b"1]}"
    with little_memory(), pytest.raises(RefusedError, match="1 MiB") as refused:
        parse(body, None, SMALL)
    assert refused.value.status == 413


def test_compressed_json_is_refused_by_a_server(served: Running) -> None:
    body = gzip.compress(b'{"inputs":[' + b"[]," * (7 * 2**20 // 3) + b"[]]}")
    with running_with(served, json=16):
        response = served.http.post(INFER, content=body, headers={"content-encoding": "gzip"})
    assert (response.status_code, "16 MiB" in response.text) == (413, True)


def test_an_answer_of_many_numbers_needs_bytes() -> None:
    check_answer([np.zeros(1000)], SMALL)
    with pytest.raises(RefusedError, match="as bytes"):
        check_answer([np.zeros(10_000), np.zeros(10_000)], SMALL)


@pytest.mark.parametrize("field", [b"\x2a\x00", b"\x32\x00", b"\x3a\x00", b"\x22\x00"])
def test_a_message_of_many_empty_fields_is_refused_before_it_is_parsed(field: bytes) -> None:
    with pytest.raises(RefusedError, match="1,000 fields"):
        parse_message(protocol.ModelInferRequest, field * 100_000, SMALL)


def test_numbers_in_a_message_are_counted() -> None:
    message = protocol.ModelInferRequest()
    message.inputs.add(name="x").contents.int64_contents.extend([0] * 100_000)
    with pytest.raises(RefusedError, match="as bytes"):
        parse_message(protocol.ModelInferRequest, message.SerializeToString(), SMALL)
    with pytest.raises(RefusedError, match="not a ModelInferRequest"):
        parse_message(protocol.ModelInferRequest, b"\xff" * 9, SMALL)


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def test_an_npz_file_is_unpacked_within_the_limit(served: Running, board: Graph) -> None:
    """The server's limit is 8 MiB; a reader of files allows 256 MiB."""
    content = npz(x=np.zeros((2**20, board.width), np.float32), edge_index=np.zeros((2, 0), np.int64))
    response = served.http.put("/graphs/large?model=board", content=content)
    assert (response.status_code, "8,388,608 bytes" in response.text) == (400, True), response.text


def test_a_graph_that_stays_keeps_only_what_runs_use(served: Running, board: Graph) -> None:
    """Masks and ids were kept without being counted: the limit of graphs that stay had no effect on them."""
    masks = np.zeros((300, board.nodes), bool)
    content = npz(x=board.features, edge_index=board.edge_index, train_mask=masks, ids=np.arange(board.nodes))
    stored = served.http.put("/graphs/masked?model=board", content=content).json()
    found = served.service.graphs.use("masked")
    assert (found.prepared.graph.train_mask, found.prepared.graph.ids) == (None, None)
    assert found.bytes == stored["bytes"] > 2**14  # also the smallest graph takes some memory
    answers = [served.infer([], parameters={"graph": "masked"}), served.infer(tensors(board))]
    assert answers[0].json()["outputs"][0] == answers[1].json()["outputs"][0]
    served.http.delete("/graphs/masked")


@pytest.mark.parametrize("length", ["0" * 5000 + "1", "0" * 25 + "9" * 9])
def test_a_length_with_many_digits_is_refused(served: Running, length: str) -> None:
    response = served.http.post(INFER, content=b"{}", headers={HEADER_LENGTH: length})
    assert (response.status_code, HEADER_LENGTH in response.text) == (400, True)


def test_sizes_beside_a_zero_are_counted(served: Running) -> None:
    empty = {"name": "x", "datatype": "FP32", "shape": [0, 2**39, 2**39], "data": []}
    assert served.infer([empty]).status_code == 400


def test_messages_are_short_whatever_a_client_sends(served: Running) -> None:
    named = {**tensor("x", [[1.0]]), "name": "n" * 100_000, "datatype": "z"}
    response = served.infer([named])
    assert (response.status_code, len(response.text) < 2000, len(str(served.log()[-1])) < 4000) == (
        400, True, True,
    )  # fmt: skip


@contextmanager
def with_token(bundle: Path, folder: Path, **limits: int) -> Iterator[tuple[Running, grpc.Channel]]:
    (folder / "tokens").write_text("0123456789abcdef\n")
    settings = Settings(
        port=0, grpc_port=0, limits=Limits(**limits), tokens=folder / "tokens", drain_seconds=0
    )
    with (
        running([f"board={bundle}"], settings) as served,
        grpc.insecure_channel(served.addresses["grpc"]) as channel,
    ):
        yield served, channel


def test_a_call_without_a_token_is_refused_before_its_message(bundle_folder: Path, tmp_path: Path) -> None:
    """The client sends nothing: the answer cannot wait for a message. Probes need neither."""
    wait = threading.Event()

    def nothing() -> Iterator[bytes]:
        wait.wait(10)
        return
        yield

    with with_token(bundle_folder, tmp_path) as (served, channel):
        for name in ("ModelInfer", "ModelStreamInfer", "ServerMetadata"):
            with pytest.raises(grpc.RpcError) as refused:
                list(channel.stream_stream(CALL + name)(nothing(), timeout=5))
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert [served.log()[-1][key] for key in ("method", "status")] == [name, 401]
        live = next(channel.stream_stream(CALL + "ServerLive")(nothing(), timeout=5))
        assert protocol.ServerLiveResponse.FromString(live).live
        wait.set()


def test_an_idle_stream_ends(bundle_folder: Path, tmp_path: Path) -> None:
    """Idle streams would take all calls that the server allows, so that probes fail."""
    ended = threading.Event()

    def nothing() -> Iterator[bytes]:
        ended.wait(10)
        return
        yield

    token = (("authorization", "Bearer 0123456789abcdef"),)
    with with_token(bundle_folder, tmp_path, seconds=1) as (_, channel):
        started = time.monotonic()
        call = channel.stream_stream(CALL + "ModelStreamInfer")(nothing(), timeout=8, metadata=token)
        assert [b"no request in 1 seconds" in response for response in call] == [True]
        assert time.monotonic() - started < 7
        ended.set()


def test_a_zip_that_is_no_npz_is_one_reason(served: Running) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../../x.npy", b"x")
    response = served.http.put("/graphs/strange?model=board", content=buffer.getvalue())
    assert (response.status_code, "'x' not found" in response.text) == (400, True), response.text
