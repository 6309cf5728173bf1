"""adar-deploy train: what may be given to it, and what it says of what it made up."""

import json
from pathlib import Path

import numpy as np

from adar_runtime import Graph, write_graph
from adar_runtime.graph.synthetic import FAMILIES
from tests.helpers import random_graph

QUICK = ["--epochs", 1, "--hidden", 4, "--proxies", 2, "--train-steps", 1, "--json"]


def test_folders_of_graphs_are_trained_on_and_evaluated(adar, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for index in range(20):
        features = np.eye(2)[(random.random(6) < (0.2 if index % 2 else 0.8)).astype(int)]
        edges = random.integers(0, 6, (2, 12))
        graph = Graph(features, edges, labels=np.array([index % 2]), level="graph")
        write_graph(tmp_path / "molecules" / f"{index:02}.npz", graph)
    (tmp_path / "molecules" / "notes.txt").write_text("no graph")
    code, out, err = adar("train", "molecules/", *QUICK)
    assert code == 0, err
    assert "drew the missing train_mask, val_mask, test_mask at random: 12 train, 4 val, 4 test" in err
    run = json.loads(out)["run"]
    assert run == "runs/molecules"
    config = json.loads((tmp_path / run / "config.json").read_text())
    assert config["data"] == [f"molecules/{index:02}.npz" for index in range(20)]
    code, out, err = adar("evaluate", run, "molecules/", "--budgets", "2", "--json")
    assert code == 0, err
    assert json.loads(out)["graph"] == "molecules"


def test_an_empty_folder_and_a_name_of_nothing(adar, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "folder contains no .npz or .pt file" in adar("train", "empty")[2]
    code, _, err = adar("train", "gg")
    assert code == 2
    assert "there is no data set 'gg'" in err
    assert "a folder of such files" in err


def test_help_names_every_generated_graph(adar) -> None:
    out = adar("train", "--help")[1]
    assert all(name in out for name in FAMILIES)


def test_test_nodes_are_kept_from_training(adar, tmp_path: Path) -> None:
    graph = random_graph(60, 150)
    kept = np.arange(60) < 20
    write_graph(tmp_path / "g.npz", Graph(graph.features, graph.edge_index, graph.labels, test_mask=kept))
    code, out, err = adar("train", "g.npz", *QUICK)
    assert code == 0, err
    assert "30 train, 10 val, 20 test" in " ".join(err.split())
    assert "test" in json.loads(out)
