"""PyG's own classes on raw files that the tests write, without a network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from adar_runtime import SparseRows
from adar_runtime.errors import GraphError
from adar_train import load
from adar_train.data.pyg import SETS, load_pyg

NODES = 12


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAR_DATA", str(tmp_path))
    return tmp_path / "pyg"


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def write_minesweeper(root: Path, random: np.random.Generator) -> dict[str, np.ndarray]:
    raw = {
        "node_features": random.random((NODES, 7), np.float32),
        "edges": np.array([[0, 1], [1, 2], [5, 0]]),
        "node_labels": np.arange(NODES) % 2,
        **{f"{name}_masks": random.random((10, NODES)) < 0.5 for name in ("train", "val", "test")},
    }
    folder = root / "HeterophilousGraphDataset" / "minesweeper" / "raw"
    folder.mkdir(parents=True)
    np.savez(folder / "minesweeper.npz", **raw)
    return raw


def test_a_set_with_splits(root: Path, random: np.random.Generator) -> None:
    raw = write_minesweeper(root, random)
    for _ in range(2):  # from the raw file, then from the processed file
        graph = load("pyg:HeterophilousGraphDataset/Minesweeper")
        assert np.array_equal(graph.features, raw["node_features"])
        assert np.array_equal(graph.labels, raw["node_labels"])
        assert {(0, 1), (1, 0), (1, 2), (2, 1), (5, 0), (0, 5)} == {*map(tuple, graph.edge_index.T.tolist())}
        for name in ("train", "val", "test"):
            assert np.array_equal(getattr(graph, f"{name}_mask"), raw[f"{name}_masks"])


def test_a_set_without_splits_and_with_bags_of_words(root: Path) -> None:
    folder = root / "Amazon" / "Computers" / "raw"
    folder.mkdir(parents=True)
    np.savez(
        folder / "amazon_electronics_computers.npz",
        adj_data=np.ones(2, np.float32), adj_indices=[1, 2], adj_indptr=[0, 1, 2, *[2] * 8],
        adj_shape=(10, 10), attr_data=np.ones(3, np.float32), attr_indices=[4, 30, 2],
        attr_indptr=[0, 2, *[2] * 8, 3], attr_shape=(10, 40), labels=np.arange(10) % 3,
    )  # fmt: skip
    graph = load_pyg("pyg:amazon/computers")  # names are case-insensitive
    assert isinstance(graph.features, SparseRows)
    assert [tuple(at) for at in np.argwhere(graph.rows(0, 10))] == [(0, 4), (0, 30), (9, 2)]
    masks = np.stack([graph.train_mask, graph.val_mask, graph.test_mask])
    assert masks.shape == (3, 10, 10)
    assert (masks.sum(axis=0) == 1).all()
    assert masks.sum(axis=2).tolist() == [[6] * 10, [2] * 10, [2] * 10]
    assert not (masks[0, 0] == masks[0, 1]).all()
    assert np.array_equal(load_pyg("pyg:Amazon/Computers").train_mask, graph.train_mask)


def test_one_test_mask_for_many_splits(root: Path, random: np.random.Generator) -> None:
    folder = root / "WikiCS" / "raw"
    folder.mkdir(parents=True)
    masks = {f"{name}_masks": (random.random((20, NODES)) < 0.5).tolist() for name in ("train", "val")}
    raw = {
        "features": random.random((NODES, 3)).tolist(),
        "labels": [0, 1, 2] * 4,
        "links": [[1], *[[]] * (NODES - 1)],
        "test_mask": [True, *[False] * (NODES - 1)],
        "stopping_masks": masks["val_masks"],
        **masks,
    }
    (folder / "data.json").write_text(json.dumps(raw))
    graph = load_pyg("pyg:WikiCS")
    assert graph.train_mask.tolist() == masks["train_masks"]
    assert graph.test_mask.tolist() == [raw["test_mask"]] * 20


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path) -> None:
    """A process whose only way to the network is a proxy that does not exist."""
    code = (
        "from adar_runtime.errors import GraphError\n"
        "from adar_train import load\n"
        "try: load('pyg:HeterophilousGraphDataset/Minesweeper')\n"
        "except GraphError as error: print(error)"
    )
    nowhere = {"https_proxy": "http://127.0.0.1:9", "ADAR_DATA": str(tmp_path)}
    done = run_with(code, nowhere)
    (line,) = done.stdout.splitlines()
    assert line.startswith("pyg:HeterophilousGraphDataset/Minesweeper could not be downloaded (")
    folder = tmp_path / "pyg/HeterophilousGraphDataset/minesweeper/raw"
    assert f"put minesweeper.npz into {folder}, or give the graph as a .npz file" in line


def run_with(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize("broken", [ConnectionResetError("reset by peer"), KeyboardInterrupt()])
def test_an_incomplete_download_is_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch, broken: BaseException
) -> None:
    def stops_halfway(url: str, folder: str) -> None:
        Path(folder, url.rpartition("/")[2]).write_bytes(b"PK")
        raise broken

    monkeypatch.setattr("torch_geometric.datasets.heterophilous_graph_dataset.download_url", stops_halfway)
    expected = GraphError if isinstance(broken, Exception) else KeyboardInterrupt
    with pytest.raises(expected):
        load_pyg("pyg:HeterophilousGraphDataset/Tolokers")
    assert not [path for path in root.rglob("*") if path.is_file()]


def test_damaged_files_are_named(root: Path, random: np.random.Generator) -> None:
    write_minesweeper(root, random)
    (file,) = root.rglob("minesweeper.npz")
    file.write_bytes(b"PK half of it")
    with pytest.raises(GraphError, match=r"cannot be read .* delete .*HeterophilousGraphDataset"):
        load_pyg("pyg:HeterophilousGraphDataset/Minesweeper")


class Surprise:
    def __reduce__(self) -> tuple:
        return Path.touch, (Path("ran"),)


def test_a_processed_file_that_would_run_code_is_refused(
    root: Path, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyG falls back to unrestricted unpickling; load_pyg does not."""
    monkeypatch.chdir(root.parent)
    write_minesweeper(root, random)
    load_pyg("pyg:HeterophilousGraphDataset/Minesweeper")
    (file,) = root.rglob("data.pt")
    torch.save(Surprise(), file)
    with pytest.raises(GraphError, match="cannot be read"):
        load_pyg("pyg:HeterophilousGraphDataset/Minesweeper")
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pyg:", "one of Actor, Amazon, "),
        ("pyg:QM9", "one of Actor, Amazon, "),
        ("pyg:Planetoid", "choose pyg:Planetoid/Cora, pyg:Planetoid/CiteSeer, pyg:Planetoid/PubMed"),
        ("pyg:Planetoid/Chess", "choose pyg:Planetoid/Cora"),
        ("pyg:WikiCS/Cora", "choose pyg:WikiCS"),
        ("Cora", "pyg:Planetoid/Cora"),
    ],
)
def test_an_unknown_name_lists_the_choices(name: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        load(name)


def test_every_listed_name_exists_in_pyg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each data set starts its download."""
    from torch_geometric import datasets

    for class_name, names in SETS.items():
        monkeypatch.setattr(getattr(datasets, class_name), "download", refuse)
        for name in names or [None]:
            with pytest.raises(GraphError, match=r"could not be downloaded \(no network\)"):
                load_pyg("pyg:" + "/".join(filter(None, [class_name, name])))


def refuse(_: object) -> None:
    raise OSError("no network")
