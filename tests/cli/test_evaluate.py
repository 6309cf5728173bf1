"""adar-deploy evaluate, on a run and on a bundle."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from adar_export import export_bundle
from adar_runtime import Graph, write_graph
from adar_runtime.evaluation.metrics import split_metrics
from adar_train import Fitted, GraphTensors, ModelConfig, TrainConfig, fit, load_run, save_run
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


def test_a_run_whose_scores_are_not_finite_has_no_metric(
    adar, run_folder: Path, board: Graph, tmp_path: Path
) -> None:
    run = load_run(run_folder)
    with torch.no_grad():
        run.model.cell.velocity.out.weight.mul_(1e37)
    save_run(tmp_path / "wild", Fitted(run.model, run.metrics, []), run.graph(), ["random"], TrainConfig())
    write_graph(tmp_path / "board.npz", board)
    code, out, err = adar("evaluate", "wild", "board.npz", "--budgets", "8")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: the scores of wild at t = [\d.]+ are not finite: .*\n", err)


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


def test_pictures_of_two_graphs_are_two_files(adar, described_bundle: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_graph(tmp_path / name / "g.npz", random_graph(30, 60, seed=ord(name)))
    command = ["evaluate", described_bundle, "a/g.npz", "b/g.npz", "--budgets", "2"]
    code, _, err = adar(*command, "--plot", "curve.png")
    assert code == 2
    assert err == "error: two graphs would be drawn in curve-g.png: give their files different names\n"
    assert not (tmp_path / "curve-g.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "g.npz"], "is not a training run"),
        (["MODEL", "g.npz", "--budgets", "8,x"], "integers separated by commas"),
        (["MODEL", "g.npz", "--budgets", "0"], "at least 1"),
        (["MODEL", "g.npz", "--output", "t.txt"], ".csv or .json"),
        (["MODEL", "bare.npz"], "no labels to score"),
        (["MODEL", "g.npz", "--plot", "p.txt"], ".png or .svg"),
        (["MODEL", "narrow.npz"], "4 features and the model takes 6"),
        (["MODEL", "links.npz"], "do not fit the model"),
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


@pytest.mark.parametrize("name", ["gcn", "n2", "fagcn", "gprgnn", "h2gcn", "gps"])
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
    assert "only AdaR can be exported" in err


def test_graphs_labelled_as_wholes_are_scored_together(adar, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for index in range(18):
        features = np.eye(2)[(random.random(10) < 0.2 + 0.6 * (index % 2)).astype(int)]
        graph = Graph(features, random.integers(0, 10, (2, 20)), labels=np.array([index % 2]), level="graph")
        write_graph(tmp_path / f"{index:02}.npz", graph)
    files = [f"{index:02}.npz" for index in range(12)]
    code, _, err = adar(
        "train", *files, "--epochs", 5, "--hidden", 8, "--train-steps", 2, "--out", "run", "--seed", 1
    )
    assert code == 0, err
    new = [f"{index:02}.npz" for index in range(12, 18)]
    code, out, err = adar("evaluate", "run", *new, "--budgets", "2", "--json")
    assert code == 0, err
    assert (json.loads(out)["metric"], json.loads(out)["counted"]) == ("roc_auc", "all 6 labels")


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
        (["board.npz", "--preset", "quick", "--without", "step-loss"], "has no step-loss"),
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


@pytest.fixture(scope="module")
def fruit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and a bundle that know three named classes, and graphs of these and of others."""
    folder = tmp_path_factory.mktemp("fruit")
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 90)
    names = ("apple", "berry", "cherry")
    features = 3 * np.eye(6)[labels] + random.normal(size=(90, 6))
    whole = Graph(features, random.integers(0, 90, (2, 200)), labels=labels, class_names=names)
    training = TrainConfig(epochs=40, train_steps=3, select_budgets=(3,), exit_budgets=(3,))
    fitted = fit([with_split(whole)], ModelConfig(6, 3, hidden=16, proxies=4), training)
    save_run(folder / "run", fitted, with_split(whole), ["fruit"], training)
    export_bundle(load_run(folder / "run"), folder / "bundle", steps=(1,))
    without_apples = np.where(labels == 0, -1, labels)
    graphs = {
        "same": replace(whole, labels=without_apples),
        "shifted": replace(whole, labels=without_apples - (without_apples > 0), class_names=names[1:]),
        "new": replace(whole, features=features + 0.01, class_names=None),
        "other": replace(whole, class_names=("apple", "berry", "durian")),
        "beyond": replace(whole, labels=np.where(labels == 2, 4, labels), class_names=None),
        "pair": replace(whole, labels=np.minimum(labels, 1), class_names=None),
    }
    for name, graph in graphs.items():
        write_graph(folder / f"{name}.npz", graph)
    return folder


