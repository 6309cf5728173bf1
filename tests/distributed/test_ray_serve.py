"""The HTTP application on Ray Serve, on a real Ray cluster with two CPUs."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from adar_runtime import Graph, load
from adar_runtime.errors import UsageError
from adar_serve import Limits, Settings
from tests.distributed.conftest import without_warnings
from tests.serve.servers import eventually, outputs, tensors

with without_warnings():
    serve = pytest.importorskip("ray.serve", reason="Ray Serve is not installed (extra serve-ray)")
    from adar_serve import ray_serve

pytestmark = [pytest.mark.ray, pytest.mark.torture, pytest.mark.usefixtures("cluster")]
OPTIONS = {"backend": "onnxruntime-cpu", "threads": 1}
SHORT = {"max_steps": 4, "exit": "final", "solver": "euler"}
TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="module")
def address(
    request: pytest.FixtureRequest, bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    request.getfixturevalue("cluster")
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.txt"
    tokens.write_text(TOKEN)
    limits = Limits(concurrent=1, queue=8, steps=2_000_000, seconds=30)
    settings = Settings(port=0, limits=limits, tokens=tokens, workers=2)
    with without_warnings(), ray_serve.deployed([f"board={bundle_folder}"], settings, OPTIONS) as found:
        yield found["http"]


@pytest.fixture
def http(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        yield client


def infer(http: httpx.Client, graph: Graph, **parameters: object) -> httpx.Response:
    body = {"inputs": tensors(graph), "parameters": SHORT | parameters}
    return http.post("/v2/models/board/infer", json=body)


def replicas() -> int:
    states = serve.status().applications["adar"].deployments["adar"].replica_states
    return states.get("RUNNING", 0)


def test_answers_are_those_of_the_runtime(http: httpx.Client, bundle_folder: Path, board: Graph) -> None:
    expected = load(bundle_folder, "onnxruntime-cpu", 1).run(board, 4, "final", "euler").probabilities
    np.testing.assert_allclose(outputs(infer(http, board))["probability"], expected, atol=1e-6)
    assert http.get("/v2/health/ready").json() == {"ready": True}
    assert httpx.get(f"{http.base_url}/v2/models/board").status_code == 401
    with http.stream("POST", "/v2/models/board/infer_stream", json={"inputs": tensors(board)}) as response:
        events = [line for line in response.iter_lines() if line.startswith("event")]
    assert (events[0], events[-1]) == ("event: step", "event: answer")
    refused = http.put("/graphs/g", json={"inputs": tensors(board)})
    assert (refused.status_code, "--ray" in refused.text) == (403, True)
    assert http.post("/v2/repository/models/board/unload").status_code == 403


def test_replicas_follow_the_queue_and_count_together(http: httpx.Client, board: Graph) -> None:
    assert replicas() == 1
    over = threading.Event()

    def keep_asking() -> None:
        while not over.is_set():
            assert infer(http, board, max_steps=400).status_code == 200

    clients = [threading.Thread(target=keep_asking) for _ in range(6)]
    for each in clients:
        each.start()
    try:
        assert eventually(lambda: replicas() == 2, 90)
    finally:
        over.set()
        for each in clients:
            each.join()
    counts = [
        http.get("/v2/models/board/stats").json()["model_stats"][0]["inference_count"] for _ in range(4)
    ]
    assert counts == sorted(counts)
    assert counts[0] > 6
    assert "adar_requests_total" in http.get("/metrics").text


@pytest.mark.usefixtures("http")
def test_a_second_server_on_the_cluster_is_refused() -> None:
    with pytest.raises(UsageError, match="already"), ray_serve.deployed(["none"], Settings(port=0), {}):
        pass
