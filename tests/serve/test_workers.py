"""`serve --workers`: real processes on the same ports, which act as one server."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from open_inference.grpc import protocol

from adar_runtime import Graph, load
from adar_runtime.errors import UsageError
from adar_serve import Limits, Settings, serve, supervisor
from adar_serve.models import load_models
from adar_serve.refusals import RefusedError
from adar_serve.shared_graphs import SharedGraphs, SharedInference
from adar_serve.snapshots import merged, of_ended
from tests.serve.servers import eventually, outputs, tensor, tensors

SHORT = {"max_steps": 4, "exit": "final", "solver": "euler"}
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux divides the connections of a port among processes"
)


@dataclass
class Command:
    """A server with several workers, its addresses, and its log."""

    process: subprocess.Popen[str]
    http: str = ""
    grpc: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)

    def log(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    def client(self) -> httpx.Client:
        """A client of its own: connections are divided among the workers."""
        return httpx.Client(base_url=self.http, timeout=30)

    def on_each_worker(self, ask: Callable[[httpx.Client], Any]) -> list[Any]:
        """Ask over new connections until both workers have answered. Return the last answer of each one."""
        found: dict[int, Any] = {}
        for _ in range(100):
            identity = f"each-{time.monotonic_ns()}"
            with self.client() as http:
                http.headers["x-request-id"] = identity
                answer = ask(http)
            found[self._worker(identity)] = answer
            if len(found) == 2:
                return [*found.values()]
        raise AssertionError("one worker gets no connection")

    def _worker(self, identity: str) -> int:
        def found() -> list[int]:
            return [line["worker"] for line in self.lines if line.get("request_id") == identity]

        assert eventually(lambda: found() != [])
        return found()[0]

    def pids(self) -> list[int]:
        """The processes of the workers, those that have ended too."""
        return [line["pid"] for line in self.log("worker started")]


@contextmanager
def workers(temporary: Path, *words: object) -> Iterator[Command]:
    options = ["--port", 0, "--grpc-port", 0, "--drain-seconds", 0, "--workers", 2, "--threads", 1]
    command = [sys.executable, "-m", "adar_deploy", "serve", *words, *options]
    paths = os.pathsep.join(each for each in sys.path if each)
    with subprocess.Popen(
        [*map(str, command), "--backend", "onnxruntime-cpu", "--json"], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(temporary)},
    ) as process:  # fmt: skip
        found = Command(process)

        def collect() -> None:
            found.lines.extend(json.loads(line) for line in process.stderr)

        reading = threading.Thread(target=collect)
        reading.start()
        try:
            line = process.stdout.readline()
            addresses = json.loads(line) if line else {}
            found.http, found.grpc = addresses.get("http", ""), addresses.get("grpc", "")
            yield found
        finally:
            process.terminate()
            process.wait(60)
            reading.join(10)


@pytest.fixture(scope="module")
def folder(bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(bundle_folder, tmp_path_factory.mktemp("workers") / "bundle")


@pytest.fixture(scope="module")
def both(folder: Path) -> Iterator[Command]:
    with workers(folder.parent, f"board={folder}", "--model-control", "--limit-graphs", 1) as found:
        yield found


def infer(http: httpx.Client, inputs: list[dict], **parameters: Any) -> httpx.Response:
    body = {"inputs": inputs, "parameters": SHORT | parameters}
    return http.post("/v2/models/board/infer", json=body)


def metric(http: httpx.Client, name: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)


def test_both_workers_answer_on_both_ports(both: Command, bundle_folder: Path, board: Graph) -> None:
    expected = load(bundle_folder, "onnxruntime-cpu", 1).run(board, 4, "final", "euler").probabilities
    for answer in both.on_each_worker(lambda http: infer(http, tensors(board))):
        np.testing.assert_allclose(outputs(answer)["probability"], expected, atol=1e-6)
    for _ in range(4):
        with grpc.insecure_channel(both.grpc) as channel:
            live = channel.unary_unary(
                "/inference.GRPCInferenceService/ServerReady",
                request_serializer=protocol.ServerReadyRequest.SerializeToString,
                response_deserializer=protocol.ServerReadyResponse.FromString,
            )
            assert live(protocol.ServerReadyRequest(), timeout=30).ready


def test_a_graph_stays_for_both_workers(both: Command, board: Graph) -> None:
    with both.client() as http:
        alone = infer(http, tensors(board)).json()
        assert http.put("/graphs/g", json={"inputs": tensors(board)}).status_code == 201
    assert [each.json() for each in both.on_each_worker(lambda http: infer(http, [], graph="g"))] == [
        alone
    ] * 2
    other = Graph(board.features * -2, board.edge_index)
    with both.client() as http:  # replaced: nobody answers for the old one
        expected = infer(http, tensors(other)).json()
        assert http.put("/graphs/g", json={"inputs": tensors(other)}).status_code == 201
    found = both.on_each_worker(lambda http: infer(http, [], graph="g"))
    assert [each.json() for each in found] == [expected] * 2
    for listed in both.on_each_worker(lambda http: http.get("/graphs").json()["graphs"]):
        assert [each["name"] for each in listed] == ["g"]
    with both.client() as http:
        assert http.delete("/graphs/g").status_code == 204
    for missing in both.on_each_worker(lambda http: infer(http, [], graph="g")):
        assert missing.status_code == 404
    assert both.on_each_worker(lambda http: http.get("/graphs").json()) == [{"graphs": []}] * 2


def test_graphs_of_both_workers_share_one_limit(both: Command, board: Graph) -> None:
    with both.client() as first, both.client() as second:
        x = np.zeros((5000, board.width))
        large = [tensor("x", x), tensor("edge_index", np.zeros((2, 9000), np.int64))]
        for number, http in enumerate([first, second, first, second]):
            assert http.put(f"/graphs/n{number}", json={"inputs": large}).status_code == 201
        kept = first.get("/graphs").json()["graphs"]
        assert [each["name"] for each in kept][-1] == "n3"
        assert "n0" not in [each["name"] for each in kept]
        assert sum(each["bytes"] for each in kept) <= 2**20
        too_large = [tensor("x", np.zeros((60_000, board.width))), large[1]]
        assert first.put("/graphs/n9", json={"inputs": too_large}).status_code == 413
        for each in kept:
            assert second.delete(f"/graphs/{each['name']}").status_code == 204


def test_changed_nodes_are_those_of_both_workers(both: Command, bundle_folder: Path, board: Graph) -> None:
    context = load(bundle_folder, "onnxruntime-cpu", 1).remember(board, 4, "final", "euler")
    both_ways = [[7, 144], [144, 7]]  # node 7 reacts, with the edges that it has then
    new = [tensor("x", board.features[:1]), tensor("edge_index", np.array(both_ways))]
    body = {"inputs": new, "parameters": SHORT}
    with both.client() as http:
        assert http.put("/graphs/g", json={"inputs": tensors(board)}).status_code == 201

    def check() -> None:
        expected = context.predict(board.features[:1], both_ways).probabilities
        for answer in both.on_each_worker(lambda http: http.post("/graphs/g/nodes", json=body)):
            np.testing.assert_allclose(outputs(answer)["probability"], expected, atol=1e-6)

    check()
    for factor, node in ((-3, 7), (4, 7), (2, 3)):  # the last one changes what a changed node receives
        x, edges = board.features[[7]] * factor, np.array([[3, 8, 60], [node, node, node]])
        change = [tensor("nodes", np.array([node])), tensor("x", x), tensor("edge_index", edges)]
        with both.client() as http:
            answer = http.post("/graphs/g/nodes", json={"inputs": change, "parameters": SHORT})
        expected = context.update([node], x, edges).probabilities
        np.testing.assert_allclose(outputs(answer)["probability"], expected, atol=1e-6)
        check()
    wrong = {"inputs": [tensor("nodes", np.array([999])), *new], "parameters": SHORT}
    with both.client() as http:
        assert http.post("/graphs/g/nodes", json=wrong).status_code == 400
    check()


def test_models_change_in_both_workers_or_in_none(both: Command, folder: Path, board: Graph) -> None:
    def states(http: httpx.Client) -> list[str]:
        return [each["state"] for each in http.post("/v2/repository/index").json()]

    with both.client() as http:
        cell = (folder / "cell.onnx").read_bytes()
        (folder / "cell.onnx").write_bytes(cell[:-1])
        try:
            refused = http.post("/v2/repository/models/board/load")
        finally:
            (folder / "cell.onnx").write_bytes(cell)
        assert (refused.status_code, "was not changed" in refused.text) == (500, True)
        assert both.on_each_worker(lambda each: infer(each, tensors(board)).status_code) == [200, 200]
        assert http.post("/v2/repository/models/board/unload").status_code == 200
        assert both.on_each_worker(states) == [["UNAVAILABLE"]] * 2
        assert http.post("/v2/repository/models/board/unload").status_code == 404
        assert http.post("/v2/repository/models/board/load").status_code == 200
        assert both.on_each_worker(states) == [["READY"]] * 2
        assert http.post("/v2/repository/models/other/load").status_code == 404
    before = len(both.log("reloaded"))
    both.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: len(both.log("reloaded")) == before + 2)
    assert {line["worker"] for line in both.log("reloaded")[before:]} == {0, 1}


def test_workers_do_not_load_two_bundles_under_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle was replaced between two workers, which then gave different answers to one request."""
    parent, told = supervisor.Supervisor(["board=bundle"], Settings(), {}), []

    async def tell(method: str, **_: str) -> list[Any]:
        told.append(method)
        return [["old"], ["new"]] if method == "open" else []

    monkeypatch.setattr(parent, "_tell", tell)
    with pytest.raises(RefusedError, match="was replaced while the workers loaded it: try again"):
        asyncio.run(parent.reload("board"))
    assert told == ["open", "discard"]


