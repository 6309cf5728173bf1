"""adar-deploy evaluate, on a run and on a bundle."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from adar_runtime import Graph, write_graph
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
    code, out, err = adar("evaluate", *(described_bundle if word == "MODEL" else word for word in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_baselines_train_and_are_evaluated_like_any_model(adar, tmp_path: Path) -> None:
    write_graph(tmp_path / "g.npz", with_split(random_graph(60, 150)))
    code, *_ = adar("train", "g.npz", "--baseline", "gcn", "--epochs", 3, "--hidden", 8, "--out", "gcn")
    assert code == 0
    code, out, _ = adar("evaluate", "gcn", "g.npz", "--budgets", "1", "--json")
    assert code == 0
    assert json.loads(out)["budgets"][0]["exit_step"] == 1
    code, _, err = adar("export", "gcn")
    assert code == 2
    assert "only AdaR is exported" in err
