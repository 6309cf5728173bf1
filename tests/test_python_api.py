"""`adar_deploy.train`, `TrainedModel` and `load`: the Python API does what the commands do."""

import gc
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import adar_deploy as adar
import adar_train.config
from adar_deploy.cli import main
from adar_deploy.training import run_training
from adar_deploy.training_options import TrainingOptions
from adar_runtime import Graph, write_graph
from adar_runtime.errors import AdarError, AdarWarning, ExportError, GraphError, RunFolderError, UsageError
from tests.helpers import random_graph

SMALL = {"hidden": 8, "proxies": 2, "epochs": 2, "train_steps": 2, "preset": "quick"}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Few budgets of validation and calibration; no other change. The folder is empty."""
    preset = adar_train.config.preset
    few = {"select_budgets": (2,), "exit_budgets": (2, 3)}
    monkeypatch.setattr(adar_train.config, "preset", lambda *a, **k: replace(preset(*a, **k), **few))
    monkeypatch.chdir(tmp_path)


def as_data(graph: Graph, **others: object) -> Data:
    return Data(
        x=torch.from_numpy(graph.features),
        edge_index=torch.from_numpy(graph.edge_index),
        y=torch.from_numpy(graph.labels),
        **others,
    )


def test_three_lines(board: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    """Data in memory to a bundle and to predictions; the bundle predicts the same as the model."""
    data = as_data(board)
    model = adar.train(data, **SMALL)
    drawn = "Data: drew the missing train_mask, val_mask, test_mask at random: 86 train, 29 val, 29 test"
    assert model.notes == [drawn]
    assert capsys.readouterr().err.splitlines() == [f"note: {drawn}"]
    manifest = model.export("bundle", opset=18, steps=(1, 2), quiet=True)
    assert (manifest.opset, manifest.parity["needed"] < 1e-4) == (18, True)
    result = model.predict(data, budget=5)
    assert np.array_equal(result.scores, adar.load("bundle").predict(data, budget=5).scores)
    assert "test ROC-AUC" in repr(model)
    assert "run in a temporary folder" in repr(model)
    assert model.evaluate(data, [3]).counted == "29 test nodes of the training split"
    assert capsys.readouterr() == ("", "")
    folder = model.path
    assert folder.is_dir()
    del model
    gc.collect()
    assert not folder.exists()
    assert {path.name for path in Path().iterdir()} == {"bundle"}


def test_the_run_is_that_of_the_command(board: Graph) -> None:
    """The same weights and metrics from memory, from a file and through the command's own function."""
    bare = replace(board, train_mask=None, val_mask=None, test_mask=None)
    write_graph("graph.npz", bare)
    model = adar.train(bare, **SMALL, out="runs/a", quiet=True, seed=3)
    options = TrainingOptions(data=["graph.npz"], out=Path("runs/b"), **SMALL, seed=3)
    done = run_training(options, quiet=True)
    command = adar.TrainedModel(done.out)
    assert model.run.fingerprint() == command.run.fingerprint()
    assert model.metrics["test"] == command.metrics["test"]
    for name in ("train_mask", "val_mask", "test_mask"):
        assert np.array_equal(getattr(model.graph(), name), getattr(command.graph(), name))
    assert repr(model.path) in repr(model).replace("run in '", "run in PosixPath('").replace("')", "'))")


def test_several_graphs_with_one_label_each() -> None:
    """A dataset with two classes of graphs, as in graph classification."""
    graphs = [as_data(random_graph(6 + i % 3, 12, seed=i, level="graph", classes=1)) for i in range(30)]
    for index, graph in enumerate(graphs):
        graph.y = torch.tensor([index % 2])
    model = adar.train(graphs, **SMALL, quiet=True)
    assert model.notes == [
        "30 graphs: drew the missing train_mask, val_mask, test_mask at random: 18 train, 6 val, 6 test"
    ]
    results = model.predict(graphs[:2], budget=2)
    assert [one.scores.shape for one in results] == [(1, 2), (1, 2)]


