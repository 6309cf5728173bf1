"""adar-deploy train: what may be given to it, and what it says of what it made up."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import adar_train.config
from adar_runtime import Graph, write_graph
from adar_runtime.graph.synthetic import FAMILIES
from adar_train import search
from adar_train.config import preset
from tests.helpers import random_graph

QUICK = ["--epochs", 1, "--hidden", 4, "--proxies", 2, "--train-steps", 1, "--json"]


@pytest.fixture
def short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = adar_train.config.preset
    monkeypatch.setattr(
        adar_train.config, "preset", lambda *a, **k: replace(preset(*a, **k), exit_budgets=(2, 4))
    )


@pytest.mark.usefixtures("short_calibration")
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


@pytest.mark.usefixtures("short_calibration")
def test_test_nodes_are_kept_from_training(adar, tmp_path: Path) -> None:
    graph = random_graph(60, 150)
    kept = np.arange(60) < 20
    write_graph(tmp_path / "g.npz", Graph(graph.features, graph.edge_index, graph.labels, test_mask=kept))
    code, out, err = adar("train", "g.npz", *QUICK)
    assert code == 0, err
    assert "30 train, 10 val, 20 test" in " ".join(err.split())
    assert "test" in json.loads(out)


@pytest.mark.usefixtures("short_calibration")
def test_several_graphs_train_one_model_that_runs_on_another(adar, tmp_path: Path) -> None:
    """Two days are trained on and one validates; the bundle names them and runs on a fourth."""
    for index, names in enumerate((("no", "yes"), ("yes", "no"), ("no", "yes"), ("no", "yes"))):
        graph = random_graph(60, 150, classes=2, seed=index)
        day = Graph(graph.features, graph.edge_index, graph.labels, class_names=names)
        write_graph(tmp_path / f"day{index + 1}.npz", day)
    days = ["day1.npz", "day2.npz", "day3.npz"]
    held_out = ["--validate-on", tmp_path / "day3.npz"]
    code, out, err = adar("train", *days, *held_out, "--out", "run", *QUICK[:-1])
    assert code == 0, err
    parts = [line.split()[:2] for line in out.splitlines()]
    assert all([name, part] in parts for name, part in zip(days, ("train", "train", "val"), strict=True))
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert [one.pop("name") for one in metrics["graphs"]] == days
    assert [list(one) for one in metrics["graphs"]] == [["train"], ["train"], ["val"]]
    code, out, err = adar("export", "run", "--out", "bundle", "--json")
    assert code == 0, err
    assert json.loads((tmp_path / "bundle" / "manifest.json").read_text())["training"]["data"] == days
    code, out, err = adar("run", "day4.npz", "--bundle", "bundle", "--json")
    assert code == 0, err
    assert json.loads(out)["nodes"] == 60


def test_a_graph_must_be_left_to_train_on(adar, tmp_path: Path) -> None:
    write_graph(tmp_path / "a.npz", random_graph(60, 150))
    code, _, err = adar("train", "a.npz", "--validate-on", "./a.npz", *QUICK)
    assert code == 2
    assert "leaves no graph to train on" in err


@pytest.mark.usefixtures("short_calibration")
def test_the_default_recipe_searches_and_prints_the_cost(
    adar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph(60, 150)
    write_graph(tmp_path / "g.npz", Graph(graph.features, graph.edge_index, graph.labels))
    command = ["train", "g.npz", "--dropout", 0.1, "--out", "run", *QUICK[:-1]]
    code, out, err = adar(*command)
    assert code == 0, err
    assert "no search of the regularisation: it needs at least 100 epochs" in " ".join(err.split())
    assert "best of" not in out
    monkeypatch.setattr(search, "FEWEST_EPOCHS", 1)
    code, out, err = adar(*command, "--overwrite")
    assert code == 0, err
    assert "no search" not in err
    # Dropout and training steps are given: weight decay and label smoothing are left to search.
    assert "best of 3, 2 more epochs in" in " ".join(out.split())
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model"]["alignment"] == "mean-inner-product"
    assert (config["model"]["dropout"], config["training"]["train_steps"]) == (0.1, 1)
    assert config["training"]["patience"] == 100


@pytest.mark.usefixtures("short_calibration")
@pytest.mark.parametrize("options", [["--baseline", "gcn"], [], ["--preset", "quick"]])
def test_described_classes_and_baselines_keep_their_recipe(adar, tmp_path: Path, options: list[str]) -> None:
    graph = random_graph(60, 150)
    described = graph if not options else Graph(graph.features, graph.edge_index, graph.labels)
    write_graph(tmp_path / "g.npz", described)
    code, _, err = adar("train", "g.npz", *options, "--out", "run", *QUICK)
    assert code == 0, err
    assert "no search" not in err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model"]["alignment"] == "cosine-margin"
    expected = preset("quick", described=not options)
    for name in ("lr", "weight_decay", "patience", "ema_decay", "step_weight", "episodes"):
        assert config["training"][name] == getattr(expected, name), name


@pytest.mark.usefixtures("short_calibration")
def test_options_without_an_effect_are_named(adar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(60, 150)
    write_graph(tmp_path / "g.npz", Graph(graph.features, graph.edge_index, graph.labels))
    monkeypatch.setattr("adar_train.config.SEARCH", {"train_steps": (1, 2), "dropout": (0.0,)})
    words = ["train", "g.npz", "--preset", "quick", "--epochs", 1]
    code, _, err = adar(*words, "--search", "--dropout", 0.4, "--resume", "--out", "grid")
    assert code == 0, err
    assert "note: no effect with --search: --dropout, --resume\n" in err
    assert json.loads((tmp_path / "grid" / "config.json").read_text())["model"]["dropout"] == 0
    code, _, err = adar(*words, "--baseline", "gcn", "--without", "relation", "--out", "gcn")
    assert code == 0, err
    assert "note: no effect with --baseline gcn: --without\n" in err
    assert "no effect" not in adar(*words, "--dropout", 0.4, "--out", "plain")[2]


@pytest.mark.usefixtures("short_calibration")
def test_other_tasks_train_with_the_default_recipe(
    adar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression, pairs of nodes and whole graphs: the search chooses among all candidates."""
    monkeypatch.setattr(search, "FEWEST_EPOCHS", 1)
    random = np.random.default_rng(0)
    graph = random_graph(40, 100)
    numbers = random.normal(size=(40, 1)).astype(np.float32)
    write_graph(tmp_path / "numbers.npz", Graph(graph.features, graph.edge_index, numbers))
    write_graph(tmp_path / "links.npz", Graph(graph.features, graph.edge_index))
    for index in range(20):
        whole = Graph(
            graph.features[:6], graph.edge_index[:, :0], labels=np.array([index % 2]), level="graph"
        )
        write_graph(tmp_path / "wholes" / f"{index}.npz", whole)
    for data, *task in (("numbers.npz",), ("links.npz", "--task", "edge"), ("wholes",)):
        code, out, err = adar("train", data, *task, "--out", "run", "--overwrite", *QUICK)
        assert code == 0, err
        assert len(json.loads(out)["search"]) == 3, data


