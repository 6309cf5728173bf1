"""Hostile and odd `.pt` files: what each of them gets, and which odd ones are read all the same."""

import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from adar_runtime import read_graph
from adar_runtime.errors import GraphError

X, EDGES = torch.ones(4, 10), torch.tensor([[0, 1], [1, 2]])


def save(path: Path, **entries: object) -> Path:
    torch.save(Data(**{"x": X, "edge_index": EDGES} | entries), path)
    return path


def tall(rows: int) -> torch.Tensor:
    """A sparse matrix whose row pointers alone would fill the memory."""
    return torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.ones(1), (rows, 10), check_invariants=True)


ATTACKS = {
    "a view of one number, 4 TB large": ({"x": torch.ones(1, 1).expand(10**8, 10**4)}, "ADAR_MAX_BYTES"),
    "labels that are one number": ({"y": torch.ones(1, dtype=torch.long).expand(10**11)}, "ADAR_MAX_BYTES"),
    "sparse, with 10^13 rows": ({"x": tall(10**13)}, "ADAR_MAX_BYTES"),
    "sparse, of three dimensions": ({"x": torch.ones(2, 2, 2).to_sparse()}, "not [rows, columns]"),
    "sparse where it may not be": ({"target_x": torch.eye(10).to_sparse()}, "only x may be one"),
    "without content": ({"x": torch.ones(3, 2, device="meta")}, "without content"),
    "complex": ({"x": torch.ones(4, 10, dtype=torch.complex64)}, "not numbers"),
    "lists of lists": ({"x": [[1, 2], [3]]}, "not numbers in a tensor"),
    "names that are a number": ({"class_names": 3}, "list of strings"),
    "names that are one string": ({"class_names": "abc"}, "list of strings"),
    "a mask of words": ({"train_mask": ["yes"] * 4}, "not booleans"),
    "a level that goes on and on": ({"level": "x" * 10**5}, "…"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_one_graph_error(name: str, tmp_path: Path) -> None:
    entries, message = ATTACKS[name]
    with pytest.raises(GraphError) as error:
        read_graph(save(tmp_path / "g.pt", **entries))
    assert message in str(error.value)
    assert len(str(error.value)) < 500


def beta(make) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


ODD = {
    "PyG's adj_t": {"adj_t": beta(torch.eye(4).to_sparse_csr)},
    "bfloat16 with a gradient": {"x": X.bfloat16().requires_grad_()},
    "float8": {"x": X.to(torch.float8_e4m3fn)},
    "a negative view": {"x": torch.complex(X, -X).conj().imag},
    "a mask as a list": {"train_mask": [True] * 4},
    "unknown things of any size": {"a": torch.ones(1).expand(10**13), "b": torch.ones(3, device="meta")},
    "sparse in columns, bfloat16": {"x": beta(X.bfloat16().to_sparse_csc)},
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_graph_is_read(name: str, tmp_path: Path) -> None:
    graph = read_graph(save(tmp_path / "g.pt", **ODD[name]))
    assert np.array_equal(graph.rows(0, 4), X)


def test_a_compressed_archive_has_no_more_in_it_than_is_allowed(tmp_path: Path, monkeypatch) -> None:
    """Deflate makes a thousand bytes of one; PyTorch writes none, and believes all."""
    save(tmp_path / "g.pt", x=torch.zeros(1000, 100))
    with zipfile.ZipFile(tmp_path / "g.pt") as old, zipfile.ZipFile(tmp_path / "z.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name), zipfile.ZIP_DEFLATED)
    monkeypatch.setenv("ADAR_MAX_BYTES", "100000")
    with pytest.raises(GraphError, match="more than 100,000 bytes"):
        read_graph(tmp_path / "z.pt")


def test_a_bare_pickle_that_wants_memory_is_refused(tmp_path: Path) -> None:
    """PyTorch's format before 1.6 says in a pickle how large its storages are to be."""
    path = tmp_path / "g.pt"
    torch.save(Data(x=X, edge_index=EDGES), path, _use_new_zipfile_serialization=False)
    with pytest.raises(GraphError, match="refused"):
        read_graph(path)
    path.write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(GraphError, match="refused"):
        read_graph(path)