def test_validate_on_a_graph_in_memory(board: Graph) -> None:
    write_graph("a.npz", board)
    other = as_data(replace(board, features=board.features + 1), class_names=[*board.class_names])
    model = adar.train(["a.npz", board], validate_on=other, **SMALL, quiet=True)
    assert model.run.config["data"] == ["a.npz", "Graph", "Data"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"epoch": 3},
            r"train has no option 'epoch' \(did you mean epochs\?\): choose from data, edges, id",
        ),
        ({"epochs": 0}, "train: --epochs should be greater than or equal to 1"),
        ({"epochs": 2.5}, "train: --epochs should be a valid integer"),
        ({"preset": "fast"}, "train: --preset: 'fast' is not one of 'quick', 'transductive'"),
        ({"baseline": "mlp"}, "unknown baseline 'mlp'"),
        ({"resume": True, "out": None}, "resume needs out, the folder of the run"),
        ({"as_json": True}, "train has no option 'as_json'"),
    ],
)
def test_options_are_those_of_the_command(board: Graph, options: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        adar.train(board, quiet=True, **options)


def test_a_list_of_columns_is_that_of_a_configuration_file() -> None:
    """Only the last column was a feature."""
    Path("n.csv").write_text("id,a,b,c,y\n" + "".join(f"{i},{i % 3},{i % 5},1,{i % 2}\n" for i in range(40)))
    Path("e.csv").write_text("source,target\n0,1\n1,2\n")
    model = adar.train("n.csv", edges="e.csv", features=["a", "b"], **SMALL, quiet=True)
    assert model.graph().width == 2
    for wrong in ({"edges": ["e.csv", "n.csv"]}, {"edges": "e.csv", "seed": [1, 2]}):
        with pytest.raises(AdarError, match=r"e\.csv,n\.csv|valid integer"):
            adar.train("n.csv", **SMALL, **wrong, quiet=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": None}, "the graph has no labels: training needs y"),
        ({"labels": np.zeros(144, int)}, "of one class"),
        ({"train_mask": np.zeros(144, bool)}, "nothing in train_mask has a label"),
    ],
)
def test_graphs_that_cannot_be_trained_on(board: Graph, change: dict, said: str) -> None:
    with pytest.raises(GraphError, match=said):
        adar.train(replace(board, **change), quiet=True, **SMALL)
    assert list(Path().iterdir()) == []


def test_an_unknown_option_of_export(run_folder: Path) -> None:
    with pytest.raises(UsageError, match="export has no option 'opsets': choose from opset, precision"):
        adar.TrainedModel(run_folder).export("bundle", opsets=17)


def test_a_baseline_is_scored_but_not_exported(board: Graph) -> None:
    model = adar.train(board, baseline="gcn", **SMALL, quiet=True)
    assert "no effect with --baseline gcn: --train-steps" in model.notes
    assert "ROC-AUC" in repr(model.evaluate(board))
    with pytest.raises(ExportError, match="only AdaR can be exported"):
        model.predict(board)