SEARCHED = ["--epochs", 6, "--hidden", 4, "--proxies", 2, "--calibration", "none", "--out", "r", "--resume"]
OTHERS = {
    "--dropout": 0.45,
    "--weight-decay": 0.5,
    "--label-smoothing": 0.3,
    "--train-steps": 3,
    "--smoothing": 1,
    "--input-dropout": 0.7,
    "--lr": 0.5,
}


@pytest.fixture
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adar_train.search.FEWEST_EPOCHS", 1)
    monkeypatch.setattr("adar_train.search.LAST_ROUND", {False: 2, True: 2})
    monkeypatch.setattr("adar_train.job.ROUND", 1)


def stop_at(monkeypatch: pytest.MonkeyPatch, moment: str, number: int) -> pytest.MonkeyPatch:
    """Interrupt the training, or the search, at this epoch."""

    def stop(_: object, *arguments: object) -> None:
        if arguments[-1].number == number:
            raise KeyboardInterrupt

    monkeypatch.setattr(f"adar_deploy.training.Progress.{moment}", stop)
    return monkeypatch


@pytest.mark.usefixtures("short_search")
def test_a_training_after_a_search_is_resumed_with_the_same_options_only(
    adar, board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor gives the same options with --resume at every stage; others are refused by their name."""
    write_graph(tmp_path / "board.npz", board)
    command = ["train", "board.npz", *SEARCHED]
    with monkeypatch.context() as patch:
        stop_at(patch, "search", 2)
        assert adar(*command)[0] == 130
    with monkeypatch.context() as patch:
        stop_at(patch, "epoch", 4)
        assert adar(*command)[0] == 130
    before = (tmp_path / "r" / "checkpoint.safetensors").read_bytes()
    for option, value in OTHERS.items():
        code, _, err = adar(*command, option, value)
        assert (code, (tmp_path / "r" / "checkpoint.safetensors").read_bytes()) == (2, before), option
        assert f" {option[2:].replace('-', '_')}" in err.split("was made with different")[1], err
    code, _, err = adar(*command, "--no-search")
    assert code == 2
    assert "was made with different search" in err
    assert adar(*command)[0] == 0
    metrics = json.loads((tmp_path / "r" / "metrics.json").read_text())
    assert metrics["epochs"] == 6
    assert len(metrics["search"]) == 3
    assert "r is finished: nothing to resume" in adar(*command)[2]
    for other in (["--no-search"], ["--dropout", 0.45]):
        assert "contains a finished run" in adar(*command, *other)[2]


@pytest.mark.usefixtures("short_search")
def test_a_training_without_a_search_is_not_resumed_with_one(
    adar, board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_graph(tmp_path / "board.npz", board)
    command = ["train", "board.npz", *SEARCHED]
    with monkeypatch.context() as patch:
        stop_at(patch, "epoch", 4)
        assert adar(*command, "--no-search")[0] == 130
    code, _, err = adar(*command)
    assert code == 2
    assert "was made with different search" in err
    assert adar(*command, "--no-search", "--dropout", 0.2)[0] == 0, "the value that it has"
