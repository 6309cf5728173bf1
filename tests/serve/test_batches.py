"""Small graphs that wait together share calls, and none of them waits long."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from adar_deploy.paths import PRETRAINED, named_bundle
from adar_runtime import Graph, load
from adar_serve import Limits
from adar_serve.threads import Threads
from tests.in_context_graphs import block_graph
from tests.serve.servers import Settings, eventually, occupied, outputs, running, tensor, tensors

ENDLESS = {"max_steps": 10_000_000, "exit": "final", "solver": "euler"}
SHORT = {"max_steps": 5, "exit": "final", "solver": "euler"}


def piece(board: Graph, nodes: int) -> Graph:
    inside = (board.edge_index < nodes).all(axis=0)
    return Graph(board.features[:nodes], board.edge_index[:, inside])


def test_graphs_that_wait_together_get_the_answers_of_single_runs(bundle_folder: Path, board: Graph) -> None:
    limits = Limits(concurrent=1, batch_wait=10_000)
    graphs = [piece(board, nodes) for nodes in (20, 90, 41, 60)]
    wrong = [tensor("x", board.features[:3]), tensor("edge_index", np.full((2, 1), 3))]
    with running(
        [f"board={bundle_folder}"], Settings(port=0, grpc_port=None, limits=limits, drain_seconds=0)
    ) as found:
        with ThreadPoolExecutor(5) as clients, occupied(found, 5):
            answers = [clients.submit(found.infer, tensors(graph), parameters=SHORT) for graph in graphs]
            refused = clients.submit(found.infer, wrong, parameters=SHORT)
        results = [outputs(answer.result()) for answer in answers]
        assert refused.result().status_code == 400
        (statistics,) = found.http.get("/v2/models/stats").json()["model_stats"]
    assert statistics["inference_count"] == 4
    assert [each["batch_size"] for each in statistics["batch_stats"]] == [4]
    bundle = load(bundle_folder, "onnxruntime-cpu", 1)
    for graph, result in zip(graphs, results, strict=True):
        expected = bundle.run(graph, 5, "final", "euler")
        np.testing.assert_allclose(result["probability"], expected.probabilities, atol=1e-5)


def test_a_batch_ends_when_its_time_is_over(bundle_folder: Path, board: Graph) -> None:
    limits = Limits(concurrent=1, seconds=2, steps=10_000_000)
    with running(
        [f"board={bundle_folder}"], Settings(port=0, grpc_port=None, limits=limits, drain_seconds=0)
    ) as found:
        with ThreadPoolExecutor(2) as clients, occupied(found, 2):
            late = [clients.submit(found.infer, tensors(board), parameters=ENDLESS) for _ in range(2)]
        assert {each.result().status_code for each in late} == {504}
        assert eventually(lambda: found.service.runs.admitted == 0)


def test_a_group_waits_only_while_other_work_waits() -> None:
    threads, release, seen = Threads(1, most=3, wait=0.3), threading.Event(), list[object]()
    threads.submit(release.wait)
    for entry in range(7):
        threads.join("key", entry, seen.append)
    threads.submit(lambda: seen.append("other"))
    release.set()
    assert eventually(lambda: len(seen) == 4)
    assert seen[:2] == [[0, 1, 2], [3, 4, 5]]
    assert [6] in seen
    alone = time.monotonic()
    threads.join("key", 8, seen.append)
    assert eventually(lambda: len(seen) == 5)
    assert time.monotonic() - alone < 0.3
    threads.close()
    assert not threads.submit(release.wait)


def test_a_group_goes_first_when_its_time_is_over() -> None:
    threads, release, seen = Threads(1, most=9, wait=0.0), threading.Event(), list[object]()
    threads.submit(release.wait)
    threads.submit(lambda: seen.append("other"))
    threads.join("key", 1, seen.append)
    release.set()
    assert eventually(lambda: len(seen) == 2)
    assert seen == [[1], "other"]
    threads.close()


def test_graphs_of_the_pretrained_model_share_calls() -> None:
    """Their numbers of nodes, of classes and of columns differ."""
    folder = named_bundle(PRETRAINED)
    sizes = ((40, 3, 24), (90, 5, 70), (60, 2, 8))
    graphs = [replace(block_graph(*size), train_mask=None) for size in sizes]
    limits = Limits(concurrent=1, batch_wait=10_000)
    with running(
        [f"pretrained={folder}"], Settings(port=0, grpc_port=None, limits=limits, drain_seconds=0)
    ) as found:
        with ThreadPoolExecutor(3) as clients, occupied(found, 3):
            answers = [
                clients.submit(found.infer, tensors(graph), "pretrained", parameters=SHORT)
                for graph in graphs
            ]
        results = [outputs(answer.result()) for answer in answers]
        (statistics,) = found.http.get("/v2/models/stats").json()["model_stats"]
    assert [each["batch_size"] for each in statistics["batch_stats"]] == [3]
    bundle = load(folder, "onnxruntime-cpu", 1)
    for graph, result in zip(graphs, results, strict=True):
        expected = bundle.run(graph, 5, "final", "euler")
        np.testing.assert_allclose(result["probability"], expected.probabilities, atol=1e-5)


def test_a_server_that_ends_waits_for_the_calls_that_run() -> None:
    """A process that ended during a call of ONNX Runtime got SIGABRT."""
    threads, begun, release = Threads(2, most=1, wait=0.0), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        release.wait(30)

    threads.submit(work)
    assert begun.wait(30)
    threads.close()
    assert not threads.wait(0.01)
    threading.Timer(0.2, release.set).start()
    assert threads.wait(30)
