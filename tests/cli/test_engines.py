"""Engines on the command line: which commands load one that somebody else built, and what does not fit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorrt_rtx", reason="needs adar-deploy[rtx]")
pytest.importorskip("cuda.bindings", reason="needs adar-deploy[rtx]")

from adar_runtime import write_graph
from adar_runtime.backends.tensorrt.engines.options import BuildOptions
from adar_runtime.backends.tensorrt.engines.profiles import Profile
from adar_runtime.benchmarking import sides as bench
from adar_runtime.errors import BackendError
from tests.helpers import random_graph
from tests.runtime.simulated_gpu import simulate_gpu, with_engines

OPTIONS = BuildOptions(package="rtx", profiles=(Profile.parse("n=1:20:40,m=1:60:100"),), level=0)


@pytest.fixture(scope="module")
def built(described_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_engines(described_bundle, tmp_path_factory.mktemp("engines") / "bundle", OPTIONS)


@pytest.fixture
def foreign(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle with engines that fit, built by somebody else, on a machine with a GPU; and a graph.npz."""
    simulate_gpu(monkeypatch, built)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of somebody else"))
    write_graph(tmp_path / "graph.npz", random_graph(20, 60))
    return built


class WorkerHere:
    """A side's turns in this process, where the GPU is simulated."""

    def __init__(self, build: Any, *args: Any) -> None:
        self._build, self._args = build, args

    def turn(self, *args: Any) -> Any:
        return self._build(*self._args)(*args)

    def end(self) -> None: ...


def measured(adar, monkeypatch: pytest.MonkeyPatch, *words: object) -> dict[str, Any]:
    monkeypatch.setattr(bench, "Worker", WorkerHere)
    quick = ["--max-steps", 2, "--repeats", 1, "--threads", 1, "--solver", "euler", "--json"]
    code, out, err = adar("bench", *words, *quick)
    assert (code, err) == (0, "")
    return {row["backend"]: row for row in json.loads(out)["measured"]}


def test_bench_loads_it_only_by_name(adar, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(adar, monkeypatch, foreign, "graph.npz")
    assert "it was not built here and is a program" in found["tensorrt"]["problem"]
    assert found["onnxruntime-cpu"]["run_seconds"]["p50"] > 0
    found = measured(adar, monkeypatch, foreign, "graph.npz", "--backend", "tensorrt")
    assert found["tensorrt"]["run_seconds"]["p50"] > 0
    assert found["tensorrt"]["captured"] is True


def test_bench_does_not_take_a_file_s_word(
    adar, foreign: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "adar.toml").write_text("[bench]\nbackend = ['tensorrt']")
    found = measured(adar, monkeypatch, foreign, "graph.npz")
    assert "it was not built here" in found["tensorrt"]["problem"]


def test_validate_passes_it_over(adar, foreign: Path, described_run: Path, tmp_path: Path) -> None:
    shutil.copytree(described_run, tmp_path / "runs" / "mine")
    code, out, _ = adar("validate", foreign, "graph.npz", "--steps", "1", "--json")
    assert code == 0
    checked = {check["backend"] for report in json.loads(out) for check in report["checks"]}
    assert "onnxruntime-cpu" in checked
    assert "tensorrt" not in checked


def test_validate_goes_on_where_a_graph_is_outside_every_profile(
    adar, built: Path, described_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_gpu(monkeypatch, built)
    shutil.copytree(described_run, tmp_path / "runs" / "mine")
    write_graph(tmp_path / "large.npz", random_graph(90, 200))
    asked = ("validate", built, "large.npz", "--steps", "1")
    code, out, _ = adar(*asked, "--json")
    assert code == 0
    problems = {one["backend"]: one["problem"] for one in json.loads(out) if "problem" in one}
    assert "outside every profile" in problems["tensorrt"]
    assert any(check["backend"] == "onnxruntime-cpu" for one in json.loads(out) for check in one["checks"])
    code, out, _ = adar(*asked)
    assert code == 0
    assert "tensorrt was not compared: the graph does not fit the TensorRT engines" in out


@pytest.mark.parametrize("name", ["adar.toml", "pyproject.toml"])
def test_run_does_not_take_a_file_s_word(adar, foreign: Path, tmp_path: Path, name: str) -> None:
    table = "run" if name == "adar.toml" else "tool.adar.run"
    (tmp_path / name).write_text(f"[{table}]\nbackend = 'tensorrt'")
    code, _, err = adar("run", "graph.npz", "--bundle", foreign, "--max-steps", 2)
    assert code == 2
    assert "it was not built here and is a program: type --backend tensorrt to trust it" in err
    assert len(err.strip().splitlines()) == 1


def test_run_takes_the_user_s(adar, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = simulate_gpu(monkeypatch, foreign)
    asked = ("run", "graph.npz", "--bundle", foreign, "--max-steps", 2, "--json")
    assert json.loads(adar(*asked)[1])["backend"] != "tensorrt"
    found = json.loads(adar(*asked, "--backend", "tensorrt")[1])
    assert (found["backend"], found["captured"]) == ("tensorrt", True)
    device.fail.add("capture")
    found = json.loads(adar(*asked, "--backend", "tensorrt")[1])
    assert (found["captured"], found["not_captured"][:13]) == (False, "TensorRT says")
    assert "captured no: TensorRT says" in " ".join(adar(*asked[:-1], "--backend", "tensorrt")[1].split())
    monkeypatch.setenv("ADAR_RUN_BACKEND", "tensorrt")
    assert json.loads(adar(*asked)[1])["backend"] == "tensorrt"


def test_steps_that_are_run_as_a_block_are_told_by_their_mean(foreign: Path, tmp_path: Path) -> None:
    """The first of a block would seem to take all of its time, and the others none."""
    side = bench.Side(bench.runtime_turn, foreign, "tensorrt", "euler", 1, "fp32", trusted=True)
    seconds, answer = side.build(side, 20)(tmp_path / "graph.npz")
    assert len(answer["steps"]) == 20
    assert len(set(answer["steps"])) == 1
    assert 0 < sum(answer["steps"]) < seconds


def test_what_a_side_is_not_told_to_trust_is_not_loaded(foreign: Path) -> None:
    side = bench.Side(bench.runtime_turn, foreign, "tensorrt", "euler", 1, "fp32")
    with pytest.raises(BackendError, match="it was not built here"):
        side.build(side, 2)
