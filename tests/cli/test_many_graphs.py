"""adar-deploy run on files of many graphs: `.npz` with node_ptr, and Parquet with a row for each graph."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from adar_deploy.inference import Failure
from adar_deploy.ray_pool import GraphActor, Item, PoolSettings, Task
from adar_export import export_bundle
from adar_runtime import Euler, Final, load
from adar_runtime.errors import GraphError
from adar_runtime.evaluation.evaluate import Subject, evaluate
from adar_runtime.graph import GRAPH, Graph
from adar_runtime.graph.formats import count_graphs, read_graphs
from adar_train import ModelConfig
from adar_train.untrained import trial_run

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def as_table(path: Path, **changes: object) -> Path:
    """The graphs of a file as a table with one row for each."""
    graphs = read_graphs(path)
    columns = {
        "x": [graph.rows(0, graph.nodes).tolist() for graph in graphs],
        "source": [graph.edge_index[0].tolist() for graph in graphs],
        "target": [graph.edge_index[1].tolist() for graph in graphs],
        "y": [int(graph.labels[0]) for graph in graphs],  # type: ignore[index]
    } | changes
    table = path.with_suffix(".parquet")
    parquet.write_table(pyarrow.table({k: v for k, v in columns.items() if v is not None}), table)
    return table


def test_each_graph_has_the_prediction_of_a_run_alone(
    adar, many_graphs: Path, graph_bundle: Path, tmp_path: Path
) -> None:
    bundle = load(graph_bundle, threads=1)
    expected = [bundle.run(graph, 4) for graph in read_graphs(many_graphs)]
    for path in (many_graphs, as_table(many_graphs)):
        words = ["run", path, "--bundle", graph_bundle, "--max-steps", 4, "--output", "answers.json"]
        code, out, err = adar(*words, "--json")
        assert (code, err) == (0, "")
        facts = json.loads(out)
        assert (facts["graphs"], facts["nodes"]) == (10, 65)
        assert (facts["metrics"], facts["unscored"].partition(":")[0]) == ({}, "not scored")
        found = json.loads((tmp_path / "answers.json").read_text())
        assert found["output"] == list(range(10))
        assert found["prediction"] == [int(one.predictions[0]) for one in expected]
        probabilities = [one.probabilities[0] for one in expected]  # type: ignore[index]
        np.testing.assert_allclose(list(found.values())[-1], probabilities, atol=1e-5)
    code, out, _ = adar("run", many_graphs, "--bundle", graph_bundle, "--max-steps", 2)
    assert (code, "graphs" in out) == (0, True)


def test_files_of_many_graphs_and_of_one_run_together(
    adar, many_graphs: Path, graph_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.npz").write_bytes(b"broken")
    words = ["run", many_graphs, "broken.npz", "--bundle", graph_bundle, "--max-steps", 2]
    code, out, err = adar(*words, "--output", "{name}.csv", "--json")
    assert (code, [one.get("graphs") for one in json.loads(out)]) == (2, [10, None])
    assert "broken.npz" in err
    assert len((tmp_path / "many.csv").read_text().splitlines()) == 11
    code, _, err = adar("run", many_graphs, "--bundle", graph_bundle, "--nodes", many_graphs, "-o", "a.csv")
    assert code == 2


def test_a_graph_that_fails_does_not_stop_the_others(
    adar, many_graphs: Path, graph_bundle: Path, tmp_path: Path
) -> None:
    rows = [[[3e38] * 3] * 3 if number == 4 else [[1.0] * 3] * 3 for number in range(10)]
    ends = [[0, 1]] * 10
    path = as_table(many_graphs, x=rows, source=ends, target=ends)
    code, _, err = adar("run", path, "--bundle", graph_bundle, "--max-steps", 3, "--output", "answers.json")
    assert (code, "graph 4:" in err) == (2, True)
    found = json.loads((tmp_path / "answers.json").read_text())
    assert found["output"] == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_graphs_that_describe_other_classes_are_refused(adar, tmp_path: Path) -> None:
    """The class names of one graph were written for all of them."""
    graphs = [
        Data(
            x=torch.eye(3),
            edge_index=torch.tensor([[0], [2]]),
            target_x=torch.eye(3)[order],
            class_names=["abc"[number] for number in order],
            y=torch.tensor([0]),
        )
        for order in ([0, 1, 2], [2, 0, 1], [0, 1])
    ]
    torch.save(graphs, "others.pt")
    config = ModelConfig(3, None, hidden=16, proxies=4, level=GRAPH)
    export_bundle(
        trial_run(tmp_path / "run", read_graphs("others.pt")[0], config), tmp_path / "b", steps=(1,)
    )
    words = ["--bundle", "b", "--max-steps", 2, "--output", "answers.csv"]
    for other in graphs[1:]:
        torch.save([graphs[0], other], "others.pt")
        code, _, err = adar("run", "others.pt", *words)
        assert (code, "describe different classes" in err, Path("answers.csv").exists()) == (2, True, False)
        parts = tuple(Item(Path("others.pt"), tmp_path / f"{part}.csv", part, 1) for part in range(2))
        for [part] in GraphActor(PoolSettings(Path("b"), 2, Final(), Euler())).run(Task(parts)):
            assert isinstance(part, Failure)
            assert "describe different classes" in part.error
    torch.save([graphs[1], graphs[1]], "same.pt")
    assert adar("run", "same.pt", *words)[0] == 0


def test_a_model_of_nodes_has_no_prediction_for_each_graph(adar, many_graphs: Path, tmp_path: Path) -> None:
    """A .npz had 10 numbers of graphs beside the predictions of 65 nodes; a .csv was a traceback."""
    graph = Graph(np.zeros((2, 3), np.float32), np.zeros((2, 0), np.int64), labels=[0, 1])
    run = trial_run(tmp_path / "run", graph, ModelConfig(3, 2, hidden=16, proxies=4))
    export_bundle(run, tmp_path / "b", steps=(1,))
    for name in ("answers.npz", "answers.csv"):
        code, _, err = adar("run", many_graphs, "--bundle", "b", "--max-steps", 2, "--output", name)
        assert (code, len(err.splitlines()), Path(name).exists()) == (2, 1, False)
        assert "the bundle predicts for each node" in err


def test_a_table_gives_the_graphs_of_the_other_format(many_graphs: Path) -> None:
    table = as_table(many_graphs)
    assert count_graphs(table) == count_graphs(many_graphs) == 10
    for one, other in zip(read_graphs(table), read_graphs(many_graphs), strict=True):
        assert np.array_equal(one.rows(0, one.nodes), other.rows(0, other.nodes))
        assert np.array_equal(one.edge_index, other.edge_index)
        assert one.labels == other.labels


INTEGERS = [[0, 1]] * 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": None}, "the column source is missing"),
        ({"x": [[1.0, 2.0]] * 10}, "x has to be a column of lists"),
        ({"x": [[[1.0], [1.0, 2.0]]] * 10}, "differ in length"),
        ({"x": [[["a"], ["b"]]] * 10}, "x holds string, not numbers"),
        ({"source": INTEGERS, "target": [[0]] * 10}, "source and target differ in length"),
        ({"source": [[0.5]] * 10, "target": [[0.5]] * 10}, "not integers"),
        ({"source": [[0, None]] * 10, "target": INTEGERS}, "source has missing values"),
        ({"source": [None] * 9 + [[1]]}, "without missing values"),
        ({"source": [[0, 99]] * 10, "target": INTEGERS}, "99"),
        ({"y": [0] * 9 + [None]}, "y has missing values"),
    ],
)
def test_tables_that_are_no_graphs(many_graphs: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        read_graphs(as_table(many_graphs, **changes))


def test_values_of_lists_are_counted_before_they_are_read(tmp_path: Path) -> None:
    """Equal values take no space in the file: 9 million take some kB, and 288 MB while they are read."""
    ones = pyarrow.array(np.ones(9_000_000, np.float32))
    inner = pyarrow.ListArray.from_arrays(pyarrow.array([0, len(ones)], pyarrow.int32()), ones)
    column = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1], pyarrow.int32()), inner)
    ends = pyarrow.array([[0]])
    path = tmp_path / "bomb.parquet"
    parquet.write_table(
        pyarrow.table({"x": column, "source": ends, "target": ends}), path, compression="zstd"
    )
    del ones, inner, column
    assert path.stat().st_size < 2**20
    with pytest.raises(GraphError, match="ADAR_MAX_BYTES"):
        read_graphs(path)


def test_a_list_of_pyg_graphs_runs(adar, many_graphs: Path, graph_bundle: Path, tmp_path: Path) -> None:
    data = [
        Data(
            x=torch.from_numpy(graph.rows(0, graph.nodes)),
            edge_index=torch.from_numpy(graph.edge_index),
            y=torch.from_numpy(graph.labels),
        )
        for graph in read_graphs(many_graphs)
    ]
    torch.save(data, tmp_path / "list.pt")
    torch.save(data[0], tmp_path / "one.pt")
    assert (count_graphs(tmp_path / "list.pt"), count_graphs(tmp_path / "one.pt")) == (10, None)
    words = ["--bundle", graph_bundle, "--max-steps", 3, "--output", "{name}.json"]
    assert adar("run", "list.pt", many_graphs, *words)[0] == 0
    assert (tmp_path / "list.json").read_text() == (tmp_path / "many.json").read_text()


def test_pyg_graphs_without_labels_run(adar, many_graphs: Path, graph_bundle: Path, tmp_path: Path) -> None:
    """A list in which no graph has a label, or some have one, has the same predictions."""
    graphs = read_graphs(many_graphs)
    for name, labelled in (("all", range(10)), ("some", [0, 3, 4]), ("none", [])):
        data = [
            Data(x=torch.from_numpy(g.features), edge_index=torch.from_numpy(g.edge_index)) for g in graphs
        ]
        for index in labelled:
            data[index].y = torch.from_numpy(graphs[index].labels)
        torch.save(data, tmp_path / f"{name}.pt")
        words = ["--bundle", graph_bundle, "--max-steps", 3, "--output", f"{name}.json"]
        assert adar("run", f"{name}.pt", *words)[0] == 0
    answers = {(tmp_path / f"{name}.json").read_text() for name in ("all", "some", "none")}
    assert len(answers) == 1
    assert {graph.level for graph in read_graphs(tmp_path / "some.pt")} == {GRAPH}


def test_graphs_with_other_features_are_refused_once(adar, graph_bundle: Path, tmp_path: Path) -> None:
    """One line, before anything is computed for each graph: not one line for each of 100,000 graphs."""
    pointers = {"node_ptr": np.arange(4), "edge_ptr": np.zeros(4, int), "edge_index": np.zeros((2, 0), int)}
    np.savez(tmp_path / "g.npz", x=np.ones((3, 99)), y=np.arange(3) % 2, **pointers)
    code, _, err = adar("run", "g.npz", "--bundle", graph_bundle)
    assert (code, err.count("\n"), "graph 0" in err) == (2, 1, False)
    assert "99 features" in err


def test_other_features_are_found_before_the_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adar_runtime.evaluation.evaluate.choose_outputs", lambda *_: pytest.fail("hashed"))
    graph = Graph([[1.0]], np.zeros((2, 0), int), labels=[0], level=GRAPH)
    subject = Subject(lambda *_: [], Final, features=5, level=GRAPH, regression=False, targets=2)
    with pytest.raises(GraphError, match="has 1 features and the model takes 5"):
        evaluate("g", [graph], subject, [8])


def test_a_list_of_graphs_with_a_label_for_each_node_is_one_error(
    adar, graph_bundle: Path, tmp_path: Path
) -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    graphs = [Data(x=torch.ones(3, 4), edge_index=edges, y=torch.tensor([0, 1, 0])) for _ in range(2)]
    torch.save(graphs, tmp_path / "nodes.pt")
    code, _, err = adar("run", "nodes.pt", "--bundle", graph_bundle)
    assert (code, err.count("\n")) == (2, 1)
    assert "only graphs with one label each run together" in err
