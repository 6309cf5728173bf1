"""adar-deploy evaluate, on a run and on a bundle."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from adar_runtime import Graph, write_graph
from adar_runtime.metrics import split_metrics
from adar_train import GraphTensors, load_run
from adar_train.data.splits import with_split
from tests.helpers import random_graph


def test_a_run_and_its_bundle_score_alike(
    adar, run_folder: Path, bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "board.npz", board)
    scores = []
    for model in (run_folder, bundle_folder):
        code, out, err = adar("evaluate", model, "board.npz", "--budgets", "3,8", "--json")
        assert (code, err) == (0, "")
        scores.append(json.loads(out))
    one, other = scores
    assert (one["metric"], one["part"], one["free"]) == ("roc_auc", "test", {})
    assert [row["budget"] for row in one["budgets"]] == [3, 8]
    for a, b in zip(one["budgets"], other["budgets"], strict=True):
        assert a["exit_step"] == b["exit_step"]
        assert a["at_exit"] == pytest.approx(b["at_exit"], abs=1e-3)


def test_tables_pictures_and_what_is_free(adar, described_bundle: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_graph(tmp_path / f"{name}.npz", random_graph(30, 60, seed=ord(name)))
    options = ["--budgets", "2,5", "--output", "steps.csv", "--plot", "curve.png"]
    code, out, _ = adar("evaluate", described_bundle, "a.npz", "b.npz", *options)
    assert code == 0
    assert "smoothed-cosine" in out
    assert len((tmp_path / "steps.csv").read_text().splitlines()) == 1 + 2 * (3 + 6)
    for name in ("curve-a.png", "curve-b.png"):
        with Image.open(tmp_path / name) as picture:
            assert min(picture.size) > 300
            assert np.asarray(picture.convert("L")).std() > 5  # something is drawn


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "g.npz"], "holds no training run"),
        (["MODEL", "g.npz", "--budgets", "8,x"], "whole numbers"),
        (["MODEL", "g.npz", "--budgets", "0"], "at least 1"),
        (["MODEL", "g.npz", "--output", "t.txt"], ".csv or .json"),
        (["MODEL", "bare.npz"], "no labels to score"),
        (["MODEL", "g.npz", "--plot", "p.txt"], ".png or .svg"),
        (["MODEL", "narrow.npz"], "4 features and the model takes 6"),
        (["MODEL", "links.npz"], "not what the model predicts"),
        (["MODEL", "one.npz"], "all of one class"),
    ],
)
def test_bad_input_is_one_clear_line(
    adar, described_bundle: Path, tmp_path: Path, arguments, message: str
) -> None:
    graph = random_graph(9, 9)
    write_graph(tmp_path / "g.npz", graph)
    write_graph(
        tmp_path / "bare.npz", Graph(graph.features, graph.edge_index, target_features=graph.target_features)
    )
    write_graph(tmp_path / "narrow.npz", random_graph(9, 9, features=4))
    write_graph(tmp_path / "links.npz", random_graph(9, 9, level="edge"))
    two = random_graph(9, 9, classes=2)
    write_graph(tmp_path / "one.npz", replace(two, labels=np.zeros(9, np.int64)))
    code, out, err = adar("evaluate", *(described_bundle if word == "MODEL" else word for word in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["gcn", "n2"])
def test_baselines_train_and_are_evaluated_like_any_model(adar, name: str, tmp_path: Path) -> None:
    graph = with_split(random_graph(60, 150))
    write_graph(tmp_path / "g.npz", graph)
    code, *_ = adar("train", "g.npz", "--baseline", name, "--epochs", 3, "--hidden", 8, "--out", "run")
    assert code == 0
    code, out, _ = adar("evaluate", "run", "g.npz", "--budgets", "8,300", "--json")
    assert code == 0
    (row,) = json.loads(out)["budgets"]  # its depth is its own, whatever the budgets
    run, tensors = load_run(tmp_path / "run"), GraphTensors.of(graph)
    *_, last = run.model.trajectory(tensors, [0.0, 1.0])
    assert row["at_exit"] == pytest.approx(
        split_metrics(graph, run.model.scores(last, tensors).numpy())["test"]
    )
    assert run.metrics["test"] == pytest.approx(row["at_exit"])
    code, _, err = adar("export", "run")
    assert code == 2
    assert "only AdaR is exported" in err


def test_graphs_labelled_as_wholes_are_scored_together(adar, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for index in range(12):
        features = np.eye(2)[(random.random(10) < 0.2 + 0.6 * (index % 2)).astype(int)]
        graph = Graph(features, random.integers(0, 10, (2, 20)), labels=np.array([index % 2]), level="graph")
        write_graph(tmp_path / f"{index:02}.npz", graph)
    files = [f"{index:02}.npz" for index in range(12)]
    code, _, err = adar(
        "train", *files, "--epochs", 5, "--hidden", 8, "--train-steps", 2, "--out", "run", "--seed", 1
    )
    assert code == 0, err
    code, out, err = adar("evaluate", "run", *files, "--budgets", "2", "--json")
    assert code == 0, err
    assert json.loads(out)["metric"] == "roc_auc"


@pytest.mark.parametrize("ablation", ["step-info", "relation", "total-time"])
def test_ablations_train_export_and_run(adar, board: Graph, ablation: str, tmp_path: Path) -> None:
    write_graph(tmp_path / "board.npz", board)
    options = ["--epochs", 2, "--hidden", 8, "--proxies", 4, "--train-steps", 2, "--without", ablation]
    for command in (["train", "board.npz", *options], ["export"], ["run", "board.npz", "--max-steps", 5]):
        code, _, err = adar(*command)
        assert code == 0, err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["board.npz", "--without", "step-loss"], "has no step-loss"),
        (["g.npz", "--without", "relation"], "has no relation"),
        (["board.npz", "--device", "cuda"], "no CUDA device"),
    ],
)
def test_what_would_do_nothing_is_refused(
    adar, board: Graph, options: list, message: str, tmp_path: Path
) -> None:
    write_graph(tmp_path / "board.npz", board)
    write_graph(tmp_path / "g.npz", with_split(random_graph(60, 150)))
    code, _, err = adar("train", *options)
    assert code == 2
    assert message in err
