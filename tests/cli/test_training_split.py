"""Commands on the training graph score its test part, and say so."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adar_export import export_bundle
from adar_runtime import Graph, write_graph
from adar_runtime.graph import PARTS
from adar_train import ModelConfig, TrainConfig, fit, load_run, save_run
from adar_train.data.splits import split_graphs, with_split
from tests.bundles import edit
from tests.helpers import random_graph

BARE = {"train_mask": None, "val_mask": None, "test_mask": None}


def bare(seed: int = 0, level: str = "node", nodes: int = 90) -> Graph:
    """A graph with classes that the features tell, and no masks."""
    graph = random_graph(nodes, 2 * nodes, level=level, seed=seed)
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, graph.outputs)
    return replace(graph, labels=labels, target_features=None, **BARE)


def trained(folder: Path, graphs: list[Graph]) -> Path:
    config = ModelConfig(graphs[0].width, 3, 8, 2, level=graphs[0].level)
    training = TrainConfig(epochs=3, exit_budgets=(4,))
    fitted = fit(graphs, config, training)
    save_run(folder / "run", fitted, graphs[0], [f"{i}.npz" for i in range(len(graphs))], training)
    export_bundle(load_run(folder / "run"), folder / "bundle", steps=(1, 2))
    return folder / "bundle"


def test_evaluate_scores_the_split_that_the_model_was_trained_on(adar) -> None:
    """As run, report and Python do; another split contains training nodes."""
    graph = bare()
    masks = {
        name: np.concatenate([getattr(with_split(graph, seed), name) for seed in (0, 1)]) for name in BARE
    }
    masks["train_mask"][1, np.flatnonzero(masks["train_mask"][1])[:5]] = False  # the sizes differ
    graph = replace(graph, **masks)
    training = TrainConfig(epochs=1, exit_budgets=(2,), split=1)
    save_run("run", fit([graph], ModelConfig(graph.width, 3, 8, 2), training), graph, ["g"], training)
    write_graph("graph.npz", graph)
    command = ("evaluate", "run", "graph.npz", "--budgets", "2", "--json")
    assert json.loads(adar(*command)[1])["warnings"] == []
    other = json.loads(adar(*command, "--split", 0)[1])["warnings"]
    assert "the model was trained on split 1 (--split)" in other[0]
    report = json.loads(adar("report", "run", "graph.npz", "--budgets", "2", "--json")[1])
    assert report["graph"]["labelled"] == {part: int(masks[f"{part}_mask"][1].sum()) for part in PARTS}


def test_a_report_on_one_of_several_training_graphs_says_so(adar, tmp_path: Path) -> None:
    graphs = [with_split(bare(seed)) for seed in (0, 1)]
    trained(tmp_path, graphs)
    report = json.loads(adar("report", "run", "--budgets", "2", "--json")[1])
    assert "Accuracy and latency are those of the first of 2 training graphs." in report["notes"]
    write_graph(tmp_path / "graph.npz", graphs[1])
    report = json.loads(adar("report", "run", "graph.npz", "--budgets", "2", "--json")[1])
    assert not any("training graphs" in note for note in report["notes"])


@pytest.mark.parametrize("level", ["node", "edge"])
def test_the_training_graph_is_scored_on_its_test_part(adar, tmp_path: Path, level: str) -> None:
    graph = bare(level=level)
    bundle = trained(tmp_path, [with_split(graph)])
    write_graph(tmp_path / "graph.npz", graph)
    tested = json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]
    unit = {"node": "nodes", "edge": "pairs"}[level]
    for model in (bundle, tmp_path / "run"):
        found = json.loads(adar("evaluate", model, "graph.npz", "--budgets", "4", "--json")[1])
        assert (found["part"], found["training_split"], found["warnings"]) == ("test", True, [])
        assert found["counted"].endswith(f" test {unit} of the training split")
        (row,) = found["budgets"]
        assert row["at_exit"] == pytest.approx(tested)
        assert row["interval"][0] <= row["at_exit"] <= row["interval"][1]
        assert row["count"] == with_split(graph).test_mask.sum()
    assert f"test {unit} of the training split" in adar("evaluate", bundle, "graph.npz", "--budgets", "4")[1]
    run = ["run", "graph.npz", "--bundle", bundle, "--max-steps", "4"]
    metrics = json.loads(adar(*run, "--json")[1])["metrics"]
    assert (metrics["test"], metrics["training_split"]) == (pytest.approx(tested), True)
    assert metrics["intervals"]["test"]["count"] == row["count"]
    text = adar(*run)[1]
    assert "trained on this graph" in text
    assert re.search(rf"test accuracy +\d+ % \[\d+, \d+\] of {row['count']} {unit}", text)
    report = json.loads(adar("report", bundle, "graph.npz", "--budgets", "4", "--json")[1])
    assert report["evaluation"]["budgets"][0]["at_exit"] == pytest.approx(tested)
    assert np.sum(report["answers"]["confusion"]) == row["count"]
    assert report["graph"]["labelled"]["test"] == row["count"]
    assert f"test {unit} of the training split" in (tmp_path / "report.html").read_text()


def test_graphs_with_one_label_are_scored_on_the_test_graphs(adar, tmp_path: Path) -> None:
    graphs = [bare(seed, "graph", 12) for seed in range(15)]
    bundle = trained(tmp_path, split_graphs(graphs))
    (tmp_path / "graphs").mkdir()
    for index, graph in enumerate(graphs):
        write_graph(tmp_path / "graphs" / f"{index:02}.npz", graph)
    tested = json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]
    found = json.loads(adar("evaluate", bundle, "graphs", "--budgets", "4", "--json")[1])
    assert found["counted"] == "3 test graphs of the training split"
    assert found["budgets"][0]["at_exit"] == pytest.approx(tested)


def test_other_graphs_overlaps_and_older_bundles(adar, tmp_path: Path) -> None:
    graph = bare()
    bundle = trained(tmp_path, [with_split(graph)])
    write_graph(tmp_path / "graph.npz", graph)
    write_graph(tmp_path / "other.npz", bare(7))
    kept = graph.edge_index[:, (graph.edge_index < 60).all(axis=0)]
    write_graph(tmp_path / "part.npz", Graph(graph.features[:60], kept, labels=graph.labels[:60]))
    options = ["--bundle", bundle, "--max-steps", "2"]
    out = adar("run", "other.npz", *options)[1]
    assert "all labels" in out
    assert "note" not in out
    out = adar("run", "part.npz", *options)[1]
    assert len(re.findall("note: about .*look like training nodes", " ".join(out.split()))) == 1
    edit(bundle, lambda m: m["training"].pop("fingerprint"))
    assert "on all 90 labels" in adar("evaluate", bundle, "graph.npz", "--budgets", "2")[1]
    edit(bundle, lambda m: m["training"].update(fingerprint={"version": 1}))
    code, out, err = adar("evaluate", bundle, "graph.npz", "--budgets", "2")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "record of the training data is damaged" in err
    out = adar("run", "graph.npz", *options)[1]
    assert "not scored: the record of the training data" in " ".join(out.split())


def test_training_says_which_exit_and_why(adar, tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.npz", bare(nodes=40))
    code, out, _ = adar("train", "graph.npz", "--epochs", "2", "--hidden", "8", "--proxies", "2")
    assert code == 0
    text = " ".join(out.split())
    assert re.search(r"reason (peak|final|time): ", text)
    assert re.search(r"test accuracy \d+ % \[\d+, \d+\] of 8 nodes", text)
    metrics = json.loads(next(tmp_path.glob("runs/*/metrics.json")).read_text())
    assert metrics["exit_reason"].startswith(metrics["exit"]["rule"])
    assert set(metrics["exit_regret"]) == set(metrics["exit_error"]) == {"time", "peak", "final"}
    assert metrics["intervals"]["val"]["count"] == 8