def test_report_is_that_of_the_command(
    board: Graph,
    run_folder: Path,
    bundle_folder: Path,
    described_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_graph("board.npz", board)
    model = adar.TrainedModel(run_folder)
    page = model.report("a.html", board, budgets=[3], bundle=bundle_folder, quiet=True)
    command = ["report", bundle_folder, "board.npz", "--run", run_folder, "--budgets", 3, "-o", "b.html"]
    monkeypatch.setattr(sys, "argv", ["adar-deploy", *map(str, command)])
    with pytest.raises(SystemExit, match="0"):
        main()
    mine, theirs = page.read_text(), Path("b.html").read_text()
    assert re.findall("<h2>.*?</h2>", mine) == re.findall("<h2>.*?</h2>", theirs)
    figures = r"<dt>ROC-AUC.*?</small>"
    assert re.findall(figures, mine) == re.findall(figures, theirs) != []
    own = model.report(budgets=[2], quiet=True)
    assert "Latency</h2>" not in own.read_text()  # without a bundle
    with pytest.raises(RunFolderError, match="the weights differ"):
        model.report(bundle=described_bundle)
    with pytest.raises(UsageError, match="a report is about one graph, and 2 were given"):
        model.report(data=[board, board])
    with pytest.raises(UsageError, match="a report is written as"):
        model.report("page.pdf")


def test_a_score_on_trained_labels_is_a_warning(board: Graph) -> None:
    """All labels of a graph are trained on if another one is for validation."""
    bare = replace(board, train_mask=None, val_mask=None, test_mask=None)
    model = adar.train(bare, validate_on=replace(bare, features=bare.features + 1), **SMALL, quiet=True)
    with pytest.warns(AdarWarning, match="used for training or validation: the score is too high") as found:
        scores = model.evaluate(bare, [2])
    assert found[0].filename == __file__
    assert "the score is too high" in repr(scores)
    assert "the score is too high" in scores._repr_html_()


def test_the_label_of_a_networkx_graph() -> None:
    club = networkx.karate_club_graph()
    model = adar.train(club, label="club", **SMALL, quiet=True)
    assert "labels are from 'club': 2 classes" in model.notes
    graph = adar.as_graph(club, label="club", on_note=print)
    assert model.predict(graph, budget=2).class_names == ("Mr. Hi", "Officer")
    with pytest.raises(UsageError, match="label names an attribute of a networkx graph"):
        adar.train(graph, label="club", **SMALL)
    with pytest.raises(UsageError, match="edges belongs to a table of nodes"):
        adar.train(graph, edges="edges.csv", **SMALL)
    with pytest.raises(UsageError, match="--label is for a table of nodes: add --edges"):
        adar.train("graph.npz", label="club", **SMALL)


def test_drawn_pairs_are_a_note(board: Graph) -> None:
    model = adar.train(as_data(board), task="edge", **SMALL, quiet=True)
    links = board.edges // 2
    assert model.notes == [
        f"Data: the pairs to classify are {links} edges and {links} random pairs without an edge, split at "
        f"random: {model.graph().train_mask.sum()} train, {model.graph().val_mask.sum()} val, "
        f"{model.graph().test_mask.sum()} test"
    ]


@pytest.mark.parametrize("budgets", [50, "8,50", [], [0], [2.5]])
def test_budgets_are_a_list_of_steps(board: Graph, run_folder: Path, budgets: object) -> None:
    with pytest.raises(UsageError, match="budget"):
        adar.TrainedModel(run_folder).evaluate(board, budgets)


def test_save_keeps_the_run(board: Graph, run_folder: Path) -> None:
    model = adar.train(board, **SMALL, quiet=True)
    before, weights = model.path, model.run.fingerprint()
    with pytest.raises(UsageError, match="inside the run"):
        model.save(model.path / "copy")
    model.save("runs/kept")
    assert not before.exists()
    assert adar.TrainedModel("runs/kept").run.fingerprint() == weights
    with pytest.raises(UsageError, match="contains a finished run"):
        adar.TrainedModel(run_folder).save("runs/kept")


def test_a_model_stays_itself_when_its_run_is_replaced(board: Graph) -> None:
    """The first model does not give the numbers of a second one that was trained into its folder."""
    first = adar.train(board, **SMALL, seed=1, out="runs/one", quiet=True)
    before = first.evaluate(board, [8]).budgets()
    adar.train(board, **SMALL, seed=2, out="runs/one", overwrite=True, quiet=True)
    assert first.evaluate(board, [8]).budgets() == before
    for refused in (first.report, lambda: first.save("runs/kept")):
        with pytest.raises(RunFolderError, match="another training has replaced the run"):
            refused()
    assert not Path("runs/kept").exists()
    assert not Path("report.html").exists()


def test_save_does_not_read_what_a_run_links_to(run_folder: Path) -> None:
    """A stranger's run: links could copy any file of the user, or /dev/zero without end."""
    shutil.copytree(run_folder, "run")
    Path("secret").write_text("key")
    Path("run/notes.txt").symlink_to(Path("secret").absolute())
    Path("run/zeros").symlink_to("/dev/zero")
    Path("run/again").symlink_to(".")
    os.mkfifo("run/pipe")
    adar.TrainedModel("run").save("kept")
    assert all(Path("kept", name).is_symlink() for name in ("notes.txt", "zeros", "again"))
    assert not Path("kept/pipe").exists()


def test_an_interrupted_training_says_how_to_continue(board: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(adar_train.Trainer, "_epoch", stop)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        adar.train(board, **SMALL, quiet=True)
    assert interrupt.value.__notes__ == [
        "to continue an interrupted training, give out=, and later resume=True"
    ]
    monkeypatch.undo()


def test_a_folder_that_is_no_run() -> None:
    with pytest.raises(RunFolderError, match="is not a training run"):
        adar.TrainedModel("nothing")
    Path("file").touch()
    with pytest.raises(RunFolderError, match="is not a training run"):
        adar.TrainedModel("file")


def in_a_new_interpreter(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_import_is_quick() -> None:
    """No package is loaded before it is needed. An empty interpreter has about 50 modules."""
    count = "print(len(sys.modules), {'numpy', 'torch', 'typer', 'rich', 'onnxruntime'} & set(sys.modules))"
    before = in_a_new_interpreter(f"import sys; {count}").split()
    after = in_a_new_interpreter(f"import sys, adar_deploy; {count}").split()
    assert after[1:] == ["set()"]
    assert int(after[0]) - int(before[0]) < 30


def test_a_bundle_predicts_without_pytorch(bundle_folder: Path, board: Graph, tmp_path: Path) -> None:
    """An interpreter in which PyTorch, onnx and pandas cannot be imported, as in the base install."""
    write_graph(tmp_path / "graph.npz", board)
    said = in_a_new_interpreter(
        "import sys\n"
        "for name in ('torch', 'torch_geometric', 'onnx', 'pandas', 'matplotlib', 'networkx', 'scipy'):\n"
        "    sys.modules[name] = None\n"
        "import adar_deploy as adar\n"
        f"bundle = adar.load({str(bundle_folder)!r})\n"
        "graph = adar.read_graph('graph.npz')\n"
        "one, two = bundle.predict([graph, 'graph.npz'], budget=3)\n"
        "two.save('predictions.csv')\n"
        "print((one.scores == two.scores).all(), one)\n"
        "try: adar.train(graph)\n"
        "except adar.AdarError as error: print(error)\n"
    )
    first, second = said.splitlines()
    assert first.startswith("True Result(144 predictions, 2 classes")
    assert second == "adar-deploy train needs more than is installed: pip install 'adar-deploy[train]'"
