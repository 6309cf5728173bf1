"""The name `pretrained` on the command line, and `run` without a bundle."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import adar_deploy
from adar_deploy.paths import PRETRAINED, named_bundle
from adar_export import pretrained
from adar_runtime import write_graph
from adar_runtime.backends.onnxruntime.backend import OnnxCpuBackend
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import UsageError
from adar_runtime.evaluation.training_data import identity
from adar_runtime.graph import Graph
from adar_train import pretraining
from adar_train.data import context_episodes
from tests.bundles import change_model
from tests.in_context_graphs import block_graph, half_labelled


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    write_graph(tmp_path / "graph.npz", block_graph())
    return "graph.npz"


@pytest.fixture
def short_fine_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tuning with one episode, and an export with one graph."""
    monkeypatch.setattr(pretrained, "sample_graphs", lambda *_: {"generated, labels": block_graph()})
    monkeypatch.setattr(pretrained, "PROOF_SEEDS", 1)
    monkeypatch.setattr(pretraining, "EPISODES", 1)


def test_run_without_a_bundle_uses_the_pretrained_model(adar, graph: str) -> None:
    code, out, err = adar("run", graph, "--json", "--threads", "1", "-o", "predictions.csv")
    assert code == 0, err
    assert "using the pretrained model" in err
    assert json.loads(out)["classes"] == 3
    assert len(Path("predictions.csv").read_text().splitlines()) == 241


def test_run_says_which_model_it_uses_also_if_it_is_quiet(adar, graph: str) -> None:
    code, out, err = adar("run", graph, "--threads", "1", "--quiet")
    assert (code, out) == (0, "")
    assert "using the pretrained model" in err


