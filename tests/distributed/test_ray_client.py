"""Commands on a Ray cluster that runs already and asks for a token, through its client server (ray://)."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest

from adar_runtime import Graph, load
from adar_runtime.graph.formats import write_graph
from tests.serve.servers import eventually, outputs, tensors

pytestmark = [pytest.mark.ray, pytest.mark.torture]
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}


def environment(**others: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **others}


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster in processes of its own, and the address of its client server."""
    pytest.importorskip("ray", reason="Ray is not installed (extra scale)")
    port, folder = free_port(), tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # paths of sockets are short
    command = [Path(sys.executable).parent / "ray", "start", "--head", "--block", "--num-cpus=2"]
    command += [f"--port={free_port()}", f"--ray-client-server-port={port}", f"--temp-dir={folder}"]
    command += ["--node-ip-address=127.0.0.1", "--include-dashboard=false"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment(RAY_USAGE_STATS_ENABLED="0", **TOKEN), **quiet) as head:
        try:
            assert eventually(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, 120)
            time.sleep(5)  # the server listens before it can start a process for a client
            yield f"ray://127.0.0.1:{port}"
        finally:
            head.terminate()
            head.wait(60)
            shutil.rmtree(folder, ignore_errors=True)


def command(*words: object, **others: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "adar_deploy", *map(str, words)], capture_output=True, text=True, timeout=300,
        env=environment(**others),
    )  # fmt: skip


def test_graphs_and_shards_run_on_the_cluster(
    address: str, bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_graph(tmp_path / "board.npz", board)
    expected = load(bundle_folder, "onnxruntime-cpu", 1).run(board, solver="auto").predictions.tolist()
    words = ("--bundle", bundle_folder, "--workers", address, "--output")
    many = command("run", tmp_path / "*.npz", *words, tmp_path / "many", **TOKEN)
    assert many.returncode == 0, many.stderr
    table = parquet.read_table(tmp_path / "many" / "graph=board" / "predictions.parquet")
    assert table["prediction"].to_pylist() == expected
    one = command("run", tmp_path / "board.npz", "--shards", 2, *words, tmp_path / "one", **TOKEN)
    assert one.returncode == 0, one.stderr
    rows = [parquet.read_table(path).to_pylist() for path in sorted((tmp_path / "one").glob("part-*"))]
    found = {row["output"]: row["prediction"] for part in rows for row in part}
    assert (len(rows), [found[node] for node in range(board.nodes)]) == (2, expected)


def test_the_server_runs_on_the_cluster(address: str, bundle_folder: Path, board: Graph) -> None:
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed (extra serve-ray)")
    words = ["serve", bundle_folder.name, "--ray", address, "--port", "0", "--workers", "1", "--threads", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "adar_deploy", *words, "--json"], cwd=bundle_folder.parent,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**TOKEN),
    ) as process:  # fmt: skip
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            body = {"inputs": tensors(board), "parameters": {"max_steps": 4, "exit": "final"}}
            with httpx.Client(base_url=json.loads(line)["http"], timeout=60) as http:
                answer = http.post(f"/v2/models/{bundle_folder.name}/infer", json=body)
                counted = http.get("/metrics").text
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    expected = load(bundle_folder, "onnxruntime-cpu", 1).run(board, 4, "final", "euler").probabilities
    np.testing.assert_allclose(outputs(answer)["probability"], expected, atol=1e-6)
    assert 'adar_requests_total{action="infer",protocol="http",status="200"} 1.0' in counted


@pytest.mark.parametrize("refuses", [False, True])
def test_a_cluster_that_does_not_answer_is_one_line(
    address: str, refuses: bool, bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "board.npz", board)
    given = address if refuses else f"ray://127.0.0.1:{free_port()}"
    words = ("run", tmp_path / "board.npz", "--bundle", bundle_folder, "--workers", given)
    found = command(*words, "--output", tmp_path / "out", RAY_AUTH_MODE="disabled")
    (line,) = [line for line in found.stderr.splitlines() if line.startswith("error")]
    assert (found.returncode, "Traceback" in found.stderr) == (2, False)
    assert "Ray did not connect" in line
    assert "RAY_AUTH_TOKEN" in line
