"""NVIDIA's client, unmodified and in an environment of its own: it needs other versions of our packages."""

import json
import subprocess
from pathlib import Path

import pytest

from adar_runtime import Graph, load, write_graph
from tests.serve.servers import Running

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build/tritonclient/bin/python"


@pytest.mark.skipif(not PYTHON.exists(), reason="tritonclient is not installed: make tritonclient")
def test_tritonclient(served: Running, bundle_folder: Path, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "board.npz", board)
    script = Path(__file__).with_name("triton_client.py")
    addresses = served.addresses["http"], served.addresses["grpc"]
    done = subprocess.run(
        [PYTHON, script, *addresses, tmp_path / "board.npz"],
        capture_output=True, text=True, check=False, timeout=120, env={},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "the input edge_index is missing" in found.pop("http error")
    assert found.pop("grpc error") == "StatusCode.INVALID_ARGUMENT the input edge_index is missing"
    expected = load(bundle_folder, "onnxruntime-cpu", 1).run(board, 20).predictions.tolist()
    assert len(found) == 11
    for way, prediction in found.items():
        assert prediction == expected, way
