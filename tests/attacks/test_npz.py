"""Hostile and damaged `.npz` files, and what each of them gets."""

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from adar_runtime import read_graph
from adar_runtime.errors import GraphError, UsageError

X, EDGES = np.ones((4, 10), np.float32), np.array([[0, 1], [1, 2]])
BASE = {"x": X, "edge_index": EDGES}


def save(**arrays: np.ndarray):
    return lambda path: np.savez(path, **BASE | arrays)


def sparse(shape: list[int]):
    parts = {"x_indptr": np.zeros(5, int), "x_indices": np.zeros(0, int), "x_data": np.zeros(0, np.float32)}
    return lambda path: np.savez(path, **parts, x_shape=np.array(shape), edge_index=EDGES)


def header(shape: str, descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00v\x00" + text


def members(compression: int = zipfile.ZIP_STORED, **contents: bytes):
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, content in contents.items():
                archive.writestr(name.replace("_npy", ".npy"), content)

    return make


def edited(local: int, central: int, value: int, size: int = 1):
    """A good file with a number changed in the headers of every member."""

    def make(path: Path) -> None:
        np.savez(path, **BASE)
        content = bytearray(path.read_bytes())
        for magic, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
            at = content.find(magic)
            while at >= 0:
                content[at + offset : at + offset + size] = struct.pack("<Q", value)[:size]
                at = content.find(magic, at + 4)
        path.write_bytes(content)

    return make


def raw_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, X)


def broken_lzma(path: Path) -> None:
    members(zipfile.ZIP_LZMA, x_npy=b"12345" * 100)(path)
    content = bytearray(path.read_bytes())
    content[45:60] = b"\xff" * 15
    path.write_bytes(content)


ATTACKS = {
    "an array that is no archive": (raw_array, "not a readable .npz"),
    "encrypted": (edited(6, 8, 1), "encrypted"),
    "a compression nobody knows": (edited(8, 10, 99), "compressed in an unknown way"),
    "damaged lzma": (broken_lzma, "compressed in an unknown way"),
    "sizes that lie": (edited(22, 24, 2**31, 4), "smaller than it claims"),
    "a side of 2^70": (members(x_npy=header(f"({2**70}, 8)")), "claims the shape"),
    "more than there is": (members(x_npy=header("(1000, 1000)")), "claims the shape"),
    "less than there is": (members(x_npy=header("(1, 1)") + b"0" * 400), "claims the shape"),
    "negative sides": (members(x_npy=header("(-2, -2)") + b"0" * 16), "claims the shape"),
    "items of no size": (members(x_npy=header("(10000000000000,)", "<U0")), "ADAR_MAX_BYTES"),
    "objects": (members(x_npy=header("(1, 1)", "|O") + b"0" * 8), "Python objects"),
    "columns with names": (members(x_npy=b"\x93NUMPY\x03\x00" + b"0" * 200), "version"),
    "members that are no arrays": (members(x_shape=b"1", x_data=b"1", x_indptr=b"1"), "has no 'x'"),
    "a name that moves the cursor": (lambda path: np.savez(path, **{"\x1b[2J": X}), "has no 'x'"),
    "names that are one string": (save(class_names=np.array("abc")), "list of strings"),
    "names that are numbers": (save(class_names=np.arange(3)), "list of strings"),
    "10^13 classes": (save(y=np.array([0, 1, 10**13, 0])), "up to 100,000"),
    "10^12 columns": (sparse([4, 10**12]), "up to 1,000,000"),
    "a label beyond the descriptions": (save(y=np.array([0, 1, 2, 5]), target_x=X[:3]), "describes 3"),
    "no splits": (save(test_mask=np.zeros((0, 4), bool)), "no splits"),
    "splits that differ": (
        save(train_mask=np.ones((2, 4), bool), val_mask=np.ones((3, 4), bool)),
        "train_mask 2, val_mask 3",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_one_graph_error(name: str, tmp_path: Path) -> None:
    make, message = ATTACKS[name]
    make(tmp_path / "g.npz")
    with pytest.raises(GraphError) as error:
        read_graph(tmp_path / "g.npz")
    assert message in str(error.value)


def test_what_a_graph_does_not_have_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of zeros beside the graph, and room for a thousand bytes."""
    np.savez_compressed(tmp_path / "g.npz", **BASE, unused=np.zeros(10**6, np.uint8))
    monkeypatch.setenv("ADAR_MAX_BYTES", "1000")
    assert read_graph(tmp_path / "g.npz").nodes == 4
    monkeypatch.setenv("ADAR_MAX_BYTES", "100")
    with pytest.raises(GraphError, match="ADAR_MAX_BYTES"):
        read_graph(tmp_path / "g.npz")
    monkeypatch.setenv("ADAR_MAX_BYTES", "much")
    with pytest.raises(UsageError, match="whole number"):
        read_graph(tmp_path / "g.npz")


def test_a_folder_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "g.npz").mkdir()
    with pytest.raises(GraphError, match="this is a folder"):
        read_graph(tmp_path / "g.npz")
    with pytest.raises(GraphError, match="too long"):
        read_graph(tmp_path / ("g" * 300 + ".npz"))
