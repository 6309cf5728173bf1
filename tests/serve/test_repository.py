"""Models come and go while the server runs: index, load, unload, SIGHUP, and statistics."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from adar_runtime import Graph
from adar_serve.grpc_extensions import MESSAGES
from tests.serve.servers import Running, Settings, eventually, outputs, running, tensors

SHORT = {"max_steps": 4, "exit": "final", "solver": "euler"}


@pytest.fixture
def bundle(bundle_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(bundle_folder, tmp_path / "bundle")


@pytest.fixture
def changing(bundle: Path, bundle_folder: Path) -> Iterator[Running]:
    settings = Settings(port=0, grpc_port=0, drain_seconds=0, model_control=True)
    with running([f"board={bundle}", f"board:2={bundle_folder}"], settings) as found:
        yield found


def call(found: Running, name: str, /, **fields: Any) -> Any:
    """A gRPC call of the repository."""
    with grpc.insecure_channel(found.addresses["grpc"]) as channel:
        method = channel.unary_unary(
            f"/inference.GRPCInferenceService/{name}",
            request_serializer=MESSAGES[f"{name}Request"].SerializeToString,
            response_deserializer=MESSAGES[f"{name}Response"].FromString,
        )
        return method(MESSAGES[f"{name}Request"](**fields), timeout=30)


def states(found: Running, body: dict | None = None) -> dict[str, str]:
    listed = found.http.post("/v2/repository/index", json=body).json()
    return {each["version"]: each["state"] for each in listed}


def change(found: Running, action: str, model: str = "board") -> httpx.Response:
    return found.http.post(f"/v2/repository/models/{model}/{action}")


def test_the_index_refuses_a_wrong_type(changing: Running) -> None:
    answer = changing.http.post("/v2/repository/index", json={"ready": 1})
    assert (answer.status_code, answer.json()["error"]) == (400, "ready must be true or false")


def test_a_model_is_unloaded_and_loaded_again(changing: Running, board: Graph) -> None:
    before = outputs(changing.infer(tensors(board), parameters=SHORT))
    assert changing.http.put("/graphs/g?model=board", json={"inputs": tensors(board)}).status_code == 201
    assert change(changing, "unload").status_code == 200
    assert states(changing) == {"1": "UNAVAILABLE", "2": "UNAVAILABLE"}
    assert states(changing, {"ready": True}) == {}
    assert changing.infer(tensors(board)).json() == {"error": "the model board is not loaded"}
    assert changing.http.get("/graphs").json() == {"graphs": []}
    assert change(changing, "load").status_code == 200
    assert states(changing) == {"1": "READY", "2": "READY"}
    after = outputs(changing.infer(tensors(board), parameters=SHORT))
    assert after["probability"].tolist() == before["probability"].tolist()
    assert change(changing, "load", "other").status_code == 404
    assert call(changing, "RepositoryIndex", ready=True).models[1].version == "2"
    call(changing, "RepositoryModelUnload", model_name="board")
    assert [each.state for each in call(changing, "RepositoryIndex").models] == ["UNAVAILABLE"] * 2
    call(changing, "RepositoryModelLoad", model_name="board")
    assert states(changing) == {"1": "READY", "2": "READY"}


def test_a_bundle_that_cannot_be_loaded_changes_nothing(
    changing: Running, bundle: Path, board: Graph
) -> None:
    model = changing.service.models.find("board", "1")
    (bundle / "cell.onnx").write_bytes((bundle / "cell.onnx").read_bytes()[:-1])
    refused = change(changing, "load")
    assert refused.status_code == 500
    assert refused.json()["error"].startswith("the model board was not changed")
    assert str(bundle) not in refused.text
    assert "cell.onnx" in changing.log("reload failed")[0]["reason"]
    assert changing.service.models.find("board", "1") is model
    assert changing.infer(tensors(board), parameters=SHORT).status_code == 200


def test_only_a_server_with_model_control_changes_its_models(served: Running) -> None:
    for action in ("load", "unload"):
        assert change(served, action).status_code == 403
    with pytest.raises(grpc.RpcError) as refused:
        call(served, "RepositoryModelUnload", model_name="board")
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_statistics_count_answers_and_failures(changing: Running, board: Graph) -> None:
    for _ in range(2):
        assert changing.infer(tensors(board), parameters=SHORT).status_code == 200
    assert changing.infer([]).status_code == 400
    (found,) = changing.http.get("/v2/models/board/versions/2/stats").json()["model_stats"]
    assert (found["inference_count"], found["execution_count"]) == (2, 2)
    durations = found["inference_stats"]
    assert (durations["success"]["count"], durations["fail"]["count"]) == (2, 1)
    assert 0 < durations["compute_infer"]["ns"] < durations["success"]["ns"]
    assert [each["batch_size"] for each in found["batch_stats"]] == [1]
    assert len(changing.http.get("/v2/models/stats").json()["model_stats"]) == 2
    assert changing.http.get("/v2/models/other/stats").status_code == 404
    over_grpc = call(changing, "ModelStatistics", name="board", version="2").model_stats[0]
    assert over_grpc.inference_count == 2
    assert over_grpc.inference_stats.success.ns == durations["success"]["ns"]
    assert over_grpc.batch_stats[0].compute_infer.count == 2


def test_sighup_loads_the_bundles_again(bundle: Path) -> None:
    words = ["serve", str(bundle), "--port", "0", "--no-grpc", "--drain-seconds", "0", "--json"]
    paths = os.pathsep.join(each for each in sys.path if each)
    with subprocess.Popen(
        [sys.executable, "-m", "adar_deploy", *words], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        assert eventually(lambda: '"reloaded"' in process.stderr.readline())
        process.terminate()
        assert process.wait(30) == 0
