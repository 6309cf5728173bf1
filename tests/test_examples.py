"""Every example runs as it stands, and says what it promises."""

import importlib.util
import json
import runpy
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from adar_deploy.cli import COMMANDS
from adar_runtime import Final, Graph, load, write_graph
from adar_runtime.graph.neighbours import Neighbours
from tests.helpers import random_graph
from tests.texts import tiny_model

EXAMPLES = Path(__file__).parents[1] / "examples"
TESTED = {"drive_the_loop", "plain_onnxruntime", "serve", "transductive", "zero_shot_from_text"}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run an example as `python examples/NAME.py …` does: what it prints."""

    def go(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return go


def test_every_example_has_a_test() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"({name}.py)" in listed for name in TESTED)


def test_the_notebook_of_the_selftest_uses_commands_and_extras_that_exist() -> None:
    """It needs a GPU, so its commands are checked, not run."""
    notebook = json.loads((EXAMPLES / "selftest_colab.ipynb").read_text())
    lines = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    commands = {command.__name__: command for group in COMMANDS.values() for command in group}
    named = [line.split()[1] for line in lines if line.startswith("!adar-deploy")]
    assert named == ["doctor", "selftest"]
    assert set(named) <= set(commands)
    project = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text())["project"]
    extras = next(line for line in lines if "pip install" in line).partition("[")[2].partition("]")[0]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert not any(cell.get("outputs") for cell in notebook["cells"])
    assert "(selftest_colab.ipynb)" in (EXAMPLES / "README.md").read_text()


def test_transductive(run, tmp_path: Path) -> None:
    said = run("transductive", "--side", 12, "--epochs", 3, "--out", tmp_path)
    assert [line.split(":")[0] for line in said.splitlines()] == ["budget   8", "budget  50", "budget 300"]
    assert (tmp_path / "bundle" / "manifest.json").is_file()


def test_zero_shot_from_text(run, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model", words=_words())
    said = run("zero_shot_from_text", "--model", model, "--epochs", 2, "--out", tmp_path / "out")
    right, alone = (float(part.split("%")[0].split()[-1]) for part in said.split(",")[:2])
    assert right > alone > 40  # the neighbours help, and no label was looked at


def _words() -> list[str]:
    example = runpy.run_path(str(EXAMPLES / "zero_shot_from_text.py"))
    return " ".join(
        t for topics in ("TRAINING_CLASSES", "NEW_CLASSES") for t in example[topics].values()
    ).split()


def test_the_loop_is_driven(run, bundle_folder: Path, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.npz", board)
    said = run("drive_the_loop", bundle_folder, tmp_path / "graph.npz")
    assert "the caller stopped the loop" in said
    assert "at t = 1 after" in said


def test_plain_onnxruntime_gives_the_same_answer(
    bundle_folder: Path, board: Graph, tmp_path: Path, run
) -> None:
    function = runpy.run_path(str(EXAMPLES / "plain_onnxruntime.py"))["run_bundle"]
    neighbours = Neighbours.of(board.edge_index, board.nodes)
    edges = np.stack([neighbours.sources, neighbours.targets])
    expected = load(bundle_folder, "onnxruntime-cpu").run(board, 20, Final()).scores
    assert np.allclose(function(bundle_folder, board.features, edges, 20), expected, rtol=1e-4, atol=1e-5)
    write_graph(tmp_path / "graph.npz", board)
    counts = run("plain_onnxruntime", bundle_folder, tmp_path / "graph.npz", 20)
    assert counts.strip() == str(np.bincount(expected.argmax(axis=1)))


def test_the_service(
    bundle_folder: Path, board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAR_BUNDLE", str(bundle_folder))
    spec = importlib.util.spec_from_file_location("serve", EXAMPLES / "serve.py")
    served = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(served)
    write_graph(tmp_path / "graph.npz", board)
    write_graph(tmp_path / "narrow.npz", random_graph(5, 5, features=2))
    with TestClient(served.app) as client:
        assert client.get("/health").json() == {"backend": "onnxruntime-cpu", "predicts": "node"}
        answer = client.post("/predict?budget=20", content=(tmp_path / "graph.npz").read_bytes())
        expected = load(bundle_folder).run(board, 20)
        assert answer.status_code == 200
        assert answer.json()["predictions"] == expected.predictions.tolist()
        narrow = client.post("/predict", content=(tmp_path / "narrow.npz").read_bytes())
        assert (narrow.status_code, "2 features" in narrow.json()["detail"]) == (422, True)
        for content, status in ((b"no graph", 422), (b"x" * (served.MAX_UPLOAD + 1), 413)):
            assert client.post("/predict", content=content).status_code == status
        assert client.post("/predict?budget=100000", content=b"").status_code == 422
