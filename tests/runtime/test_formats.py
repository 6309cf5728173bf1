"""Graph files: what is written is read again, and a file that is not a graph is an error that says why."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from adar_runtime import Graph, SparseRows, read_graph, write_graph
from adar_runtime.errors import AdarWarning, GraphError, UsageError
from adar_runtime.graph import EncodedColumn, FeatureEncoding
from adar_runtime.graph.formats import FORMATS, GraphFormat


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
        ids=np.array(["a", "ü", "c d"]),
        feature_encoding=None
        if sparse
        else FeatureEncoding((EncodedColumn("é", "category", ("x", "y", "z"), missing=True),), id="i"),
    )


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_a_written_graph_is_read_again(tmp_path: Path, suffix: str, sparse: bool) -> None:
    graph, path = full_graph(sparse=sparse), tmp_path / f"graph{suffix}"
    write_graph(path, graph)
    back = read_graph(path)
    assert isinstance(back.features, SparseRows) == sparse
    assert np.array_equal(back.rows(0, 3), graph.rows(0, 3))
    assert back.class_names == graph.class_names
    assert back.feature_encoding == graph.feature_encoding
    assert (back.ids.tolist(), back.ids.dtype.kind) == (["a", "ü", "c d"], "U")
    for name in ("edge_index", "labels", "train_mask", "val_mask", "test_mask", "target_features"):
        assert np.array_equal(getattr(back, name), getattr(graph, name)), name
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_pyg_data_is_read(tmp_path: Path) -> None:
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
def test_a_pickle_bomb_does_not_run(tmp_path: Path, how: str) -> None:
    bomb, path = Bomb(tmp_path / "code-was-run"), tmp_path / "bomb.pt"
    if how == "pickle":
        path.write_bytes(pickle.dumps(bomb))
    else:
        torch.save(bomb if how == "torch" else Data(x=torch.ones(1, 1), extra=bomb), path)
    with pytest.raises(GraphError, match="refused"):
        read_graph(path)
    assert not bomb.path.exists()


def test_a_pickled_array_in_an_npz_does_not_run(tmp_path: Path) -> None:
    bomb, path = Bomb(tmp_path / "code-was-run"), tmp_path / "bomb.npz"
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
        ("text.pt", b"not a graph", "not a readable"),
        ("empty.pt", b"", "not a readable"),
        ("text.npz", b"not a graph", "not a readable .npz"),
        ("empty.npz", b"", "not a readable .npz"),
        ("cut.npz", b"PK\x03\x04", "not a readable .npz"),
        ("huge.npz", huge_header, "not a readable .npz"),
        (
            "bare.npz",
            lambda path: np.savez(path, x=np.ones((2, 2))),
            "key 'edge_index' not found; the file has x",
        ),
        (
            "tensor.pt",
            lambda path: torch.save(torch.ones(3), path),
            "holds a Tensor, not a torch_geometric.data.Data",
        ),
        ("bare.pt", lambda path: torch.save(Data(x=torch.ones(2, 2)), path), "key 'edge_index' not found"),
        (
            "words.pt",
            lambda path: torch.save(Data(x="words", edge_index=torch.zeros(2, 0).long()), path),
            "not numbers",
        ),
    ],
)
def test_a_file_that_is_not_a_graph_is_an_error(tmp_path: Path, name: str, content, message: str) -> None:
    path = tmp_path / name
    content(path) if callable(content) else path.write_bytes(content)
    with pytest.raises(GraphError) as error:
        read_graph(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="no such file"):
        read_graph(tmp_path / "graph.npz")


def test_a_new_graph_format_is_one_line_in_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A toy format: the features as text, without edges."""

    def read(path: Path) -> Graph:
        return Graph(np.loadtxt(path, ndmin=2), np.zeros((2, 0), np.int64))

    def encode(graph: Graph) -> bytes:
        return "\n".join(" ".join(map(str, row)) for row in graph.rows(0, graph.nodes)).encode()

    monkeypatch.setitem(FORMATS, ".toy", GraphFormat(read, encode))
    write_graph(tmp_path / "g.toy", full_graph(sparse=False))
    assert np.array_equal(read_graph(tmp_path / "g.toy").features, np.eye(3, 4))
    with pytest.raises(UsageError, match=r"ends in \.npz, \.pt or \.toy; got \.xlsx"):
        write_graph(tmp_path / "g.xlsx", full_graph(sparse=False))


