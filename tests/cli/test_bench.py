"""`adar-deploy bench`: real runs of real sides, small."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from adar_deploy import benchmark, console
from adar_runtime import Graph, write_graph
from adar_runtime.benchmarking import sides
from adar_runtime.bundle.measured_solvers import usable_solvers
from adar_runtime.bundle.reading import read_manifest

QUICK = ["--max-steps", 3, "--repeats", 2, "--threads", 1]
ON_CPU = ["--backend", "onnxruntime-cpu"]  # whatever else works on this machine


def test_sides_graphs_and_a_picture(adar, bundle_folder: Path, run_folder: Path, tmp_path: Path) -> None:
    sizes = ["--nodes", "40,80", "--degree", 3, "--solver", "euler", *ON_CPU]
    code, out, err = adar(
        "bench", bundle_folder, "--run", run_folder, *sizes, *QUICK, "--plot", "speed.png", "--json"
    )
    assert (code, err) == (0, "")
    told = json.loads(out)
    rows = told["measured"]
    assert [(row["nodes"], row["edges"], row["backend"]) for row in rows] == [
        (nodes, 3 * nodes, backend) for nodes in (40, 80) for backend in ("onnxruntime-cpu", "pytorch")
    ]
    for row in rows:
        assert (row["cell_calls"], row["threads"], row["same_predictions"]) == (3, 1, 1.0)
        assert 0 < row["step_seconds"]["p50"] <= row["step_seconds"]["p99"] < row["run_seconds"]["p99"]
        assert len(row["runs"]) == 2
        assert row["peak_bytes"] > 2**20
    ours, torchs = rows[:2]
    assert torchs["times_pytorch"]["p50"] == 1.0
    ratios = np.divide(torchs["runs"], ours["runs"])
    assert ours["times_pytorch"]["p50"] == pytest.approx(np.median(ratios))
    assert torchs["peak_bytes"] > ours["peak_bytes"]  # PyTorch itself
    assert {"cores", "python", "onnxruntime", "torch"} <= set(told)
    with Image.open(tmp_path / "speed.png") as picture:
        assert np.asarray(picture.convert("L")).std() > 5


def test_sizes_of_generated_graphs_beside_a_graph_are_noted(
    adar, bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "board.npz", board)
    solver = ["--solver", "euler", "--nodes", 40]
    code, out, _ = adar("bench", bundle_folder, "board.npz", *QUICK, *ON_CPU, *solver)
    assert code == 0
    assert "note: no effect with a graph: --nodes" in out


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_whole_table_fits_the_window(
    adar, bundle_folder: Path, board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(console.out, "_width", width)
    write_graph(tmp_path / "board.npz", board)
    solvers = ["--solver", "euler", "--solver", "ab2"]
    code, out, _ = adar("bench", bundle_folder, "board.npz", *QUICK, *ON_CPU, *solvers)
    assert code == 0
    lines = [line for line in out.splitlines() if not line.startswith("note:")]
    assert max(map(len, lines)) <= width
    assert "no effect with a graph" not in out
    assert "board.npz: 144 nodes" in out
    assert "onnxruntime-cpu ab2 fp32, 1 thread" in out
    assert "no comparison with PyTorch: the run 'board' (weights " in out
    words = out.split()
    assert [words.count(word) for word in ("p50", "p90", "p99", "MB")] == [2, 2, 1, 1]
    assert {"speed-up", "over", "same", "predictions"} <= set(words)  # a heading may be wrapped
    assert out.count("100.00 %") == 2


def test_a_side_that_does_not_work_is_named_and_the_others_are_measured(adar, bundle_folder: Path) -> None:
    one = ["--nodes", 30, "--degree", 2, "--solver", "euler"]
    backends = ["--backend", "onnxruntime-cpu", "--backend", "onnxruntime-cuda"]
    code, out, _ = adar("bench", bundle_folder, *one, *QUICK, *backends, "--json")
    assert code == 0
    good, bad = json.loads(out)["measured"]
    assert good["run_seconds"]["p50"] > 0
    assert "problem" in bad or bad["backend"] == "onnxruntime-cuda"


@pytest.mark.parametrize(("replaced", "removed"), [("mine", False), ("run", False), ("run", True)])
def test_a_model_that_is_replaced_meanwhile_is_refused(
    adar,
    bundle_folder: Path,
    run_folder: Path,
    described_bundle: Path,
    described_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    replaced: str,
    *,
    removed: bool,
) -> None:
    shutil.copytree(bundle_folder, tmp_path / "mine")
    shutil.copytree(run_folder, tmp_path / "run")

    def replacing(*_: object) -> list[sides.Timing]:
        shutil.rmtree(tmp_path / replaced)
        if not removed:
            shutil.copytree(described_bundle if replaced == "mine" else described_run, tmp_path / replaced)
        return []

    monkeypatch.setattr(sides, "measure", replacing)
    code, _, err = adar("bench", "mine", "--run", "run", "--nodes", 30, "--degree", 2, *QUICK, *ON_CPU)
    assert code == 2
    assert f"{replaced} was replaced while it was measured: run the command again" in err


def test_without_a_bundle_one_is_made(tmp_path: Path) -> None:
    bundle, run = benchmark.make_bundle(tmp_path)
    manifest = read_manifest(bundle)
    assert (manifest.hidden, manifest.proxies) == (64, 32)
    assert "euler" in usable_solvers(manifest)
    found = benchmark.bundles_by_precision(bundle, "fp32", ["fp32", "int8"], run, tmp_path / "others")
    assert {name: read_manifest(path).precision for name, path in found.items()} == {
        "fp32": "fp32",
        "int8": "int8",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "adar-deploy export"),
        (["BUNDLE", "none.npz"], "no such file"),
        (["BUNDLE", "--nodes", "x"], "integers separated by commas"),
        (["BUNDLE", "--threads", "0"], "at least 1"),
        (["BUNDLE", "--nodes", "99999999999"], "99,999,999,999 nodes would take"),
        (["BUNDLE", "--plot", "p.bmp"], ".png or .svg"),
        (["BUNDLE", "--precision", "fp16"], "name its run with --run"),
        (["BUNDLE", "--run", "nowhere"], "is not a training run"),
    ],
)
def test_bad_input_is_one_clear_line(adar, bundle_folder: Path, words: list[str], message: str) -> None:
    code, _, err = adar("bench", *(bundle_folder if word == "BUNDLE" else word for word in words))
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
