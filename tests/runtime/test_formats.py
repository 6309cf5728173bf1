import csv
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from adar_runtime import Graph, SparseRows, read_graph, write_graph
from adar_runtime import prediction_files as predictions
from adar_runtime.errors import GraphError, MissingExtraError, UsageError
from adar_runtime.prediction_files import prediction_writer


def full_graph(*, sparse: bool) -> Graph:
    x = (
        SparseRows(np.array([0, 1, 1, 3]), np.array([1, 2, 0]), np.array([0.5, 2, 1]), (3, 4))
        if sparse
        else np.eye(3, 4)
    )
    return Graph(
        features=x,
        edge_index=np.array([[0, 1], [1, 2]]),
        labels=np.array([0, 1, -1]),
        train_mask=np.array([[True, False, False], [False, True, False]]),
        val_mask=np.array([[False, True, False], [True, False, False]]),
        test_mask=np.array([[False, False, True], [False, False, True]]),
        target_features=np.ones((2, 4)),
        class_names=("one", "two"),
    )


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_a_graph_survives_the_trip(tmp_path: Path, suffix: str, sparse: bool) -> None:
    graph, path = full_graph(sparse=sparse), tmp_path / f"graph{suffix}"
    write_graph(path, graph)
    back = read_graph(path)
    assert isinstance(back.features, SparseRows) == sparse
    assert np.array_equal(back.rows(0, 3), graph.rows(0, 3))
    assert back.class_names == graph.class_names
    for name in ("edge_index", "labels", "train_mask", "val_mask", "test_mask", "target_features"):
        assert np.array_equal(getattr(back, name), getattr(graph, name)), name
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_plain_pyg_data_is_read(tmp_path: Path) -> None:
    x, edges, mask = torch.rand(4, 3), torch.tensor([[0, 1], [1, 0]]), torch.tensor([True, False, True, True])
    torch.save(
        Data(x=x, edge_index=edges, y=torch.tensor([0, 1, 1, 0]), test_mask=mask, name="mine"),
        tmp_path / "g.pt",
    )
    graph = read_graph(tmp_path / "g.pt")
    assert np.array_equal(graph.features, x.numpy())
    assert graph.test_mask.tolist() == [mask.tolist()]


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["pickle", "torch", "in a Data"])
def test_a_pickle_bomb_does_not_go_off(tmp_path: Path, how: str) -> None:
    bomb, path = Bomb(tmp_path / "gone-off"), tmp_path / "bomb.pt"
    if how == "pickle":
        path.write_bytes(pickle.dumps(bomb))
    else:
        torch.save(bomb if how == "torch" else Data(x=torch.ones(1, 1), extra=bomb), path)
    with pytest.raises(GraphError, match="refused"):
        read_graph(path)
    assert not bomb.path.exists()


def test_a_pickled_array_in_an_npz_does_not_go_off(tmp_path: Path) -> None:
    bomb, path = Bomb(tmp_path / "gone-off"), tmp_path / "bomb.npz"
    np.savez(path, x=np.array([bomb], dtype=object), edge_index=np.zeros((2, 0), np.int64))
    with pytest.raises(GraphError, match="plain arrays"):
        read_graph(path)
    assert not bomb.path.exists()


def huge_header(path: Path) -> None:
    """An .npz whose x claims to have 10^15 rows."""
    header = (
        b"\x93NUMPY\x01\x00v\x00"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 8)}".ljust(117)
        + b"\n"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("graph.txt", b"", "ends in .npz or .pt"),
        ("graph", b"", "ends in .npz or .pt"),
        ("text.pt", b"this is no graph", "not a readable"),
        ("empty.pt", b"", "not a readable"),
        ("text.npz", b"this is no graph", "not a readable .npz"),
        ("empty.npz", b"", "not a readable .npz"),
        ("cut.npz", b"PK\x03\x04", "not a readable .npz"),
        ("huge.npz", huge_header, "not a readable .npz"),
        ("bare.npz", lambda path: np.savez(path, x=np.ones((2, 2))), "has no 'edge_index'; found x"),
        (
            "tensor.pt",
            lambda path: torch.save(torch.ones(3), path),
            "holds a Tensor, not a torch_geometric.data.Data",
        ),
        ("bare.pt", lambda path: torch.save(Data(x=torch.ones(2, 2)), path), "has no 'edge_index'"),
        (
            "words.pt",
            lambda path: torch.save(Data(x="words", edge_index=torch.zeros(2, 0).long()), path),
            "not numbers",
        ),
    ],
)
def test_a_file_that_is_no_graph_says_why(tmp_path: Path, name: str, content, message: str) -> None:
    path = tmp_path / name
    content(path) if callable(content) else path.write_bytes(content)
    with pytest.raises(GraphError) as error:
        read_graph(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="no such file"):
        read_graph(tmp_path / "graph.npz")


