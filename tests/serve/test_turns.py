"""A small graph that is alone runs in the event loop, in turns; a thread takes over when others come."""

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adar_runtime import Graph, Loop, Step
from adar_runtime.graph import MASKS
from adar_serve import Limits, messages, runs
from tests.helpers import random_graph
from tests.serve.servers import Running, Settings, eventually, occupied, running, running_with, tensors

SHORT = {"max_steps": 6, "exit": "final", "solver": "euler"}
ENDLESS = {"max_steps": 2_000_000, "exit": "final", "solver": "euler"}
GONE = ("labels", *MASKS, "class_names")
LOOP, THREAD = "event loop", "thread"


@pytest.fixture
def alone(bundle_folder: Path) -> Iterator[Running]:
    limits = Limits(seconds=25, steps=2_000_000, concurrent=1, batch=1)  # a batch rounds differently
    settings = Settings(port=0, grpc_port=None, limits=limits, drain_seconds=0)
    with running([f"board={bundle_folder}"], settings) as found:
        yield found


def place() -> str:
    return THREAD if threading.current_thread().name.startswith("run-") else LOOP


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where each step was made. The steps are the real ones; a busy machine does not end the turns."""
    monkeypatch.setattr(runs, "TURNS", 100.0)
    made, move = list[str](), Loop.__next__

    def spy(loop: Loop) -> Step:
        made.append(place())
        return move(loop)

    monkeypatch.setattr(Loop, "__next__", spy)
    return made


def on_step(monkeypatch: pytest.MonkeyPatch, index: int, act: Callable[[], object]) -> None:
    """Do something once, before the step with this index, in the thread that makes it."""
    made, move = list[int](), Loop.__next__

    def spy(loop: Loop) -> Step:
        made.append(0)
        if len(made) == index + 1:
            act()
        return move(loop)

    monkeypatch.setattr(Loop, "__next__", spy)


def quiet(found: Running) -> None:
    """Wait until no two requests were there together for some time."""
    assert eventually(lambda: found.service.runs.admitted == 0)
    time.sleep(2 * runs.QUIET)


def test_the_answer_is_that_of_a_thread(alone: Running, board: Graph, steps: list[str]) -> None:
    here = alone.infer(tensors(board), parameters=SHORT)
    assert set(steps) == {LOOP}
    steps.clear()
    with ThreadPoolExecutor(1) as client, occupied(alone, 1):
        there = client.submit(alone.http.post, "/v2/models/board/infer", json=content_of(board))
    assert there.result().json() == here.json()
    steps.clear()
    alone.infer(tensors(board), parameters=SHORT)  # two requests were there together just now
    assert set(steps) == {THREAD}
    quiet(alone)
    steps.clear()
    alone.infer(tensors(board), parameters=SHORT)
    assert set(steps) == {LOOP}


def content_of(board: Graph) -> dict[str, object]:
    return {"inputs": tensors(board), "parameters": SHORT}


def test_other_requests_run_in_a_thread(alone: Running, board: Graph, steps: list[str]) -> None:
    """Large, compressed, streamed, and with a graph that stays: they may take long."""
    large = Graph(np.ones((600, board.width)), np.zeros((2, 9), int))
    assert alone.infer(tensors(large), parameters=SHORT).status_code == 200
    packed = gzip.compress(json.dumps(content_of(board)).encode())
    address = "/v2/models/board/infer"
    assert alone.http.post(address, content=packed, headers={"Content-Encoding": "gzip"}).status_code == 200
    assert "answer" in alone.http.post(f"{address}_stream", json=content_of(board)).text
    assert alone.http.put("/graphs/g", json={"inputs": tensors(board)}).status_code == 201
    assert alone.infer([], parameters={**SHORT, "graph": "g"}).status_code == 200
    assert set(steps) == {THREAD}


def test_a_large_answer_is_written_in_a_thread(
    described_bundle: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, written, encode = random_graph(512, 2000), list[str](), messages.encode

    def spy(*arguments: Any) -> tuple[bytes, int | None]:
        written.append(place())
        return encode(*arguments)

    monkeypatch.setattr(messages, "encode", spy)
    with running([f"described={described_bundle}"]) as found:
        for classes in (3, 60):  # the time to write 60 · 512 numbers would be that of all connections
            many = replace(graph, target_features=np.ones((classes, graph.width)), **dict.fromkeys(GONE))
            answer = found.infer(tensors(many), "described", parameters=SHORT)
            assert answer.status_code == 200, answer.text
    assert set(steps) == {LOOP}
    assert written == [LOOP, THREAD]


def test_a_thread_takes_over_when_another_request_comes(
    alone: Running, board: Graph, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone.infer(tensors(board), parameters={**SHORT, "max_steps": 1200}).json()
    small = alone.infer(tensors(board), parameters=SHORT).json()
    with ThreadPoolExecutor(1) as client:
        second = []

        def ask() -> None:
            second.append(client.submit(alone.infer, tensors(board), parameters=SHORT))
            time.sleep(0.5)  # its bytes arrive

        on_step(monkeypatch, 3, ask)
        steps.clear()
        first = alone.infer(tensors(board), parameters={**SHORT, "max_steps": 1200})
        assert second[0].result().status_code == 200
    assert first.json() == expected
    assert second[0].result().json() == small
    assert steps[:4] == [LOOP] * 4
    assert steps.count(LOOP) < 600  # of 1,200: a new connection is read after a few turns
    assert eventually(lambda: alone.service.runs.admitted == 0)


def test_a_long_run_goes_on_in_a_thread(
    alone: Running, board: Graph, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "TURNS", 0.01)
    response = alone.infer(tensors(board), parameters={**SHORT, "max_steps": 400})
    assert response.json()["parameters"]["cell_calls"] == 400, response.text
    first = steps.index(THREAD)
    assert 0 < first < len(steps)
    assert set(steps[first:]) == {THREAD}


def test_health_checks_do_not_wait_for_a_run(alone: Running, board: Graph, steps: list[str]) -> None:
    """Nor does a client that goes away: its run ends in the event loop."""
    host, port = alone.addresses["http"].removeprefix("http://").split(":")
    body = json.dumps({"inputs": tensors(board), "parameters": ENDLESS}).encode()
    head = f"POST /v2/models/board/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head.encode() + body)
        assert eventually(lambda: alone.service.runs.running == 1)
        before = len(steps)
        for _ in range(5):
            assert alone.http.get("/v2/health/live").status_code == 200
        assert alone.service.runs.running == 1
        assert len(steps) > before
    assert eventually(lambda: alone.service.runs.running == 0, 2)
    assert eventually(lambda: alone.log()[-1]["status"] == 499)
    assert set(steps) == {LOOP}


def test_the_limit_of_time_ends_a_run_in_the_event_loop(
    alone: Running, board: Graph, steps: list[str]
) -> None:
    with running_with(alone, seconds=2):
        late = alone.infer(tensors(board), parameters=ENDLESS)
    assert (late.status_code, "not finished after 2 seconds" in late.text) == (504, True)
    assert set(steps) == {LOOP}
    assert alone.service.runs.admitted == 0


def test_refusals_and_errors_leave_the_server_ready(
    alone: Running, board: Graph, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, edges = tensors(board)
    assert alone.infer([x], parameters=SHORT).status_code == 400
    edges["data"] = np.full_like(board.edge_index, -1).ravel().tolist()
    assert alone.infer([x, edges], parameters=SHORT).status_code == 400

    def fail() -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        on_step(patch, 2, fail)
        assert alone.infer(tensors(board), parameters=SHORT).status_code == 500
    assert alone.service.runs.admitted == 0
    assert alone.infer(tensors(board), parameters=SHORT).status_code == 200
    assert set(steps) == {LOOP}
