"""serve --isolate: graphs run in child processes, and one that is stopped costs its own request only."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from adar_runtime import Graph
from adar_runtime.errors import UsageError
from adar_serve import Limits
from adar_serve.isolation import Isolation
from tests.helpers import random_graph
from tests.serve.servers import Running, Settings, eventually, outputs, running, tensors
from tests.serve.test_operation import events

SHORT = {"max_steps": 6, "exit": "final", "solver": "euler"}
ENDLESS = {"max_steps": 20_000, "exit": "final", "solver": "euler"}


@pytest.fixture(scope="module")
def others() -> set[int]:
    """The child processes before the server starts: those of other tests, such as Ray's."""
    return children()


@pytest.fixture(scope="module")
def isolated(bundle_folder: Path, described_bundle: Path, others: set[int]) -> Iterator[Running]:  # noqa: ARG001
    limits = Limits(concurrent=1, steps=20_000, seconds=30)
    settings = Settings(port=0, grpc_port=None, limits=limits, isolate=True, drain_seconds=0)
    with running([f"board={bundle_folder}", f"described={described_bundle}"], settings) as found:
        yield found


def children() -> set[int]:
    """The child processes of this process."""
    listed = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(word) for path in listed for word in path.read_text().split()}


def test_answers_and_steps_are_those_of_a_server_without_isolation(
    isolated: Running, served: Running, board: Graph
) -> None:
    described = random_graph(30, 90, seed=5)
    for model, graph in (("board", board), ("described", described)):
        answers = [each.infer(tensors(graph), model, parameters=SHORT) for each in (isolated, served)]
        assert answers[0].json() == answers[1].json()
    body = {"inputs": tensors(board), "parameters": SHORT}
    streams = []
    for each in (isolated, served):
        with each.http.stream("POST", "/v2/models/board/infer_stream", json=body) as response:
            streams.append(list(events(response)))
    assert streams[0] == streams[1]
    wrong = isolated.infer(tensors(board), parameters=SHORT | {"solver": "none"})
    assert (wrong.status_code, "there is no solver" in wrong.text) == (400, True)
    assert isolated.http.put("/graphs/g?model=board", json=body).status_code == 403


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_killed_process_costs_its_own_request_only(
    isolated: Running, others: set[int], board: Graph
) -> None:
    assert outputs(isolated.infer(tensors(board), parameters=SHORT))
    before = children() - others
    assert before
    with isolated.http.stream(
        "POST", "/v2/models/board/infer_stream", json={"inputs": tensors(board), "parameters": ENDLESS}
    ) as response:
        found = events(response)
        assert next(found)[0] == "step"
        for child in before:
            os.kill(child, signal.SIGKILL)
        name, content = list(found)[-1]
    assert (name, "the process of this request ended" in content["error"]) == ("error", True)
    assert outputs(isolated.infer(tensors(board), parameters=SHORT))
    described = tensors(random_graph(30, 90, seed=5))
    assert isolated.infer(described, "described", parameters=SHORT).status_code == 200
    assert not children() & before


def test_a_client_that_goes_away_ends_the_process(isolated: Running, board: Graph) -> None:
    body = {"inputs": tensors(board), "parameters": ENDLESS}
    with isolated.http.stream("POST", "/v2/models/board/infer_stream", json=body) as response:
        next(events(response))
    assert eventually(lambda: isolated.service.runs.running == 0)


def test_memory_is_limited(bundle_folder: Path, board: Graph) -> None:
    large = random_graph(10_000, 50_000, features=board.width, seed=1)
    body = [each for each in tensors(large) if each["name"] != "target_x"]
    settings = Settings(
        port=0, grpc_port=None, limits=Limits(memory=1, concurrent=1), isolate=True, drain_seconds=0
    )
    with running([f"board={bundle_folder}"], settings) as found:
        refused = found.infer(body, parameters=SHORT)
        assert refused.status_code in (400, 413, 500), refused.text
        assert found.service.runs.running == 0


def test_a_run_has_to_fit_into_one_message() -> None:
    with pytest.raises(UsageError, match="at most --limit-steps 20000"):
        Isolation(Limits(steps=30_000), {})
