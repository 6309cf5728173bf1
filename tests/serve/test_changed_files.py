"""A bundle that is replaced on the disk while a server runs: the old model answers, or nobody does."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from adar_runtime import Graph, load
from adar_serve import Limits, Settings
from tests.bundles import change_model, change_weight
from tests.serve.servers import Running, eventually, occupied, outputs, running, tensor, tensors

SHORT = {"max_steps": 4, "exit": "final", "solver": "euler"}


@pytest.fixture
def folder(bundle_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(bundle_folder, tmp_path / "bundle")


@pytest.fixture
def other(bundle_folder: Path, tmp_path: Path) -> Path:
    """A bundle with other weights in all models."""
    found = shutil.copytree(bundle_folder, tmp_path / "other")
    for name in ("encoder", "cell"):
        change_model(found, found, name, lambda model: change_weight(model, 0.5))
    return found


def replace_files(folder: Path, other: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


def probabilities(folder: Path, graph: Graph) -> np.ndarray:
    found = load(folder, "onnxruntime-cpu", 1).run(graph, 4, "final", "euler").probabilities
    assert found is not None
    return found


def test_a_process_of_isolate_does_not_answer_with_new_files(folder: Path, other: Path, board: Graph) -> None:
    """The server has the classes and dimensions of the old bundle until it loads the model again."""
    settings = Settings(
        port=0, grpc_port=None, limits=Limits(concurrent=1), isolate=True, drain_seconds=0, model_control=True
    )
    expected = probabilities(other, board)
    with running([f"board={folder}"], settings) as found:
        replace_files(folder, other)
        refused = found.infer(tensors(board), parameters=SHORT)
        assert (refused.status_code, "load the model again" in refused.text) == (503, True)
        shutil.rmtree(folder)
        assert found.infer(tensors(board), parameters=SHORT).status_code == 503
        shutil.copytree(other, folder)
        assert found.http.post("/v2/repository/models/board/load").status_code == 200
        assert np.allclose(outputs(found.infer(tensors(board), parameters=SHORT))["probability"], expected)


def ask(found: Running, graph: Graph) -> httpx.Response:
    return found.infer(tensors(graph), parameters=SHORT)


def test_batches_of_a_loaded_model_need_no_files(folder: Path, board: Graph) -> None:
    expected = probabilities(folder, board)
    settings = Settings(port=0, grpc_port=None, limits=Limits(concurrent=1), drain_seconds=0)
    with running([f"board={folder}"], settings) as found:
        shutil.rmtree(folder)
        with ThreadPoolExecutor(6) as pool, occupied(found, 6):
            asked = [pool.submit(ask, found, board) for _ in range(6)]
        for each in asked:
            assert np.allclose(outputs(each.result())["probability"], expected, atol=1e-5)

        def shared() -> bool:
            stats = found.http.get("/v2/models/board/stats").json()["model_stats"][0]["batch_stats"]
            return any(each["batch_size"] > 1 for each in stats)

        assert eventually(shared)  # an answer is counted after it is sent


def test_new_nodes_without_the_files_are_refused_with_the_reason(folder: Path, board: Graph) -> None:
    settings = Settings(port=0, grpc_port=None, drain_seconds=0)
    with running([f"board={folder}"], settings) as found:
        assert found.http.put("/graphs/g", json={"inputs": tensors(board)}).status_code == 201
        shutil.rmtree(folder)
        inputs = [tensor("x", board.features[:1]), tensor("edge_index", np.zeros((2, 0), np.int64))]
        refused = found.http.post("/graphs/g/nodes", json={"inputs": inputs, "parameters": SHORT})
        assert (refused.status_code, "load the model again" in refused.text) == (503, True)