def test_a_killed_worker_is_started_again_and_its_counts_stay(both: Command, board: Graph) -> None:
    counter = 'adar_requests_total{action="infer",protocol="http",status="200"}'
    with both.client() as http:
        assert http.put("/graphs/stays", json={"inputs": tensors(board)}).status_code == 201
    both.on_each_worker(lambda http: infer(http, tensors(board)))
    with both.client() as http:
        answers = metric(http, counter)
        used = http.get("/v2/models/board/stats").json()["model_stats"][0]["inference_count"]
    assert (answers >= 2, used >= 2) == (True, True)
    killed = both.pids()[0]
    os.kill(killed, signal.SIGKILL)
    assert eventually(lambda: both.log("worker ended") != [])
    assert both.log("worker ended")[0]["code"] == -signal.SIGKILL
    assert eventually(lambda: len(both.log("listening")) == 3, 60)
    assert len(both.pids()) == 3
    assert both.on_each_worker(lambda http: infer(http, [], graph="stays").status_code) == [200, 200]
    with both.client() as http:
        assert metric(http, "adar_workers") == 2
        assert metric(http, "adar_worker_restarts_total") == 1
        assert metric(http, counter) >= answers + 2
        (stats,) = http.get("/v2/models/board/stats").json()["model_stats"]
        assert stats["inference_count"] >= used + 2
        assert stats["inference_count"] == sum(
            each["batch_size"] * each["compute_infer"]["count"] for each in stats["batch_stats"]
        )


