"""Hostile and damaged `.npz` files, and the error of each."""

import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from adar_runtime import read_graph
from adar_runtime.errors import AdarWarning, GraphError, UsageError
from tests.attacks.payload import Touch, assert_no_code_ran, evil

X, EDGES = np.ones((4, 10), np.float32), np.array([[0, 1], [1, 2]])
BASE = {"x": X, "edge_index": EDGES}


def save(**arrays: np.ndarray):
    return lambda path: np.savez(path, **BASE | arrays)


def sparse(shape: list[int]):
    parts = {"x_indptr": np.zeros(5, int), "x_indices": np.zeros(0, int), "x_data": np.zeros(0, np.float32)}
    return lambda path: np.savez(path, **parts, x_shape=np.array(shape), edge_index=EDGES)


def header(shape: str, descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def members(compression: int = zipfile.ZIP_STORED, **contents: bytes):
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, content in contents.items():
                archive.writestr(name.replace("_npy", ".npy"), content)

    return make


def edited(local: int, central: int, value: int, size: int = 1):
    """A valid file with one number changed in the headers of every member."""

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


def objects(path: Path) -> None:
    np.savez(path, **BASE | {"x": np.array([[Touch()]], dtype=object)}, allow_pickle=True)


def objects_among_numbers(path: Path) -> None:
    """A structured array of a plain column and a pickled column."""
    mixed = np.array([(1.0, Touch())], dtype=[("a", "<f4"), ("b", "O")])
    np.savez(path, **BASE | {"x": mixed}, allow_pickle=True)


def renamed(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """A file of another format with this name."""

    def make_renamed(path: Path) -> None:
        make(path.with_suffix(".other"))
        path.with_suffix(".other").rename(path)

    return make_renamed


def zeros(megabytes: int) -> Callable[[Path], None]:
    """A zip bomb: zeros compress to a thousandth."""

    def make(path: Path) -> None:
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("x.npy", "w", force_zip64=True) as file,
        ):
            file.write(header(f"({megabytes * 2**18}, 1)"))
            for _ in range(megabytes):
                file.write(bytes(2**20))

    return make


def many_members(path: Path) -> None:
    """A directory of 200,000 members that are all the same bytes."""
    members(x_npy=header("(0, 1)"))(path)
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02")
    end = content.index(b"PK\x05\x06")
    entries = content[start:end] * 200_000
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, len(entries), start, 0)
    path.write_bytes(content[:start] + entries + tail)


def member_twice(path: Path) -> None:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")
        for rows in (1, 2):
            archive.writestr("x.npy", header(f"({rows}, 1)") + bytes(4 * rows))


def something_before(path: Path) -> None:
    """Python skips bytes before the archive; other readers do not."""
    np.savez(path, **BASE)
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())


def long_header(path: Path) -> None:
    """A header that claims to be four gigabytes long."""
    members(x_npy=b"\x93NUMPY\x02\x00" + struct.pack("<L", 2**32 - 1) + b" " * 20_000)(path)


def compressed(**arrays: np.ndarray) -> Callable[[Path], object]:
    return lambda path: np.savez_compressed(path, **BASE | arrays)


def bytes_as_edges(path: Path) -> None:
    """About 243 kB, which become 2 GB of 64-bit integers."""
    compressed(edge_index=np.zeros((2, 120_000_000), np.uint8))(path)


def bytes_as_rows(path: Path) -> None:
    """About 156 kB: a sparse matrix of 156 million empty rows."""
    parts = {"x_indptr": np.zeros(156_000_000, np.uint8), "x_shape": np.array([156_000_000 - 1, 2])}
    parts |= {"x_indices": np.zeros(0, np.uint8), "x_data": np.zeros(0, np.float32)}
    np.savez_compressed(path, **parts, edge_index=EDGES)


def names_beyond_unicode(path: Path) -> None:
    """Four bytes per character allow numbers that are no characters."""
    names = np.frombuffer(b"\xff\xff\xff\x7f" * 4, "<U2")
    np.savez(path, **BASE, class_names=names)


