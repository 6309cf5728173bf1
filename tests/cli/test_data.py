"""`adar-deploy data` as a user types it."""

import json
from pathlib import Path

import numpy as np
import pytest

from adar_deploy import console
from adar_deploy.commands.data.make import FamilyName
from adar_deploy.table_options import Labels
from adar_runtime import Graph, read_graph, write_graph
from adar_runtime.graph.formats import LABEL_KINDS
from adar_runtime.graph.synthetic import FAMILIES
from adar_train import ModelConfig, TrainConfig, fit
from adar_train.data.pyg import SETS
from tests.helpers import random_graph


def test_list_has_every_set_there_is(adar) -> None:
    code, out, err = adar("data", "list", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert list(told["generated"]) == list(FAMILIES)
    assert told["generated"]["chain"]["settings"]["hops"] == 16
    assert told["pyg"] == {f"pyg:{kind}": list(names) for kind, names in SETS.items()}
    _, out, _ = adar("data", "list")
    assert "pyg:Planetoid" in out
    assert "minesweeper" in out


def test_the_command_offers_what_the_runtime_has() -> None:
    """The lists are written twice, so that `--help` need not load the runtime."""
    assert [name.value for name in FamilyName] == list(FAMILIES)
    assert tuple(Labels) == LABEL_KINDS


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_made_can_be_trained_on(adar, name: str, tmp_path: Path) -> None:
    code, out, _ = adar("data", "make", name, "--nodes", 1000, "--seed", 3, "-o", "made/g.npz", "--json")
    assert code == 0
    told = json.loads(out)
    graph = read_graph(tmp_path / "made" / "g.npz")
    assert (told["nodes"], told["edges"], told["settings"]["seed"]) == (graph.nodes, graph.edges, 3)
    config = ModelConfig(graph.width, graph.targets, hidden=4, proxies=2)
    training = TrainConfig(epochs=1, train_steps=1, select_budgets=(1,), exit_budgets=(1,))
    assert 0 < fit([graph], config, training).metrics["test"] < 1


def test_files_are_converted_there_and_back(adar, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "a.npz", board)
    assert adar("data", "convert", "a.npz", "b.pt")[0] == 0
    assert adar("data", "convert", "b.pt", "c.npz")[0] == 0
    back = read_graph(tmp_path / "c.npz")
    for name in ("features", "edge_index", "labels", "train_mask", "test_mask"):
        assert np.array_equal(getattr(back, name), getattr(board, name))
    assert back.class_names == board.class_names


def test_edges_and_nodes_become_a_graph_that_is_shown(adar, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\na,b\nb,c\n")
    (tmp_path / "n.csv").write_text("id,x,label\na,1,red\nb,2,blue\nc,3,red\n")
    code, out, _ = adar("data", "convert", "e.csv", "g.npz", "--table", "n.csv", "--both-ways", "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["nodes"], told["edges"], told["features"], told["classes"]) == (3, 4, 1, 2)
    code, out, _ = adar("data", "show", "g.npz", "--json")
    shown = json.loads(out)
    assert (shown["one_way"], shown["homophily"], shown["class_names"]) == (0, 0.0, ["blue", "red"])
    assert shown["warnings"] == [
        "the graph has no split: training draws a random one of 60/20/20",
    ]


@pytest.mark.parametrize(
    ("labels", "told", "regression"),
    [
        (",label\na,0.5\nb,1.5", "1 number for each node", True),
        (",label\na,red\nb,blue", "2 classes for each node", False),
        (",label\na,red\nb,", "1 class for each node", False),
        ("\na\nb", "nothing: no labels", False),
    ],
)
def test_what_is_predicted_is_told_in_the_same_words(
    adar, tmp_path: Path, labels: str, told: str, regression: bool
) -> None:
    (tmp_path / "e.csv").write_text("a,b\n")
    (tmp_path / "n.csv").write_text(f"id{labels}\n")
    converted = ("data", "convert", "e.csv", "g.npz", "--table", "n.csv")
    for command in (converted, ("data", "show", "g.npz")):
        assert f"predicts {told}" in " ".join(adar(*command)[1].split())
        assert json.loads(adar(*command, "--json")[1])["regression"] == regression


@pytest.mark.parametrize("width", [60, 140])
def test_show_fits_the_window(adar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(console.out, "_width", width)
    write_graph(tmp_path / "g.npz", random_graph(300, 900, classes=30))
    code, out, _ = adar("data", "show", "g.npz")
    assert code == 0
    lines = [line for line in out.splitlines() if not line.startswith("warning:")]  # to be searched for
    assert max(map(len, lines)) <= width
    assert "10 more" in out
    assert "warning: " in out


def test_described_classes_without_a_known_label_are_shown(adar, tmp_path: Path) -> None:
    graph = Graph(np.ones((3, 2)), [[0], [1]], labels=[-1, -1, -1], target_features=np.ones((2, 2)))
    write_graph(tmp_path / "g.npz", graph)
    code, out, _ = adar("data", "show", "g.npz")
    assert (code, "zero-shot" in out) == (0, True)


def test_several_graphs_are_a_list(adar, tmp_path: Path) -> None:
    for name in "ab":
        write_graph(tmp_path / "graphs" / f"{name}.npz", random_graph(9, 9))
    shown = json.loads(adar("data", "show", "graphs", "--json")[1])
    assert [Path(one["graph"]).name for one in shown] == ["a.npz", "b.npz"]


def test_a_bad_graph_does_not_hide_the_others(adar, tmp_path: Path) -> None:
    for name in "ac":
        write_graph(tmp_path / "graphs" / f"{name}.npz", random_graph(9, 9))
    (tmp_path / "graphs" / "b.npz").write_bytes(b"")
    code, out, err = adar("data", "show", "graphs", "--json")
    assert code == 2
    assert [Path(one["graph"]).name for one in json.loads(out) if "error" not in one] == ["a.npz", "c.npz"]
    assert "b.npz" in err
    assert len(err.splitlines()) == 1


def test_the_next_command_is_one_that_a_shell_takes(adar) -> None:
    out = adar("data", "make", "chain", "--nodes", 200, "-o", "my graph:100:.npz")[1]
    assert "next: adar-deploy train 'my graph:100:.npz'" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("make chess", "chess"),
        ("make chain --homophily 0.5", "chain has no setting homophily"),
        ("make chain -o g.xlsx", "ends in .npz or .pt"),
        ("make chain -o made", "is a folder"),
        ("convert g.npz g.npz", "is the input graph"),
        ("convert g.npz h.npz --label z", "omit --label, --labels and --bundle"),
        ("convert g.npz h.npz --labels numbers", "omit --label, --labels and --bundle"),
        ("convert e.csv h.npz --labels classes", "name it with --label"),
        ("convert g.npz h.npz --table g.npz", "g.npz: a table ends in .csv"),
        ("convert e.csv h.npz --table none.csv", "none.csv: there is no such file"),
        ("convert none.csv h.npz", "there is no such file"),
        ("show none.npz", "no such file"),
        ("show made", "contains no .npz or .pt file"),
        ("show g.npz --split 3", "split 3 does not exist"),
    ],
)
def test_bad_input_is_one_clear_line(
    adar, tmp_path: Path, board: Graph, arguments: str, message: str
) -> None:
    write_graph(tmp_path / "g.npz", board)
    (tmp_path / "e.csv").write_text("a,b\n")
    (tmp_path / "made").mkdir()
    before = sorted(tmp_path.rglob("*"))
    code, out, err = adar("data", *arguments.split())
    assert (code, out) == (2, "")
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before
    if "Usage:" not in err:
        assert len(err.strip().splitlines()) == 1
