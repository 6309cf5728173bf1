"""The three commands as a user types them, in process; what they print and what they leave."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from adar_runtime import Graph, SparseRows, write_graph
from adar_train.data.splits import with_split
from tests.helpers import random_graph


def test_train_export_run_with_no_further_options(adar, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "board.npz", board)
    code, out, _ = adar(
        "train", "board.npz", "--epochs", 2, "--hidden", 8, "--proxies", 4, "--train-steps", 2
    )
    assert code == 0
    assert "runs/board/graph.pt" in out
    metrics = json.loads((tmp_path / "runs/board/metrics.json").read_text())
    assert metrics["epochs"] == 2
    code, out, _ = adar("export", "--opset", 17)
    assert code == 0
    assert "adar-deploy run runs/board/graph.pt" in out
    code, out, _ = adar("run", "runs/board/graph.pt", "--max-steps", 30)
    assert code == 0
    assert "step budget 30" in out
    assert "test ROC-AUC" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["board.npz", "bundle", "runs"]


def test_a_second_run_does_not_replace_the_first(adar, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "board.npz", board)
    for _ in range(2):
        code, *_ = adar(
            "train", "board.npz", "--epochs", 1, "--hidden", 4, "--proxies", 2, "--train-steps", 1
        )
        assert code == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"board", "board-2"}
    code, out, _ = adar("export", "--json")
    manifest = json.loads(out)
    assert (manifest["schema"], manifest["hidden"]) == (2, 4)
    assert manifest == json.loads((tmp_path / "bundle" / "manifest.json").read_text())


def test_run_prints_one_json_object(adar, bundle_folder: Path, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "board.npz", board)
    code, out, err = adar(
        "run", "board.npz", "--bundle", bundle_folder, "--max-steps", 12, "--exit", "final", "--json"
    )
    assert (code, err) == (0, "")
    got = json.loads(out)
    assert list(got) == [
        "graph", "nodes", "classes", "class_names", "max_steps", "steps", "cell_calls", "best_step",
        "best_time", "stop_reason", "backend", "captured", "solver", "proof", "seconds", "timings",
        "alignment", "times", "metrics", "drift",
    ]  # fmt: skip
    assert (got["nodes"], got["classes"], got["max_steps"], got["steps"], got["best_step"]) == (
        144,
        2,
        12,
        12,
        12,
    )
    assert len(got["alignment"]) == 13
    assert got["stop_reason"] == "budget"
    assert set(got["metrics"]) == {"metric", "train", "val", "test", "intervals", "training_split"}


@pytest.mark.parametrize("suffix", ["npz", "csv", "json"])
def test_predictions_are_written(adar, described_bundle: Path, tmp_path: Path, suffix: str) -> None:
    write_graph(tmp_path / "g.npz", random_graph(20, 40, classes=4))
    code, *_ = adar(
        "run", "g.npz", "--bundle", described_bundle, "--max-steps", 3, "--output", f"out/p.{suffix}"
    )
    assert code == 0
    assert (tmp_path / "out" / f"p.{suffix}").stat().st_size > 0
    if suffix == "npz":
        with np.load(tmp_path / "out" / "p.npz") as written:
            assert written["prediction"].shape == (20,)
            assert written["probability"].shape == (20, 4)


def test_patience_and_exit_are_heard(adar, described_bundle: Path, tmp_path: Path) -> None:
    write_graph(tmp_path / "g.npz", random_graph(20, 40))
    options = ["run", "g.npz", "--bundle", described_bundle, "--max-steps", 40, "--json"]
    final = json.loads(adar(*options, "--exit", "final")[1])
    peak = json.loads(adar(*options, "--exit", "peak", "--patience", 1)[1])
    assert final["steps"] == 40
    assert peak["stop_reason"] in ("peak", "rising", "no_peak")
    assert peak["alignment"] == final["alignment"][: len(peak["alignment"])]
    code, _, err = adar(*options, "--exit", "final", "--patience", 3)
    assert code == 2
    assert "patience" in err


class Bomb:
    def __reduce__(self):
        return (Path("gone-off").touch, ())


def bad_graphs(folder: Path, board: Graph) -> None:
    """Every file that the error tests name."""
    write_graph(folder / "board.npz", board)
    (folder / "graph.txt").write_text("hello")
    (folder / "text.pt").write_text("hello")
    (folder / "text.npz").write_text("hello")
    torch.save(Bomb(), folder / "bomb.pt")
    x, edges = torch.ones(3, 10), torch.tensor([[0, 1], [1, 2]])
    torch.save(Data(x=x, edge_index=edges + 5), folder / "range.pt")
    torch.save(Data(x=x * float("nan"), edge_index=edges), folder / "nan.pt")
    torch.save(Data(x=torch.ones(3, 4), edge_index=edges), folder / "narrow.pt")
    (folder / "same.npz").symlink_to("board.npz")
    for name in ("occupied", "occupied.csv", "occupied.npz"):
        (folder / name).mkdir()
    (folder / "occupied" / "thesis.tex").write_text("")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run missing.npz", "no such file"),
        ("run graph.txt", "ends in .npz or .pt"),
        ("run text.pt", "not a readable"),
        ("run text.npz", "not a readable"),
        ("run bomb.pt", "refused"),
        ("run range.pt", "valid ids are 0–2"),
        ("run nan.pt", "not a finite"),
        ("run narrow.pt", "4 features and the bundle takes 10"),
        ("run board.npz --max-steps 0", "at least 1"),
        ("run board.npz --max-steps -3", "at least 1"),
        ("run board.npz --exit peak --patience 0", "at least 1"),
        ("run board.npz --exit never", "never"),
        ("run board.npz --output p.xlsx", ".npz, .csv, .json or .parquet"),
        ("run board.npz --backend abacus", "abacus"),
        ("run board.npz --bundle nowhere", "adar-deploy export"),
        ("run board.npz --output graph.txt/p.csv", "cannot be written"),
        ("run board.npz --output occupied.csv", "is a folder"),
        ("run board.npz --output board.npz", "is the input graph"),
        ("run board.npz --output same.npz", "is the input graph"),
        ("run occupied.npz", "this folder contains no .npz or .pt file"),
        (
            "run board.npz board.npz --output p.csv",
            "several graphs need the placeholder {name}",
        ),
        (
            "run board.npz same.npz --output {nope}/{name}.csv",
            "--output contains the unknown placeholder {nope}: the only",
        ),
        ("run board.npz --plot {}.png", "--plot contains the unknown placeholder {}: the only one is {name}"),
        ("run board.npz same.npz --output {name}/same.npz --plot p.png", "in --plot"),
        (
            "run board.npz occupied/../board.npz --output {name}.csv",
            "two graphs would be written to board.csv",
        ),
        ("run same.npz board.npz --output {name}.npz", "is the input graph"),
        ("run board.npz --plot p.bmp", ".png or .svg"),
        ("run board.npz --backend onnxruntime-cuda", "onnxruntime-cpu"),
        ("run board.npz --threads 0", "--threads"),
        ("run board.npz --solver rk4", "rk4"),
        (
            "run board.npz --solver euler --calls 8",
            "--calls is a setting of the solver ab2: add --solver ab2",
        ),
        ("run board.npz --solver ab2 --calls 0", "at least 1"),
        ("run board.npz --solver adaptive --tolerance 2", "above 0 and below 1"),
        ("run board.npz --exit final --patience 3", "--patience is a setting of the stop rule peak"),
        ("train chess", "no data set"),
        ("train missing.pt", "no such file"),
        ("train nan.pt", "not a finite"),
        ("train range.pt", "valid ids are 0–2"),
        ("train board.npz --split 7", "splits 0 to 0"),
        ("train board.npz --epochs 0", "epochs"),
        ("train board.npz --lr 0", "lr"),
        ("train board.npz --out occupied", "already"),
        ("train board.npz --preset quick --epochs 1 --out graph.txt/run", "cannot be written"),
        (f"train board.npz --preset quick --epochs 1 --out {'r' * 300}", "too long"),
        (f"train board.npz --seed {2**64}", "--seed"),
        (f"train board.npz --hidden {10**8}", "--hidden"),
        (f"train board.npz --proxies {10**8}", "--proxies"),
        (f"train board.npz --train-steps {10**10}", "--train-steps"),
        ("export", "no run in runs"),
        ("export nowhere", "adar-deploy train"),
        ("export RUN --opset 16", "17 to"),
        ("export RUN --out occupied", "already"),
        ("export RUN --out graph.txt/bundle", "cannot be written"),
    ],
)
def test_bad_input_is_one_clear_line(
    adar, bundle_folder, run_folder, board, tmp_path, arguments: str, message: str
) -> None:
    bad_graphs(tmp_path, board)
    before = sorted(tmp_path.rglob("*"))
    words = [str(run_folder) if word == "RUN" else word for word in arguments.split()]
    if words[0] == "run" and "--bundle" not in words:
        words += ["--bundle", str(bundle_folder)]
    code, out, err = adar(*words)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before  # nothing written, nothing gone off


def test_help_and_version(adar) -> None:
    for arguments in (["--help"], ["-h"], ["train", "-h"], ["export", "-h"], ["run", "-h"]):
        code, out, _ = adar(*arguments)
        assert code == 0
        assert "adar-deploy" in out
    assert adar("--version")[1].startswith("adar-deploy 0.")


def test_nothing_in_a_message_can_move_the_cursor(adar, bundle_folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **{"\x1b[2J\x07evil": np.ones(1)})
    code, _, err = adar("run", "g.npz", "--bundle", bundle_folder)
    assert code == 2
    assert r"\x1b[2J\x07evil" in err
    assert err.strip().isprintable()


def test_a_name_that_is_no_unicode_is_printed_all_the_same(adar, bundle_folder, board, tmp_path) -> None:
    write_graph(tmp_path / "board.npz", board)
    code, out, _ = adar("run", "board.npz", "--bundle", bundle_folder, "--output", "o\udcff.csv")
    assert code == 0
    assert r"o\udcff.csv" in out


def test_sparse_features_train_without_a_warning(tmp_path: Path) -> None:
    """PyTorch warns of CSR tensors once a process, so it takes a new one to see."""
    x = np.eye(30, dtype=np.float32)
    graph = Graph(
        SparseRows(np.arange(31), np.arange(30), np.ones(30), x.shape),
        np.stack([np.arange(29), np.arange(1, 30)]),
        labels=np.arange(30) % 3,
    )
    write_graph(tmp_path / "g.npz", with_split(graph))
    options = ["--epochs", "1", "--hidden", "4", "--proxies", "2", "--no-search", "--json"]
    command = [sys.executable, "-m", "adar_deploy", "train", "g.npz", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