@pytest.mark.parametrize("bundle", ["bundle", "./bundle"])
def test_a_named_bundle_that_is_missing_is_not_replaced_by_the_pretrained_model(
    adar, graph: str, bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("settings.toml").write_text(f"[run]\nbundle = '{bundle}'\n")
    for words in (["run", graph, "--bundle", bundle, "--quiet"], ["--config", "settings.toml", "run", graph]):
        code, _, err = adar(*words, "-o", "predictions.csv")
        assert code == 2
        assert "not a bundle" in err
    monkeypatch.setenv("ADAR_BUNDLE", bundle)
    assert adar("run", graph, "-o", "predictions.csv")[0] == 2
    assert not Path("predictions.csv").exists()
    assert adar("run", "pretrained", graph, "--threads", "1")[0] == 0  # the command line wins


def test_run_names_the_pretrained_model(adar, graph: str) -> None:
    for words in (("run", graph, "--bundle", "pretrained"), ("run", "pretrained", graph)):
        code, out, err = adar(*words, "--json", "--threads", "1")
        assert (code, err) == (0, "")
        assert json.loads(out)["nodes"] == 240


@pytest.mark.usefixtures("graph")
def test_run_says_what_the_pretrained_model_needs(adar) -> None:
    write_graph(Path("bare.npz"), replace(block_graph(), target_features=None, train_mask=None))
    code, _, err = adar("run", "bare.npz")
    assert code == 2
    assert "the graph has labels but no train_mask" in err
    assert "target_x" in err
    write_graph(Path("bare.npz"), replace(block_graph(), target_features=None, train_mask=None, labels=None))
    assert "needs class descriptions (target_x) or known labels" in adar("run", "bare.npz")[2]


@pytest.mark.usefixtures("graph")
def test_evaluate_says_that_known_labels_are_not_scored(adar) -> None:
    graph = block_graph()
    assert graph.train_mask is not None
    known = np.where(graph.train_mask[0], graph.labels, -1)
    write_graph(Path("known.npz"), replace(graph, labels=known, test_mask=None, val_mask=None))
    code, _, err = adar("evaluate", "pretrained", "known.npz", "--budgets", "4")
    assert code == 2
    assert "no labels to score against: the model is given those in train_mask" in err


@pytest.mark.usefixtures("graph")
def test_evaluate_uses_the_labels_of_the_chosen_split_only(adar) -> None:
    first = block_graph().train_mask
    assert first is not None
    masks = np.stack([first[0], np.roll(first[0], 50)])
    write_graph(Path("splits.npz"), replace(block_graph(), train_mask=masks))
    code, out, err = adar("evaluate", "pretrained", "splits.npz", "--split", "1", "--budgets", "4", "--json")
    assert code == 0, err
    assert json.loads(out)["part"] == "test"
    assert "228" in json.loads(out)["counted"]


def test_run_scores_the_labels_that_the_model_does_not_know(adar, graph: str) -> None:
    found = json.loads(adar("run", graph, "--bundle", "pretrained", "--max-steps", "4", "--json")[1])[
        "metrics"
    ]
    assert found["intervals"]["train"]["count"] == 12
    assert found["intervals"]["test"]["count"] == 228
    assert "all" not in found


@pytest.mark.usefixtures("graph")
def test_a_score_over_known_labels_says_so(adar) -> None:
    write_graph(Path("overlap.npz"), replace(block_graph(), test_mask=np.ones(240, np.bool_)))
    _, out, _ = adar("run", "overlap.npz", "--bundle", "pretrained", "--max-steps", "4", "--json")
    told = [json.loads(out)["warnings"]]
    _, out, _ = adar("evaluate", "pretrained", "overlap.npz", "--budgets", "4", "--json")
    told.append(json.loads(out)["warnings"])
    message = "the model knew 12 of the 240 scored labels (train_mask): the score is too high"
    assert told == [[message], [message]]


def test_the_command_that_converts_tables_can_be_copied(adar) -> None:
    Path("my nodes.csv").write_text("id,x\na,1\n")
    Path("edges.csv").write_text("source,target\na,a\n")
    code, _, err = adar("run", "my nodes.csv", "--edges", "edges.csv", "--bundle", "pretrained")
    assert code == 2
    assert "adar-deploy data convert 'my nodes.csv' graph.npz --edges edges.csv" in err


def test_report_takes_the_pretrained_model(adar, graph: str) -> None:
    code, out, err = adar("report", "pretrained", graph, "--budgets", "4", "-o", "page.html")
    assert code == 0, err
    assert "page.html" in out
    assert "training curve" not in out  # there is no run, and no --run to give


def test_run_says_what_hidden_labels_chose(adar, graph: str) -> None:
    code, out, err = adar("run", graph, "--bundle", "pretrained", "--threads", "1")
    assert code == 0, err
    assert "12 hidden labels" in " ".join(out.split())
    told = json.loads(adar("run", graph, "--bundle", "pretrained", "--threads", "1", "--json")[1])
    assert told["check"]["labels"] == 12
    assert told["check"]["strength"] in (0, 1)


@pytest.mark.usefixtures("graph")
def test_small_graphs_of_several_files_share_calls(adar, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = {f"{classes}.npz": block_graph(40 + classes, classes, seed=classes) for classes in (2, 3, 5)}
    for name, each in graphs.items():
        write_graph(Path(name), each)
    sizes, start_batch = [], OnnxCpuBackend.start_batch

    def counted(self: OnnxCpuBackend, prepared):
        sizes.append(len(prepared.graphs))
        return start_batch(self, prepared)

    monkeypatch.setattr(OnnxCpuBackend, "start_batch", counted)
    words = ("--bundle", "pretrained", "--threads", "1", "--json")
    code, out, err = adar("run", *graphs, *words)
    assert code == 0, err
    assert sizes == [9, 3]  # the label check with three parts of each graph, and the graphs
    alone = [json.loads(adar("run", name, *words)[1]) for name in graphs]
    for together, single in zip(json.loads(out), alone, strict=True):
        assert together["check"] == single["check"]
        assert together["metrics"] == single["metrics"]
        np.testing.assert_allclose(together["alignment"], single["alignment"], atol=1e-5)


def test_bench_takes_the_pretrained_model(adar, graph: str) -> None:
    quick = ["--max-steps", 3, "--repeats", 1, "--threads", 1, "--backend", "onnxruntime-cpu"]
    code, out, err = adar("bench", "pretrained", graph, *quick, "--solver", "euler", "--json")
    assert code == 0, err
    (row,) = json.loads(out)["measured"]
    assert (row["nodes"], row["cell_calls"]) == (240, 3)


@pytest.mark.usefixtures("graph", "short_fine_tuning")
def test_train_from_the_pretrained_model_writes_a_bundle_that_runs(adar) -> None:
    write_graph(Path("half.npz"), half_labelled())
    words = ["train", "half.npz", "--from", "pretrained", "--out", "tuned", "--epochs", 1]
    code, out, err = adar(*words, "--json")
    assert code == 0, err
    training, packaged = json.loads(out)["training"], named_bundle(PRETRAINED)
    assert (training["updates"], training["data"][-1]) == (1, "half.npz")
    assert training["tuned_from"] == read_manifest(packaged).training["weights"]
    before, after = map(pretrained.weights_in_bundle, (packaged, Path("tuned")))
    assert 0 < max(float((before[name] - after[name]).abs().max()) for name in before) < 0.01
    code, _, err = adar("run", "graph.npz", "--bundle", "tuned", "--json", "--threads", "1")
    assert (code, err) == (0, "")
    code, _, err = adar(*words)
    assert code == 2
    assert "--overwrite" in err


@pytest.mark.usefixtures("graph", "short_fine_tuning")
def test_a_bundle_that_appears_during_fine_tuning_is_not_replaced(
    adar, bundle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_graph(Path("half.npz"), half_labelled())
    train = pretrained.Pretraining.run

    def slow(*words: object, **options: object) -> None:
        shutil.copytree(bundle_folder, "tuned")
        train(*words, **options)

    monkeypatch.setattr(pretrained.Pretraining, "run", slow)
    code, _, err = adar("train", "half.npz", "--from", "pretrained", "--out", "tuned", "--epochs", 1)
    assert (code, "tuned contains a bundle" in err) == (2, True), err
    manifests = [(folder / "manifest.json").read_bytes() for folder in (bundle_folder, Path("tuned"))]
    assert manifests[0] == manifests[1]


def test_train_in_python_has_no_base(graph: str) -> None:
    with pytest.raises(UsageError, match="no option 'base'"):
        adar_deploy.train(graph, base="pretrained")


def test_train_from_refuses_what_has_no_meaning_there(adar, graph: str) -> None:
    for words, problem in (
        ([graph, "--out", "tuned", "--hidden", 8], "--hidden"),
        ([graph, "--out", "tuned", "--edges", "edges.csv"], "--from has no --edges"),
        ([graph], "--out"),
        (["--out", "tuned"], "graph files"),
    ):
        code, _, err = adar("train", *words, "--from", "pretrained")
        assert code == 2
        assert problem in err


@pytest.mark.usefixtures("graph")
def test_train_from_needs_a_pretrained_model(adar, bundle_folder: Path) -> None:
    code, _, err = adar("train", "graph.npz", "--from", bundle_folder, "--out", "tuned")
    assert code == 2
    assert "not a pretrained model" in err


@pytest.mark.usefixtures("graph")
def test_inspect_shows_the_pretrained_model(adar) -> None:
    code, out, _ = adar("inspect", "pretrained", "--json")
    assert code == 0
    assert json.loads(out)["manifest"]["in_context"] is True
    assert "any number of columns; the start makes 64 of them" in adar("inspect", "pretrained")[1]


@pytest.mark.usefixtures("graph")
def test_a_bundle_in_a_folder_of_this_name_is_preferred() -> None:
    assert named_bundle(PRETRAINED).is_absolute()
    Path("pretrained").mkdir()
    (Path("pretrained") / "manifest.json").write_text("{}")
    assert named_bundle(PRETRAINED) == PRETRAINED


def test_a_store_has_the_predictions_of_its_graph(adar, graph: str) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert adar("data", "shard", graph, "--parts", "3", "-o", "store")[0] == 0
    code, out, err = adar("run", "store", "--bundle", "pretrained", "-o", "out", "--json")
    assert code == 0, err
    assert adar("run", graph, "--bundle", "pretrained", "-o", "one.json")[0] == 0
    expected = json.loads(Path("one.json").read_text())["prediction"]
    tables = [parquet.read_table(path) for path in sorted(Path("out").glob("*.parquet"))]
    assert [one for table in tables for one in table["prediction"].to_pylist()] == expected
    code, alone, _ = adar("run", graph, "--bundle", "pretrained", "--json")
    assert json.loads(out)["check"] == json.loads(alone)["check"]
    assert not Path("out/unfinished").exists()


def test_new_nodes_of_a_table_are_answered(adar, graph: str) -> None:
    """A new node like a node without label gets nearly its answer: it is compared with that node too."""
    code, out, err = adar("remember", "pretrained", graph, "-o", "context")
    assert code == 0, err
    assert "--bundle pretrained --context context" in " ".join(out.split())
    assert not Path("context/target_x.npy").exists()  # new nodes need no class descriptions
    known, node = block_graph(), 100
    source = known.edge_index[0, known.edge_index[1] == node]
    names = ",".join(f"f{i}" for i in range(known.width))
    row = ",".join(map(str, known.rows(node, node + 1)[0].tolist()))
    Path("new.csv").write_text(f"id,{names}\nnew,{row}\n")
    Path("edges.csv").write_text("source,target\n" + "".join(f"{one},new\n" for one in source))
    words = ["--bundle", "pretrained", "--context", "context", "-o", "answers.json", "--hops", 0]
    code, _, err = adar("run", "new.csv", "--edges", "edges.csv", *words)
    assert code == 0, err
    answers = json.loads(Path("answers.json").read_text())
    assert adar("run", graph, "--bundle", "pretrained", "-o", "one.json")[0] == 0
    expected = json.loads(Path("one.json").read_text())["probability"][node]
    found = [column[0] for name, column in answers.items() if name.startswith("probability")]
    assert found == pytest.approx(expected, abs=0.01)
    Path("words.csv").write_text(f"id,{names}\nnew,{row.rpartition(',')[0]},red\n")
    code, _, err = adar("run", "words.csv", "--edges", "edges.csv", *words)
    assert (code, "has words, and the context was made from a graph file" in err) == (2, True)


@pytest.mark.usefixtures("graph", "short_fine_tuning")
def test_a_fine_tuned_model_knows_what_it_was_trained_on(adar) -> None:
    half, whole = half_labelled(), replace(block_graph(), train_mask=None)
    write_graph(Path("half.npz"), half)
    write_graph(Path("whole.npz"), whole)
    words = ["--epochs", 1, "--json"]
    assert adar("train", "half.npz", "--from", "pretrained", "--out", "first", *words)[0] == 0
    code, out, _ = adar("run", "whole.npz", "--bundle", "first", "--max-steps", "4", "--json")
    assert code == 0
    found = json.loads(out)["metrics"]  # the same graph without its mask: the other labels are scored
    assert (found["training_split"], found["intervals"]["test"]["count"]) == (True, 120)
    code, out, _ = adar("evaluate", "first", "whole.npz", "--budgets", "4", "--json")
    assert code == 0
    assert json.loads(out)["budgets"][0]["at_exit"] == pytest.approx(found["test"])
    write_graph(Path("other.npz"), block_graph(seed=1))
    code, out, _ = adar("train", "whole.npz", "--from", "first", "--out", "second", *words)
    assert (code, len(json.loads(out)["training"]["fingerprint"]["graphs"])) == (0, 1)
    for name, trained in (("whole.npz", True), ("other.npz", False)):
        code, out, _ = adar("run", name, "--bundle", "second", "--max-steps", "4", "--json")
        assert (code, "the score is too high" in out) == (0, trained)


@pytest.mark.usefixtures("graph", "short_fine_tuning")
def test_fine_tuning_records_the_graph_and_the_model_that_it_used(
    adar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph is replaced, and the model removed, as soon as they were read."""
    write_graph(Path("half.npz"), half_labelled())
    shutil.copytree(named_bundle(PRETRAINED), "base")
    read, read_bundle, used = pretrained.read_graph, pretrained.read_bundle, list[str]()

    def replacing(path: Path) -> Graph:
        graph = read(path)
        used.append(identity(graph))
        write_graph(Path("half.npz"), replace(half_labelled(), features=half_labelled().features[::-1]))
        return graph

    def removing(path: Path) -> Any:
        found = read_bundle(path)
        shutil.rmtree(path)
        return found

    monkeypatch.setattr(pretrained, "read_bundle", removing)
    monkeypatch.setattr(pretrained, "read_graph", replacing)
    monkeypatch.setattr(context_episodes, "read_graph", replacing)
    code, out, err = adar("train", "half.npz", "--from", "base", "--out", "tuned", "--epochs", 1, "--json")
    assert code == 0, err
    recorded = [each["sha256"] for each in json.loads(out)["training"]["fingerprint"]["graphs"]]
    assert used == recorded == [identity(half_labelled())]


def damaged_records(own: str) -> list[dict]:
    """Records of training graphs that a stranger may have written; `own` is the sha256 of our graph."""
    split = {"sha256": own, "nodes": 240, "edges": 1920, "outputs": 240, "split": "eJwDAAAAAAE="}
    return [
        {"fingerprint": {"version": 1, "graphs": [{}], "sample": None}},
        {"fingerprint": {"version": 1, "graphs": [], "sample": {"rounds": 0}}},
        {"fingerprint": {"version": 1, "graphs": [split], "sample": None}},
        {"data": 5},
        {"data": [None]},
    ]


@pytest.mark.usefixtures("graph")
def test_fine_tuning_refuses_damaged_records_before_the_training(
    adar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were a traceback after the training, whose weights were lost."""
    monkeypatch.setattr(pretraining.Pretraining, "run", lambda *_, **__: pytest.fail("trained"))
    write_graph(tmp_path / "half.npz", half_labelled())
    shutil.copytree(named_bundle(PRETRAINED), tmp_path / "base")
    manifest = read_manifest(tmp_path / "base")
    for training in damaged_records(identity(half_labelled())):
        changed = replace(manifest, training=manifest.training | training)
        (tmp_path / "base" / "manifest.json").write_text(json.dumps(changed.to_dict()))
        code, _, err = adar("train", "half.npz", "--from", "base", "--out", "tuned", "--epochs", 1)
        assert (code, "damaged" in err, len(err.splitlines())) == (2, True, 1), err


def test_fine_tuning_refuses_weights_of_other_names(adar, graph: str, tmp_path: Path) -> None:
    def rename(model: onnx.ModelProto) -> None:
        weight = next(each for each in model.graph.initializer if each.name.endswith(".T"))
        for node in model.graph.node:
            node.input[:] = ["other" if name == weight.name else name for name in node.input]
        weight.name = "other"

    change_model(named_bundle(PRETRAINED), tmp_path / "base", "cell", rename)
    code, _, err = adar("train", graph, "--from", "base", "--out", "tuned", "--epochs", 1)
    assert (code, "has no weights" in err, len(err.splitlines())) == (2, True, 1), err


@pytest.mark.parametrize("lr", ["nan", "-1", "0", "inf"])
def test_fine_tuning_refuses_other_learning_rates(adar, graph: str, lr: str) -> None:
    code, _, err = adar("train", graph, "--from", "pretrained", "--out", "tuned", "--lr", lr)
    assert (code, "lr is" in err) == (2, True), err


def test_build_does_not_write_into_the_package(adar) -> None:
    code, _, err = adar("build", "pretrained", "--profile", "small")
    assert (code, "copy" in err, (named_bundle(PRETRAINED) / "engines").exists()) == (2, True, False)