X, EDGES = np.ones((4, 2), np.float32), np.array([[0, 1], [1, 2]])


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("edge_attr", r"edge_attr \(edge features are not used; one weight per edge belongs in edge_weight"),
        ("weights", r"weights \(rename it to edge_weight\)"),
        ("labels", r"labels \(rename it to y\)"),
        ("train_idx", r"train_idx \(rename it to train_mask\)"),
        ("anything", "not used: anything$"),
    ],
)
def test_a_key_that_is_not_used_gets_a_warning(tmp_path: Path, suffix: str, key: str, message: str) -> None:
    arrays = {"x": X, "edge_index": EDGES, key: np.ones(2)}
    if suffix == ".npz":
        np.savez(tmp_path / "g.npz", **arrays)
    else:
        torch.save(
            Data(**{name: torch.from_numpy(value) for name, value in arrays.items()}), tmp_path / "g.pt"
        )
    with pytest.warns(AdarWarning, match=message) as found:
        read_graph(tmp_path / f"g{suffix}")
    assert len(found) == 1


def test_many_unused_keys_are_one_short_warning(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", x=X, edge_index=EDGES, **{f"k{i:03}": X for i in range(100)})
    with pytest.warns(AdarWarning, match=r"k007 and 92 more$"):
        read_graph(tmp_path / "g.npz")


def test_a_missing_key_names_the_key_that_was_meant(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", features=X, edge_index=EDGES)
    with pytest.raises(GraphError, match=r"key 'x' not found; .*: rename features to x"):
        read_graph(tmp_path / "g.npz")


def test_codes_as_labels_get_a_warning(tmp_path: Path) -> None:
    x, y = np.ones((5, 1), np.float32), np.arange(0, 500, 100)
    np.savez(tmp_path / "g.npz", x=x, edge_index=EDGES, y=y)
    with pytest.warns(AdarWarning, match=r"5 different labels up to 400, so 401 classes: number .* 0 to 4"):
        assert read_graph(tmp_path / "g.npz").targets == 401
    np.savez(tmp_path / "g.npz", x=x, edge_index=EDGES, y=y, class_names=np.arange(401).astype(str))
    assert read_graph(tmp_path / "g.npz").targets == 401  # named: no warning, which would be an error here
    np.savez(tmp_path / "g.npz", x=x, edge_index=EDGES, y=np.array([0, 6, 6, -1, 3]))
    assert read_graph(tmp_path / "g.npz").targets == 7  # a small graph need not have all classes


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_integer_ids_stay_integers(tmp_path: Path, suffix: str) -> None:
    write_graph(tmp_path / f"g{suffix}", Graph(np.eye(2), np.zeros((2, 0), np.int64), ids=[2**60, -5]))
    ids = read_graph(tmp_path / f"g{suffix}").ids
    assert (ids.tolist(), ids.dtype) == ([2**60, -5], np.int64)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", "a"], "ids contains 'a' twice, at nodes 0 and 2"),
        ([1, 1, 2], "ids contains 1 twice"),
        (["a", "", "b"], r"ids\[1\] is empty"),
        (["a", "b"], r"ids has shape \[2\], not one id for each of 3 nodes"),
        ([0.5, 1.5, 2.5], "ids holds float64, not integers or strings"),
        (["a", "b", "\ud800"], "not valid Unicode"),
        (np.array(["a", None, "b"], object), "ids must be integers or strings"),
        (np.array([0x110000, 1, 2], np.uint32).view("U1"), "not valid Unicode"),
    ],
)
def test_ids_are_checked(tmp_path: Path, ids: object, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph(np.eye(3), np.zeros((2, 0), np.int64), ids=ids)
    if isinstance(ids, list) and message != "not valid Unicode":
        np.savez(tmp_path / "g.npz", x=np.eye(3), edge_index=np.zeros((2, 0), np.int64), ids=np.array(ids))
        with pytest.raises(GraphError, match=rf"g\.npz: {message}"):
            read_graph(tmp_path / "g.npz")


def test_repeated_references_to_a_long_id_are_counted_first(tmp_path: Path) -> None:
    """A pickle repeats a text at almost no cost; an array of strings has the longest length for each."""
    graph = Data(x=torch.eye(20_000, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64))
    graph.ids = ["x" * 200_000] * 20_000
    torch.save(graph, tmp_path / "g.pt")
    with pytest.raises(GraphError, match=r"g\.pt: ids would bring the arrays of the graph above"):
        read_graph(tmp_path / "g.pt")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"columns": 1}', "5", '{"columns": [], "both_ways": false, "labels": "words"}']
)
def test_a_damaged_encoding_is_an_error(tmp_path: Path, text: str) -> None:
    np.savez(
        tmp_path / "g.npz",
        x=np.eye(2),
        edge_index=np.zeros((2, 0), np.int64),
        feature_encoding=np.array(text),
    )
    with pytest.raises(GraphError, match=r"g\.npz: feature_encoding cannot be read"):
        read_graph(tmp_path / "g.npz")
