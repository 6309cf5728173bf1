"""A model repository in the real Triton server, which is in the wheel nvidia-pytriton and needs no GPU."""

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

import adar_runtime
import adar_serve
from adar_runtime import Graph, load
from adar_serve.models import named
from adar_serve.triton_repository import write_triton_model
from tests.helpers import random_graph
from tests.serve.servers import eventually, outputs, tensor, tensors

ROOT = Path(__file__).parents[2]
TRITON = next(iter(ROOT.glob("build/triton/lib/python3*/site-packages/pytriton/tritonserver")), None)
STUB = "triton_python_backend_stub"
PARAMETERS = {"max_steps": 12, "solver": "euler"}

pytestmark = pytest.mark.skipif(TRITON is None, reason="Triton is not installed: make triton")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/v2/health/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def triton(
    bundle_folder: Path, described_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("triton")
    for bundle in (f"board={bundle_folder}", f"board:2={bundle_folder}", f"described={described_bundle}"):
        write_triton_model(named(bundle), folder / "models")
    assert TRITON is not None
    # Triton starts the stub in the folder of the backend. Each version of Python has its own.
    backend = shutil.copytree(TRITON / "backends/python", folder / "backends/python")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy2(TRITON / "python_backend_stubs" / version / STUB, backend / STUB)
    # Its interpreter ignores PYTHONPATH, and looks into the working folder first.
    for package in (adar_runtime, adar_serve):
        (folder / package.__name__).symlink_to(Path(package.__file__).parent)
    libraries = TRITON.parents[1].glob("nvidia_pytriton.libs")
    port, log = free_port(), (folder / "log").open("wb")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": os.pathsep.join([sysconfig.get_config_var("LIBDIR"), *map(str, libraries)]),
    }
    options = [
        f"--model-repository={folder / 'models'}", f"--backend-directory={folder / 'backends'}",
        f"--http-port={port}", "--http-address=127.0.0.1", "--allow-grpc=0", "--allow-metrics=0",
    ]  # fmt: skip
    process = subprocess.Popen(
        [TRITON / "bin/tritonserver", *options], stdout=log, stderr=log, env=environment, cwd=folder
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            started = eventually(lambda: is_ready(client) or process.poll() is not None, 180)
            assert started, (folder / "log").read_text()
            assert process.poll() is None, (folder / "log").read_text()
            yield client
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def infer(client: httpx.Client, inputs: list[dict], model: str = "board") -> httpx.Response:
    return client.post(f"/v2/models/{model}/infer", json={"inputs": inputs, "parameters": PARAMETERS})


def check(found: dict[str, np.ndarray], bundle: Path, graph: Graph) -> None:
    expected = load(bundle, "onnxruntime-cpu", 1).run(graph, 12, solver="euler")
    np.testing.assert_array_equal(found["prediction"], expected.predictions)
    np.testing.assert_allclose(found["probability"], expected.probabilities, atol=1e-6)
    np.testing.assert_allclose(found["alignment"], expected.alignment, rtol=1e-6)
    assert found["best_step"].tolist() == [expected.best_step]


def test_answers_are_those_of_the_bundle(
    triton: httpx.Client, bundle_folder: Path, described_bundle: Path, board: Graph
) -> None:
    check(outputs(infer(triton, tensors(board))), bundle_folder, board)
    some = infer(triton, [*tensors(board), tensor("nodes", np.array([5, 3]))])
    expected = load(bundle_folder, "onnxruntime-cpu", 1).run(board, 12, solver="euler").predictions
    assert outputs(some)["prediction"].tolist() == expected[[5, 3]].tolist()
    described = random_graph(30, 90, seed=5)
    check(outputs(infer(triton, tensors(described), "described")), described_bundle, described)
    assert triton.get("/v2/models/board/versions/2/ready").status_code == 200


def test_a_graph_without_edges(triton: httpx.Client, bundle_folder: Path, board: Graph) -> None:
    alone = Graph(board.features, np.zeros((2, 0), np.int64))
    check(outputs(infer(triton, tensors(alone))), bundle_folder, alone)


def test_a_large_graph_as_bytes(triton: httpx.Client, bundle_folder: Path, board: Graph) -> None:
    chance = np.random.default_rng(0)
    nodes, edges = 20_000, 200_000
    x = np.ascontiguousarray(board.features[chance.integers(0, board.nodes, nodes)], np.float32)
    edge_index = chance.integers(0, nodes, (2, edges))
    listed = [tensor("x", x[:0]), tensor("edge_index", edge_index[:, :0])]
    content = [x.tobytes(), edge_index.tobytes()]
    for each, array, data in zip(listed, (x, edge_index), content, strict=True):
        del each["data"]
        each |= {"shape": list(array.shape), "parameters": {"binary_data_size": len(data)}}
    header = json.dumps({"inputs": listed, "parameters": PARAMETERS}).encode()
    response = triton.post(
        "/v2/models/board/infer",
        content=b"".join([header, *content]),
        headers={"Inference-Header-Content-Length": str(len(header))},
    )
    check(outputs(response), bundle_folder, Graph(x, edge_index))


def test_errors_say_what_to_change(triton: httpx.Client, board: Graph) -> None:
    x, _ = tensors(board)
    wrong = infer(triton, [x, tensor("edge_index", np.full((2, 1), board.nodes))])
    assert wrong.status_code >= 400
    assert f"valid ids are 0–{board.nodes - 1}" in wrong.json()["error"]
    unknown = triton.post(
        "/v2/models/board/infer", json={"inputs": tensors(board), "parameters": {"steps": 3}}
    )
    assert "the parameters are max_steps, exit, solver" in unknown.json()["error"]
    assert infer(triton, tensors(board)).status_code == 200