def test_predictions_in_every_format(tmp_path: Path) -> None:
    prediction, probability = np.array([1, 0]), np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    (tmp_path / "p.npz").write_bytes(prediction_writer(Path("p.npz"))(prediction, probability, None))
    with np.load(tmp_path / "p.npz") as written:
        assert np.array_equal(written["prediction"], prediction)
        assert np.array_equal(written["probability"], probability)
    assert prediction_writer(Path("p.csv"))(prediction, probability, None).decode().splitlines() == [
        "output,prediction,probability_0,probability_1",
        "0,1,0.25,0.75",
        "1,0,0.5,0.5",
    ]
    assert prediction_writer(Path("p.json"))(prediction, probability, None) == (
        b'{"prediction": [1, 0], "probability": [[0.25, 0.75], [0.5, 0.5]]}'
    )
    with pytest.raises(UsageError, match=r"\.npz, \.csv, \.json or \.parquet"):
        prediction_writer(Path("p.xlsx"))


def test_predictions_as_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    prediction, probability = np.array([1, 0]), np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    (tmp_path / "p.parquet").write_bytes(prediction_writer(Path("p.parquet"))(prediction, probability, None))
    assert parquet.read_table(tmp_path / "p.parquet").to_pydict() == {
        "output": [0, 1],
        "prediction": [1, 0],
        "probability_0": [0.25, 0.5],
        "probability_1": [0.75, 0.5],
    }


def test_predicted_classes_have_their_names(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    answers = np.array([1, 0]), np.array([[0.25, 0.75], [0.5, 0.5]], np.float32), ("safe", "mine")
    for suffix in (".npz", ".parquet"):
        (tmp_path / f"p{suffix}").write_bytes(prediction_writer(Path(f"p{suffix}"))(*answers))
    with np.load(tmp_path / "p.npz") as written:
        assert written["class_names"].tolist() == ["safe", "mine"]
    assert parquet.read_table(tmp_path / "p.parquet").to_pydict() == {
        "output": [0, 1],
        "prediction": [1, 0],
        "class": ["mine", "safe"],
        "probability_0": [0.25, 0.5],
        "probability_1": [0.75, 0.5],
    }
    assert prediction_writer(Path("p.csv"))(*answers).decode().splitlines() == [
        "output,prediction,class,probability_0,probability_1",
        "0,1,mine,0.25,0.75",
        "1,0,safe,0.5,0.5",
    ]
    assert json.loads(prediction_writer(Path("p.json"))(*answers))["class"] == ["mine", "safe"]


def test_many_rows_are_written_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    answers = random.integers(0, 2, 50), random.random((50, 2)).astype(np.float32), ("safe", "mine")
    write = prediction_writer(Path("p.csv"))
    whole = write(*answers)
    monkeypatch.setattr(predictions, "ROWS", 7)
    assert write(*answers) == whole
    assert len(whole.splitlines()) == 51


HOSTILE = ("=1+1", "@x", "-cmd", "a\x1b[2J", "two\nlines", 'quo"te,comma', "\ud800", "-1.5", "日本")


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".json", ".parquet"])
def test_names_of_classes_may_be_anything(suffix: str) -> None:
    count = len(HOSTILE)
    write = prediction_writer(Path(f"p{suffix}"))
    content = write(np.arange(count), np.eye(count, dtype=np.float32), HOSTILE)
    if suffix == ".csv":
        shown = [row[2] for row in csv.reader(content.decode().splitlines())][1:]
        kept = ['quo"te,comma', "\\ud800", "-1.5", "日本"]
        assert shown == ["'=1+1", "'@x", "'-cmd", "a\\x1b[2J", "two\\nlines", *kept]
    if suffix == ".json":
        assert tuple(json.loads(content)["class"]) == HOSTILE


def test_parquet_needs_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"adar-deploy\[parquet\]"):
        prediction_writer(Path("p.parquet"))
