"""Hostile archives in `.pt` files: bombs, and members that PyTorch and Python read differently."""

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from adar_runtime import read_graph
from adar_runtime.errors import GraphError
from adar_runtime.graph.formats import read_graphs
from tests.attacks.payload import assert_no_code_ran, evil
from tests.attacks.pt_files import EDGES, X, assert_refused, call, rewrite, save, text, with_pickle


def zipped(pickled: bytes) -> Callable[[Path], None]:
    """A compressed file."""

    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("g/data.pkl", pickled)

    return make


def with_member(name: str, content: bytes) -> Callable[[Path], None]:
    """A valid file with another content of one member."""

    def make(path: Path) -> None:
        save(path)
        rewrite(path, path, lambda member, old: content if member == f"{path.stem}/{name}" else old)

    return make


HIDDEN = call("builtins.bytearray", 2**20)  # which PyTorch allows, and the check of pickles refuses


def second_archive(path: Path) -> None:
    """Python skips bytes before the archive; PyTorch reads them."""
    save(path)
    good = path.read_bytes()
    with_pickle(evil())(path)
    path.write_bytes(path.read_bytes() + good)


def two_pickles(path: Path) -> None:
    save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data.pkl", evil())


def uppercase_pickle(path: Path) -> None:
    """PyTorch ignores the case of member names, Python does not."""
    save(path)
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name.upper(), call("builtins.bytearray", 2**29))


def pickle_in_capitals(path: Path) -> None:
    """Python finds the one `data.pkl` in a folder, PyTorch `DATA.PKL` in the folder of the first member."""
    save(path)
    with zipfile.ZipFile(path, "r") as old:
        kept = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        new.writestr("g/DATA.PKL", HIDDEN)
        for name, content in kept.items():
            new.writestr(name.replace("g/data.pkl", "g/folder/data.pkl"), content)


def archive_parts(pickled: bytes | None = None, inside: bytes = b"") -> tuple[bytes, bytes]:
    """The members of a valid file, or of one with another pickle and one more member, and their list."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("g/data.pkl", pickled or call("torch.Size", (1, 2)))
        archive.writestr("g/version", "3")
        archive.writestr("g/inside", inside)
    content = buffer.getvalue()
    start = struct.unpack_from("<I", content, len(content) - 6)[0]
    return content[:start], content[start:-22]


def moved(members: bytes, distance: int, comment: bytes = b"") -> bytes:
    """A list of members that lie further behind; the last one gets a comment."""
    moved, start = bytearray(members), 0
    while start < len(members):
        last = start
        (offset,) = struct.unpack_from("<I", members, start + 42)
        struct.pack_into("<I", moved, start + 42, offset + distance)
        start += 46 + sum(struct.unpack_from("<HHH", members, start + 28))
    struct.pack_into("<H", moved, last + 32, len(comment))
    return bytes(moved) + comment


def end_of_archive(length: int, start: int, comment: bytes = b"") -> bytes:
    return struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 3, 3, length, start, len(comment)) + comment


def overlapping(path: Path) -> None:
    """Two entries of the list of members for the same bytes."""
    members, listed = archive_parts()
    second = 46 + sum(struct.unpack_from("<HHH", listed, 28))
    listed = bytearray(listed)
    struct.pack_into("<I", listed, second + 42, 0)
    path.write_bytes(members + listed + end_of_archive(len(listed), len(members)))


def two_lists_by_a_locator(path: Path) -> None:
    """A locator in a comment: PyTorch follows it to another list of members, Python ignores it."""
    start = len(archive_parts()[0])  # of the content of the last member
    hidden, hidden_list = archive_parts(HIDDEN)
    hidden_list = moved(hidden_list, start)
    list_start = start + len(hidden)
    large_end = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 3, 3, len(hidden_list), list_start)
    members, listed = archive_parts(inside=hidden + hidden_list + large_end)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, list_start + len(hidden_list), 1)
    listed = moved(listed, 0, locator)
    path.write_bytes(members + listed + end_of_archive(len(listed), len(members)))


def two_lists_by_a_comment(path: Path) -> None:
    """A list of members in the comment of the archive: Python takes the one before the end instead."""
    hidden, hidden_list = archive_parts(HIDDEN)
    members, listed = archive_parts(inside=hidden)
    hidden_list = moved(hidden_list, len(archive_parts()[0]))
    hidden_start = len(members) + len(listed) + 22
    listed = moved(listed, hidden_start - len(members))
    end = end_of_archive(len(listed), hidden_start, hidden_list)
    path.write_bytes(members + listed + end)


def name_with_a_null(path: Path) -> None:
    """Python ends a name at a null character."""
    save(path)
    path.write_bytes(path.read_bytes().replace(b"/version", b"/ver\0ion"))


def zeros(path: Path) -> None:
    """A zip bomb: PyTorch writes no compressed members, but reads them."""
    save(path)
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("archive/data/9", "w") as file,
    ):
        for _ in range(300):
            file.write(bytes(2**20))


def compiled(path: Path) -> None:
    """A program, as torch.jit.save writes it."""
    save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/code/__torch__.py", "import os")
        archive.writestr("archive/constants.pkl", pickle.dumps((), 2))


def npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=X.numpy(), edge_index=EDGES.numpy())


FILES = {
    "a text of 60 MB": (zipped(b"\x80\x02" + text("a" * 60 * 10**6) + b"."), "would unpack"),
    "an unknown byte order": (with_member("byteorder", b"middle"), "refused: not a readable"),
    "members that share their bytes": (overlapping, "refused: not a readable"),
    "two pickles": (two_pickles, "refused"),
    "two pickles, to PyTorch": (uppercase_pickle, "refused"),
    "two archives": (second_archive, "refused"),
    "a pickle that only PyTorch finds": (pickle_in_capitals, "refused: not a readable"),
    "two lists of members, by a locator": (two_lists_by_a_locator, "refused: not a readable"),
    "two lists of members, by a comment": (two_lists_by_a_comment, "refused: not a readable"),
    "a member with two names": (name_with_a_null, "refused: not a readable"),
    "a zip bomb": (zeros, "would unpack"),
    "a program": (compiled, "not a readable PyTorch file"),
    "an .npz with this name": (npz, "refused"),
    "a bare pickle": (lambda path: path.write_bytes(evil()), "refused"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_one_graph_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, message = FILES[name]
    make(tmp_path / "g.pt")
    assert_refused(read_graphs, tmp_path / "g.pt", message)
    assert_no_code_ran(tmp_path)


def test_a_compressed_archive_has_a_size_limit(tmp_path: Path, monkeypatch) -> None:
    """Deflate can expand one byte to a thousand, and PyTorch does not check sizes."""
    save(tmp_path / "g.pt", x=torch.zeros(1000, 100))
    rewrite(tmp_path / "g.pt", tmp_path / "z.pt", lambda _, content: content, zipfile.ZIP_DEFLATED)
    monkeypatch.setenv("ADAR_MAX_BYTES", "100000")
    with pytest.raises(GraphError, match="above 100,000 bytes"):
        read_graph(tmp_path / "z.pt")


def test_a_bare_pickle_is_refused(tmp_path: Path) -> None:
    """In PyTorch's format before 1.6, a pickle sets the sizes of the storages."""
    path = tmp_path / "g.pt"
    torch.save(Data(x=X, edge_index=EDGES), path, _use_new_zipfile_serialization=False)
    with pytest.raises(GraphError, match="refused"):
        read_graph(path)
    path.write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(GraphError, match="refused"):
        read_graph(path)
