"""The wheel in an empty environment, with numpy and ONNX Runtime only: `run` uses the packaged model."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from adar_runtime import read_graph, write_graph
from adar_runtime.in_context.start import known_labels
from tests.in_context_graphs import block_graph

ROOT = Path(__file__).parents[1]


@pytest.mark.torture
def test_an_empty_environment_predicts_without_training(tmp_path: Path) -> None:
    def pip(python: str | Path, *words: str | Path) -> None:
        subprocess.run([python, "-m", "pip", "-q", *words], check=True, cwd=tmp_path)

    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("adar_deploy-*.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / "bin" / "python"
    pip(python, "install", "-c", ROOT / "constraints.txt", f"{wheel}[cpu]")
    write_graph(tmp_path / "graph.npz", block_graph())
    command = [python.parent / "adar-deploy", "run", "graph.npz", "--json", "-o", "found.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PATH": "/usr/bin"})
    assert done.returncode == 0, done.stderr
    assert "using the pretrained model" in done.stderr
    assert json.loads(done.stdout)["check"]["labels"] == 12
    graph, found = read_graph(tmp_path / "graph.npz"), np.load(tmp_path / "found.npz")
    hidden = known_labels(graph) < 0
    assert (found["prediction"] == graph.labels)[hidden].mean() > 0.8
    listed = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
    assert listed.returncode != 0