def test_a_worker_that_hangs_is_killed_and_started_again(
    folder: Path, board: Graph, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "SNAPSHOT_SECONDS", 0.2)
    lines: list[dict[str, Any]] = []

    def log(event: str) -> list[dict[str, Any]]:
        lines.extend(json.loads(line) for line in capfd.readouterr().err.splitlines())
        return [line for line in lines if line["event"] == event]

    async def until(event: str, count: int) -> None:
        async with asyncio.timeout(60):
            while len(log(event)) < count:
                await asyncio.sleep(0.05)

    async def scenario() -> int:
        settings = Settings(port=0, grpc_port=None, drain_seconds=0, workers=1)
        ready = asyncio.Event()
        options = {"backend": "onnxruntime-cpu", "threads": 1}
        parent = supervisor.Supervisor([f"board={folder}"], settings, options)
        running = asyncio.create_task(parent.run(lambda _: ready.set()))
        await ready.wait()
        await asyncio.sleep(0.5)  # some snapshots: a worker that answers is not killed
        assert log("worker hangs") == []
        os.kill(log("worker started")[0]["pid"], signal.SIGSTOP)
        await until("listening", 2)
        async with httpx.AsyncClient(base_url=log("listening")[1]["http"]) as http:
            found = await http.post("/v2/models/board/infer", json={"inputs": tensors(board)})
        os.kill(log("worker started")[1]["pid"], signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGTERM)  # a worker that hangs does not keep the server from its end
        await asyncio.wait_for(running, 60)
        return found.status_code

    assert asyncio.run(scenario()) == 200
    assert [line["pid"] for line in log("worker hangs")] == [line["pid"] for line in log("worker started")]
    assert log("worker ended")[0]["code"] == -signal.SIGKILL


