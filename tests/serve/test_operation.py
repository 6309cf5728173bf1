"""Metrics, logs, clients that go away, and the drain at the end."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

from adar_runtime import Graph, Step, load, write_graph
from adar_serve.limits import Limits
from adar_serve.refusals import RefusedError
from adar_serve.runs import Control, done
from adar_serve.server import listen
from tests.helpers import random_graph
from tests.serve.servers import Running, Settings, eventually, running, tensor, tensors

ENDLESS = {"max_steps": 2_000_000, "exit": "final"}  # minutes of work


def metric(served: Running, line: str) -> float:
    text = served.http.get("/metrics").text
    return next((float(each.split()[-1]) for each in text.splitlines() if each.startswith(line)), 0.0)


def test_an_answer_is_sent_without_waiting_for_the_client_to_confirm_its_headers() -> None:
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_metrics_count_requests_and_cell_calls(served: Running, board: Graph) -> None:
    requests = 'adar_requests_total{action="infer",protocol="http",status="200"}'
    calls = 'adar_cell_calls_total{model="board"}'
    before = metric(served, requests), metric(served, calls)
    assert served.infer(tensors(board), parameters={"max_steps": 7, "exit": "final"}).status_code == 200
    assert (metric(served, requests), metric(served, calls)) == (before[0] + 1, before[1] + 7)
    assert metric(served, 'adar_phase_seconds_count{phase="queue"}') >= 1
    assert metric(served, 'adar_stops_total{model="board",reason="budget"}') >= 1
    assert metric(served, "process_resident_memory_bytes") > 0


def test_every_request_is_one_json_line_with_its_id(served: Running, board: Graph) -> None:
    body = {"inputs": tensors(board), "parameters": {"max_steps": 3, "exit": "final"}}
    response = served.http.post("/v2/models/board/infer", json=body, headers={"X-Request-ID": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    assert eventually(lambda: served.log()[-1]["request_id"] == "abc-1")  # after the answer
    line = served.log()[-1]
    facts = {"protocol": "http", "method": "POST", "path": "/v2/models/board/infer", "status": 200}
    facts |= {"nodes": board.nodes, "edges": board.edges, "cell_calls": 3, "stop_reason": "budget"}
    assert line.items() >= facts.items()
    response = served.http.get("/v2", headers={"X-Request-ID": 'no good id "'})
    assert len(response.headers["x-request-id"]) == 32


def test_a_client_that_goes_away_cancels_its_run(served: Running, board: Graph) -> None:
    host, port = served.addresses["http"].removeprefix("http://").split(":")
    body = json.dumps({"inputs": tensors(board), "parameters": ENDLESS}).encode()
    head = f"POST /v2/models/board/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head.encode() + body)
        assert eventually(lambda: served.service.runs.running == 1)
    assert eventually(lambda: served.service.runs.running == 0)
    assert eventually(lambda: any(each["status"] == 499 for each in served.log()))


def test_an_unexpected_error_is_a_500_whose_traceback_is_in_the_log(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(served.service, "server_metadata", fails)
    found = served.http.get("/v2", headers={"X-Request-ID": "fails-1"})
    assert (found.status_code, "secret" in found.text) == (500, False)
    assert "x-request-id" in found.json()["error"]
    assert eventually(lambda: any(each.get("request_id") == "fails-1" for each in served.log()))
    line = next(each for each in served.log() if each["request_id"] == "fails-1")
    assert (line["status"], "a secret" in line["traceback"]) == (500, True)


def test_a_cancelled_run_makes_no_further_step(bundle_folder: Path, board: Graph) -> None:
    loop = load(bundle_folder, "onnxruntime-cpu", 1).loop(board, 300, "final")
    control = Control(time.monotonic() + 60, 60)

    def on_step(step: Step) -> None:
        control.cancelled = step.index == 5

    control.on_step = on_step
    with pytest.raises(RefusedError, match="closed the connection"):
        done(control.steps(loop))
    assert loop.calls == 5


def test_a_second_signal_ends_a_run_after_its_current_call(bundle_folder: Path, board: Graph) -> None:
    """The server waited for all calls of the run."""
    limits = Limits(seconds=10, steps=10_000_000)
    settings = Settings(port=0, grpc_port=None, limits=limits, drain_seconds=0)
    with running([f"board={bundle_folder}"], settings) as found, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(found.infer, tensors(board), parameters=ENDLESS)
        assert eventually(lambda: found.service.runs.running == 1)
        begun = time.monotonic()
        found.server.stop()
        found.server.stop()
        found.thread.join(20)
        assert time.monotonic() - begun < 5
        assert not found.thread.is_alive()
        with suppress(httpx.TransportError):  # the connection may be closed before the answer
            assert answer.result(20).status_code == 503


def events(response: httpx.Response):
    """(name, content) of each event."""
    name = ""
    for line in response.iter_lines():
        key, _, value = line.partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            yield name, json.loads(value)


def test_streaming_sends_every_step_and_the_answer(served: Running, board: Graph) -> None:
    body = {"inputs": tensors(board), "parameters": {"max_steps": 12}}
    answer = served.http.post("/v2/models/board/infer", json=body).json()
    with served.http.stream("POST", "/v2/models/board/infer_stream", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *steps, (name, last) = events(response)
    assert (name, last) == ("answer", answer)
    assert {name for name, _ in steps} == {"step"}
    alignment = next(each["data"] for each in answer["outputs"] if each["name"] == "alignment")
    assert [each["alignment"] for _, each in steps] == alignment
    assert [each["step"] for _, each in steps] == list(range(len(alignment)))
    wrong = served.http.post("/v2/models/board/infer_stream", json={"inputs": []})
    assert (wrong.status_code, wrong.json()) == (400, {"error": "the input x is missing"})


def test_closing_a_stream_cancels_its_run(served: Running, board: Graph) -> None:
    body = {"inputs": tensors(board), "parameters": ENDLESS}
    with served.http.stream("POST", "/v2/models/board/infer_stream", json=body) as response:
        found = events(response)  # without a name, it would be closed, and the connection with it
        next(found)
        assert served.service.runs.running == 1
    assert eventually(lambda: served.service.runs.running == 0)


def test_graphs_stay_until_they_are_removed_or_others_need_the_memory(
    served: Running, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "board.npz", board)
    address = "/graphs/first?model=board"
    stored = served.http.put(address, content=(tmp_path / "board.npz").read_bytes())
    assert (stored.status_code, stored.json()["nodes"]) == (201, board.nodes)
    assert served.http.put(address, json={"inputs": tensors(board)}).status_code == 201
    assert [each["name"] for each in served.http.get("/graphs").json()["graphs"]] == ["first"]
    by_name = served.infer([], parameters={"graph": "first", "max_steps": 9}).json()
    assert by_name == served.infer(tensors(board), parameters={"max_steps": 9}).json()
    assert served.infer(tensors(board), parameters={"graph": "first"}).status_code == 400
    assert served.infer([], "described", parameters={"graph": "first"}).status_code == 400
    large = [tensor("x", np.zeros((5000, board.width))), tensor("edge_index", np.zeros((2, 9000), np.int64))]
    names = ["second", "third", "fourth"]
    for name in names:
        assert served.http.put(f"/graphs/{name}?model=board", json={"inputs": large}).status_code == 201
    kept = {each["name"]: each["bytes"] for each in served.http.get("/graphs").json()["graphs"]}
    assert "first" not in kept
    assert names[-1] in kept
    assert sum(kept.values()) <= 2**20
    missing = served.infer([], parameters={"graph": "first"})
    assert (missing.status_code, "PUT /graphs/NAME" in missing.text) == (404, True)
    for name in kept:
        assert served.http.delete(f"/graphs/{name}").status_code == 204
    assert served.http.get("/graphs").json() == {"graphs": []}
    assert served.http.delete("/graphs/first").status_code == 404
    assert served.http.put("/graphs/a%20b?model=board", json={"inputs": large}).status_code == 400
    assert served.http.put("/graphs/first", json={"inputs": large}).status_code == 400  # which model?


def test_a_graph_that_stays_takes_other_descriptions(served: Running) -> None:
    graph = random_graph(30, 90, seed=5)
    x, edges, targets = tensors(graph)
    assert served.http.put("/graphs/g?model=described", json={"inputs": [x, edges]}).status_code == 201
    parameters = {"graph": "g", "max_steps": 6}
    other = tensor("target_x", graph.target_features[::-1][:2])
    for described in (targets, other):
        stayed = served.infer([described], "described", parameters=parameters)
        sent = served.infer([x, edges, described], "described", parameters={"max_steps": 6})
        assert stayed.status_code == 200
        assert stayed.json() == sent.json()
    without = served.infer([], "described", parameters=parameters)
    assert (without.status_code, "target_x" in without.text) == (400, True)
    served.http.delete("/graphs/g")


def test_a_server_that_stops_says_so_and_finishes_its_requests(bundle_folder: Path, board: Graph) -> None:
    settings = Settings(port=0, grpc_port=None, drain_seconds=1)
    with running([f"board={bundle_folder}"], settings) as found:
        answers: list[httpx.Response] = []
        parameters = {"max_steps": 1500, "exit": "final"}
        thread = threading.Thread(
            target=lambda: answers.append(found.infer(tensors(board), parameters=parameters))
        )
        thread.start()
        assert eventually(lambda: found.service.runs.running == 1)
        found.server.stop()
        assert found.http.get("/v2/health/ready").status_code == 503
        assert found.http.get("/v2/health/live").status_code == 200
        thread.join(30)
        found.thread.join(30)
        assert answers[0].status_code == 200
        assert found.log("stopped")


def test_sigterm_ends_the_command_after_the_drain(bundle_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "adar_deploy", "serve", f"board={bundle_folder}"]
    options = ["--port", "0", "--grpc-port", "0", "--drain-seconds", "0", "--json"]
    paths = os.pathsep.join(each for each in sys.path if each)
    with subprocess.Popen(
        [*command, *options], cwd=tmp_path, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    ) as process:  # fmt: skip
        try:
            first = json.loads(process.stderr.readline())
            assert first["event"] == "listening"
            started = time.monotonic()
            while time.monotonic() < started + 20:
                try:
                    assert httpx.get(f"{first['http']}/v2/health/ready").status_code == 200
                    break
                except httpx.TransportError:
                    time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert json.loads(out) == {"http": first["http"], "grpc": first["grpc"]}
    assert [json.loads(line)["event"] for line in err.splitlines()][-2:] == ["draining", "stopped"]


@pytest.mark.parametrize(
    ("ignored", "ends", "workers"),
    [
        ((signal.SIGINT, signal.SIGHUP), signal.SIGTERM, 1),
        ((signal.SIGTERM, signal.SIGHUP), signal.SIGINT, 2),
    ],
)
def test_a_signal_that_is_ignored_stays_ignored(
    ignored: tuple[signal.Signals, ...], ends: signal.Signals, workers: int, bundle_folder: Path
) -> None:
    names = " ".join(one.name.removeprefix("SIG") for one in ignored)
    words = ["serve", str(bundle_folder), "--port", "0", "--no-grpc", "--drain-seconds", "0", "--json"]
    command = [sys.executable, "-m", "adar_deploy", *words, "--workers", str(workers)]
    paths = os.pathsep.join(each for each in sys.path if each)
    with subprocess.Popen(
        ["sh", "-c", f"trap '' {names}; exec \"$@\"", "sh", *command], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths},
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            process.stdout.readline()
            for number in ignored:
                process.send_signal(number)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2)
            process.send_signal(ends)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert '"reloaded"' not in err