@pytest.mark.parametrize("model", ["run", "bundle"])
def test_labels_are_compared_by_the_names_of_their_classes(adar, fruit: Path, model: str) -> None:
    scores = []
    for name in ("same", "shifted"):
        code, out, err = adar("evaluate", fruit / model, fruit / f"{name}.npz", "--budgets", 3, "--json")
        assert (code, err) == (0, "")
        scores.append(json.loads(out)["budgets"])
    assert scores[0] == scores[1]
    assert scores[0][0]["at_exit"] > 0.6


def test_a_report_compares_them_by_name_too(adar, fruit: Path) -> None:
    facts = [
        json.loads(adar("report", fruit / "bundle", fruit / f"{name}.npz", "--budgets", 3, "--json")[1])
        for name in ("same", "shifted")
    ]
    assert facts[0]["answers"] == facts[1]["answers"]
    assert facts[0]["answers"]["classes"] == ["apple", "berry", "cherry"]


@pytest.mark.parametrize("command", ["evaluate", "report"])
@pytest.mark.parametrize(
    ("graph", "message"), [("other", "labels durian, but"), ("beyond", "labels up to 4, but")]
)
def test_a_label_of_no_class_of_the_model_is_one_clear_line(
    adar, fruit: Path, command: str, graph: str, message: str
) -> None:
    code, out, err = adar(command, fruit / "bundle", fruit / f"{graph}.npz", "--budgets", 3)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_run_is_answered_and_says_why_it_is_not_scored(adar, fruit: Path) -> None:
    options = ["--bundle", fruit / "bundle", "--max-steps", 3, "--json"]
    code, out, err = adar("run", fruit / "other.npz", *options)
    assert (code, err, json.loads(out)["metrics"]) == (0, "", {})
    assert "labels durian" in json.loads(out)["unscored"]
    for words in ([fruit / "beyond.npz"], [fruit / "beyond.npz", fruit / "same.npz"]):
        code, out, _ = adar("run", *words, *options[:-1])
        assert code == 0
        assert "not scored: the graph has labels up to 4" in " ".join(out.split())


def test_a_run_scores_all_labels_where_there_are_no_masks(adar, fruit: Path) -> None:
    graph, options = fruit / "new.npz", ["--bundle", fruit / "bundle", "--max-steps", 3]
    evaluated = json.loads(adar("evaluate", fruit / "bundle", graph, "--budgets", 3, "--json")[1])
    metrics = json.loads(adar("run", graph, *options, "--json")[1])["metrics"]
    assert metrics["all"] == evaluated["budgets"][0]["at_exit"]
    assert metrics["intervals"]["all"]["interval"] == evaluated["budgets"][0]["interval"]
    shown = adar("run", graph, *options)
    assert "accuracy, all labels" in shown[1], shown
    rows = re.findall(r"all ([\d.]+) % \[", adar("run", graph, graph, *options)[1])
    assert [float(row) for row in rows] == pytest.approx([100 * metrics["all"]] * 2, abs=0.005)


def test_the_metric_is_that_of_the_models_classes(adar, fruit: Path) -> None:
    """Two of three classes in a graph are no reason to speak of ROC-AUC."""
    code, out, _ = adar("evaluate", fruit / "bundle", fruit / "pair.npz", "--budgets", 3, "--json")
    assert (code, json.loads(out)["metric"]) == (0, "accuracy")


def test_a_gate_for_a_pipeline(adar, bundle_folder: Path, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "board.npz", board)
    evaluate = ("evaluate", bundle_folder, "board.npz", "--budgets", "3,5", "--json")
    code, out, err = adar(*evaluate, "--min-metric", 0)
    assert (code, err) == (0, "")
    reached = json.loads(out)["budgets"][-1]["at_exit"]
    assert json.loads(out)["min_metric"] == 0
    assert adar(*evaluate, "--min-metric", reached)[0] == 0
    code, out, err = adar(*evaluate, "--min-metric", 1)
    assert code == 3
    assert json.loads(out)["budgets"][-1]["at_exit"] == reached
    assert "is below --min-metric 1" in err
    code, _, err = adar(*evaluate, "--min-metric", 90)
    assert code == 2
    assert "--min-metric" in err