ATTACKS = {
    "2 GB of integers from bytes": (bytes_as_edges, "would unpack"),
    "156 million rows from bytes": (bytes_as_rows, "would unpack"),
    "a not a number in 160 MB": (
        lambda path: compressed(x=np.full((400_000, 100), np.nan, np.float32))(path),
        "first at [0, 0]",
    ),
    "1 GB of class names": (compressed(class_names=np.zeros(10**6, "<U200")), "would unpack"),
    "labels of bytes": (compressed(y=np.zeros(10**8, np.uint8)), "would unpack"),
    "names beyond Unicode": (names_beyond_unicode, "valid Unicode"),
    "names with half a character": (save(class_names=np.array(["a", "\ud800"])), "class_names[1]"),
    "a level beyond Unicode": (save(level=np.frombuffer(b"\xff\xff\xff\x7f", "<U1")), "cannot be read"),
    "a level that is a list": (save(level=np.array(["node", "edge"])), "level is a ndarray"),
    "features twice": (save(x_data=np.ones(1, np.float32)), "both x and x_data"),
    "a pickle that runs code": (objects, "Python objects"),
    "a pickle in one column of many": (objects_among_numbers, "Python objects"),
    "a pickle in place of an array": (members(x_npy=evil()), "not a readable .npz"),
    "a pickle behind the header of numbers": (members(x_npy=header("(1, 1)") + evil()), "claims the shape"),
    "a pickle with this name": (lambda path: path.write_bytes(evil()), "not a readable .npz"),
    "a .pt with this name": (
        renamed(lambda path: torch.save({"x": torch.ones(2)}, path)),
        "key 'x' not found",
    ),
    "a zip bomb": (zeros(megabytes=300), "would unpack"),
    "a list of 200,000 members": (many_members, "far more members"),
    "a member twice": (member_twice, "same name"),
    "something before the archive": (something_before, "does not begin"),
    "a header of four gigabytes": (long_header, "EOF"),
    "a header nested 2,000 deep": (members(x_npy=header("(" * 2_000)), "not a readable .npz"),
    "terabytes": (members(x_npy=header("(1000000, 1000000)")), "claims the shape"),
    "10^18 columns, sparse": (sparse([4, 10**18]), "at most 1,000,000"),
    "an array that is not an archive": (raw_array, "not a readable .npz"),
    "encrypted": (edited(6, 8, 1), "encrypted"),
    "an unknown compression": (edited(8, 10, 99), "unsupported compression"),
    "damaged lzma": (broken_lzma, "unsupported compression"),
    "wrong sizes": (edited(22, 24, 2**31, 4), "smaller than its header"),
    "a side of 2^70": (members(x_npy=header(f"({2**70}, 8)")), "claims the shape"),
    "more bytes than the member has": (members(x_npy=header("(1000, 1000)")), "claims the shape"),
    "fewer bytes than the member has": (members(x_npy=header("(1, 1)") + b"0" * 400), "claims the shape"),
    "negative sides": (members(x_npy=header("(-2, -2)") + b"0" * 16), "claims the shape"),
    "items of size 0": (members(x_npy=header("(10000000000000,)", "<U0")), "ADAR_MAX_BYTES"),
    "objects": (members(x_npy=header("(1, 1)", "|O") + b"0" * 8), "Python objects"),
    "columns with names": (members(x_npy=b"\x93NUMPY\x03\x00" + b"0" * 200), "version"),
    "members that are not arrays": (members(x_shape=b"1", x_data=b"1", x_indptr=b"1"), "key 'x' not found"),
    "a name that moves the cursor": (lambda path: np.savez(path, **{"\x1b[2J": X}), "key 'x' not found"),
    "names that are one string": (save(class_names=np.array("abc")), "list of strings"),
    "names that are numbers": (save(class_names=np.arange(3)), "list of strings"),
    "10^13 classes": (save(y=np.array([0, 1, 10**13, 0])), "at most 100,000"),
    "10^12 columns": (sparse([4, 10**12]), "at most 1,000,000"),
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
    assert_no_code_ran(tmp_path)


def test_unknown_keys_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of zeros under an unknown key, with a limit of a thousand bytes."""
    np.savez_compressed(tmp_path / "g.npz", **BASE, unused=np.zeros(10**6, np.uint8))
    monkeypatch.setenv("ADAR_MAX_BYTES", "1000")
    with pytest.warns(AdarWarning, match="not used: unused$"):
        assert read_graph(tmp_path / "g.npz").nodes == 4
    monkeypatch.setenv("ADAR_MAX_BYTES", "100")
    with pytest.raises(GraphError, match="ADAR_MAX_BYTES"):
        read_graph(tmp_path / "g.npz")
    monkeypatch.setenv("ADAR_MAX_BYTES", "much")
    with pytest.raises(UsageError, match="whole number"):
        read_graph(tmp_path / "g.npz")


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "g.npz").mkdir()
    with pytest.raises(GraphError, match="this is a folder"):
        read_graph(tmp_path / "g.npz")
    with pytest.raises(GraphError, match="too long"):
        read_graph(tmp_path / ("g" * 300 + ".npz"))