def test_a_worker_that_ignores_the_signal_while_it_is_started_ends_then(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A worker inherits from the parent that SIGTERM is ignored: the server went on without end."""
    original = supervisor.child_command
    ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1.5); "

    def command(module: str) -> list[str]:
        python, isolated, option, code, *folders = original(module)
        return [python, isolated, option, ignoring + code, *folders]

    async def scenario() -> None:
        settings = Settings(port=0, grpc_port=None, drain_seconds=0, workers=1)
        ready = asyncio.Event()
        options = {"backend": "onnxruntime-cpu", "threads": 1}
        parent = supervisor.Supervisor([f"board={folder}"], settings, options)
        running = asyncio.create_task(parent.run(lambda _: ready.set()))
        await ready.wait()
        monkeypatch.setattr(supervisor, "child_command", command)
        (first,) = parent._workers.values()
        first.process.kill()
        async with asyncio.timeout(60):
            while parent._workers[0] is first:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 30)

    asyncio.run(scenario())
    lines = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
    assert lines.count("listening") == 2
    assert lines[-2:] == ["stopped", "workers stopped"]


def test_workers_end_with_a_parent_that_is_killed(folder: Path, tmp_path: Path) -> None:
    with workers(tmp_path, f"board={folder}") as found:
        (shared,) = tmp_path.glob("adar-serve-*")
        assert [*map(is_alive, found.pids())] == [True, True]
        found.process.kill()
        assert eventually(lambda: not any(map(is_alive, found.pids())), 30)
        assert not shared.exists()


def test_what_cannot_be_started_is_one_error(folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(port=taken.getsockname()[1], grpc_port=None, workers=2)
        with pytest.raises(UsageError, match="cannot listen on"):
            serve([str(folder)], settings)
    with pytest.raises(UsageError, match="none"):
        serve([str(tmp_path / "none")], Settings(port=0, grpc_port=0, workers=2))


def test_snapshots_are_summed() -> None:
    def snapshot(count: float, memory: float, score: float) -> dict[str, Any]:
        counter = {"name": "c", "type": "counter", "help": "", "samples": [["c_total", {"a": "b"}, count]]}
        counter["samples"].append(["c_created", {"a": "b"}, count])
        gauge = {"name": "m", "type": "gauge", "help": "", "samples": [["m", {}, memory]]}
        drift = {"name": "d", "type": "gauge", "help": "", "samples": [["adar_drift_score", {}, score]]}
        return {"metrics": [counter, gauge, drift], "statistics": []}

    found = merged([of_ended(snapshot(5, 100, 9)), snapshot(2, 10, 1), snapshot(3, 20, 3)])
    samples = {name: value for family in found["metrics"] for name, _, value in family["samples"]}
    assert samples == {"c_total": 10, "c_created": 2, "m": 30, "adar_drift_score": 3}


def test_workers_share_changes_and_refuse_one_that_was_not_finished(
    bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    models = load_models([f"board={bundle_folder}"], backend="onnxruntime-cpu", threads=1)
    one, other = (SharedGraphs(Limits(), tmp_path, models) for _ in range(2))
    one.add("g", models.all[0], board)
    options = {"budget": 3, "stop": "final", "solver": "euler"}
    inputs = {"x": board.features[:1], "edge_index": np.array([[7], [144]])}

    def score(store: SharedGraphs) -> np.ndarray:
        return store.use("g").score(inputs, options, store.limit, lambda: None).scores

    assert score(one).tolist() == score(other).tolist()
    change = {"nodes": np.array([7]), "x": -board.features[[9]], "edge_index": np.array([[3, 60], [7, 7]])}
    one.use("g").score(change, options, one.limit, lambda: None)
    assert score(one).tolist() == score(other).tolist()
    mine, theirs = (store.use("g").kept._context.kept for store in (one, other))
    assert [each.tolist() for each in theirs.edges.changes] == [[7], [[3, 60], [7, 7]]]
    np.testing.assert_array_equal(mine.calls.rows, theirs.calls.rows)
    np.testing.assert_array_equal(mine.encoded, theirs.encoded)
    with pytest.raises(KeyboardInterrupt), one.use("g").kept.changing():
        (mark,) = tmp_path.glob("data/*/kept.json")
        ended = mark.read_bytes()
        raise KeyboardInterrupt
    mark.write_bytes(ended)  # as the process would have left it
    with pytest.raises(RefusedError, match="send the graph again"):
        score(other)
    one.add("g", models.all[0], board)
    assert score(other).shape == (1, 2)


def test_an_inference_of_a_worker_that_ended_is_not_taken_for_the_last_one(
    bundle_folder: Path, board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends after the files of an inference with other options are there, and before it says so."""
    models = load_models([f"board={bundle_folder}"], backend="onnxruntime-cpu", threads=1)
    one, other = (SharedGraphs(Limits(), tmp_path, models) for _ in range(2))
    one.add("g", models.all[0], board)
    inputs = {"x": board.features[:1], "edge_index": np.array([[7], [144]])}

    def score(store: SharedGraphs, budget: int) -> np.ndarray:
        options = {"budget": budget, "stop": "final", "solver": "euler"}
        return store.use("g").score(inputs, options, store.limit, lambda: None).scores

    expected, write = score(one, 3), SharedInference._write

    def killed(kept: SharedInference, state: dict[str, Any]) -> None:
        if state.get("options", {}).get("budget") == 40:
            raise KeyboardInterrupt
        write(kept, state)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SharedInference, "_write", killed)
        score(one, 40)
    assert score(other, 3).tolist() == expected.tolist()
    assert score(other, 40).tolist() != expected.tolist()


def test_sigterm_drains_all_workers_and_leaves_nothing(both: Command, folder: Path, board: Graph) -> None:
    """The last test of these workers."""
    (shared,) = folder.parent.glob("adar-serve-*")
    assert shared.stat().st_mode & 0o077 == 0
    answers = list[httpx.Response]()
    parameters = {"max_steps": 2500, "exit": "final"}
    with both.client() as http, both.client() as other:
        asking = threading.Thread(target=lambda: answers.append(infer(http, tensors(board), **parameters)))
        asking.start()
        assert eventually(lambda: metric(other, "adar_running") == 1)
        both.process.terminate()
        asking.join(30)
    assert [each.status_code for each in answers] == [200]
    assert both.process.wait(30) == 0
    assert eventually(lambda: both.lines[-1]["event"] == "workers stopped")
    assert {line["worker"] for line in both.log("stopped")} == {0, 1}
    assert not shared.exists()
    assert not any(map(is_alive, both.pids()))


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
