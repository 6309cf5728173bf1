"""Hostile `.pt` files and the error of each, and unusual `.pt` files that are read."""

import io
import pickle
import struct
import subprocess
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData

from adar_runtime import read_graph
from adar_runtime.errors import GraphError
from adar_runtime.graph.formats import pt
from tests.attacks.payload import MARK, TOUCH, Touch, assert_no_code_ran, evil

X, EDGES = torch.ones(4, 10), torch.tensor([[0, 1], [1, 2]])


def save(path: Path, **entries: object) -> Path:
    torch.save(Data(**{"x": X, "edge_index": EDGES} | entries), path)
    return path


def doubled(levels: int) -> bytes:
    """The operations of a tuple that holds the tuple below twice: its hash takes 2^levels steps."""
    return b")" + b"q\x00h\x00\x86" * levels


def tall(rows: int) -> torch.Tensor:
    """A sparse matrix whose row pointers alone exceed the memory."""
    return torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.ones(1), (rows, 10), check_invariants=True)


def with_pickle(pickled: bytes) -> Callable[[Path], None]:
    """A file of PyTorch with its pickle replaced."""

    def make(path: Path) -> None:
        save(path)
        with zipfile.ZipFile(path) as old:
            kept = {name: old.read(name) for name in old.namelist()}
        with zipfile.ZipFile(path, "w") as new:
            for name, content in kept.items():
                new.writestr(name, pickled if name.endswith("data.pkl") else content)

    return make


def call(name: str, *arguments: object) -> bytes:
    """The pickle of a call, in operations that PyTorch's unpickler supports."""
    module, _, function = name.rpartition(".")
    given = pickle.dumps(arguments, 2)[2:-1]
    return b"\x80\x02c" + f"{module}\n{function}\n".encode() + given + b"R."


class Partition:
    """A call of PyG's ClusterData, which PyG declares safe. It reads part_2/metis.pt without restrictions."""

    def __reduce__(self) -> tuple:
        return ClusterData, (Data(x=X, edge_index=EDGES), 2, False, ".", None, False)


def another_file(path: Path) -> None:
    """A valid graph with an attribute that makes PyG read another file, which runs code."""
    torch.save(Data(x=X, edge_index=EDGES, note=Partition()), path)
    (path.parent / "part_2").mkdir()
    torch.save(Touch(subprocess.getoutput, TOUCH), path.parent / "part_2" / "metis.pt")


def repeated(entries: int) -> torch.Tensor:
    """A sparse matrix that repeats one entry."""
    columns, values = torch.zeros(2, 1, dtype=torch.long).expand(2, entries), torch.ones(1).expand(entries)
    return torch.sparse_coo_tensor(columns, values, (4, 10), check_invariants=False)


def with_state(path: Path) -> None:
    """A tensor that gets another size after it was made, by an operation for old files."""
    save(path, note=Resized())


class Resized:
    def __reduce__(self) -> tuple:
        return torch._utils._rebuild_parameter, (X, False, OrderedDict()), {"a": 1}


def inside_a_graph(path: Path) -> None:
    """A valid graph with one attribute that runs code."""
    torch.save(Data(x=X, edge_index=EDGES, note=[{"deep": (Touch(),)}]), path)


def disguised(path: Path) -> None:
    """A call through an old pickle operation."""
    save(path)
    with_pickle(b"(iposix\nsystem\n." + TOUCH.encode())(path)


def laughs(depth: int = 12) -> list:
    """Nested lists that repeat one list ten times per level: 10^12 numbers in a few hundred bytes."""
    value: list = [1.0] * 10
    for _ in range(depth):
        value = [value] * 10
    return value


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


HIDDEN = call("builtins.bytearray", 2**20)  # which PyTorch allows, and the check of pickles refuses


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
    path.write_bytes(path.read_bytes().replace(b"g/version", b"g/ver\0ion"))


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


def beyond_its_storage(path: Path) -> None:
    """A tensor of 10^9 rows over 40 numbers."""
    torch.save(Data(x=X, edge_index=EDGES), path)
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    with_pickle(pickled.replace(b"K\x04K\n\x86", b"J\x00\xca\x9a;K\n\x86", 1))(path)


def npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=X.numpy(), edge_index=EDGES.numpy())


RUNS_CODE = "could run code"
FILES = {
    "a key of nested tuples": (with_pickle(b"\x80\x02}" + doubled(60) + b"K\x01s."), "far more objects"),
    "a key of a few tuples": (with_pickle(b"\x80\x02}" + doubled(3) + b"K\x01s."), "neither a text nor"),
    "several keys, one a tuple": (
        with_pickle(b"\x80\x02}(X\x01\x00\x00\x00aK\x01)K\x01u."),
        "neither a text nor a number",
    ),
    "a storage with nested tuples": (with_pickle(b"\x80\x02" + doubled(60) + b"Q."), "far more objects"),
    "a list in a number": (with_pickle(b"\x80\x02K\x01]a."), "damaged"),
    "more values than there are": (with_pickle(b"\x80\x02K\x01\x86."), "damaged"),
    "os.system": (with_pickle(evil()), RUNS_CODE),
    "os.system, in a newer pickle": (with_pickle(evil(protocol=4)), RUNS_CODE),
    "os.system, in the oldest pickle": (with_pickle(evil(protocol=0)), RUNS_CODE),
    "eval": (with_pickle(call("builtins.eval", f"__import__('os').system({TOUCH!r})")), RUNS_CODE),
    "exec, through an attribute of PyTorch": (
        with_pickle(call("torch.utils.cpp_extension.load", "x")),
        RUNS_CODE,
    ),
    "torch.load": (with_pickle(call("torch.load", "g.pt", "cpu", None, False)), RUNS_CODE),
    "bytearray(10^11), which PyTorch allows": (with_pickle(call("builtins.bytearray", 10**11)), RUNS_CODE),
    "code among a graph's attributes": (inside_a_graph, RUNS_CODE),
    "code in another file, which PyG reads": (another_file, RUNS_CODE),
    "a storage of 10^11 bytes": (with_pickle(call("torch.storage.UntypedStorage", 10**11)), RUNS_CODE),
    "a call of a call": (with_pickle(call("torch.Size", (1, 2))[:-1] + b")R."), "damaged"),
    "a call of a number": (with_pickle(b"\x80\x02K\x01)R."), "damaged"),
    "attributes of a tensor": (with_state, "damaged"),
    "a tensor with a size that is a text": (
        with_pickle(call("torch._utils._rebuild_tensor_v2", 0, 0, ("x",), (1,))),
        "damaged",
    ),
    "code by another opcode": (disguised, RUNS_CODE),
    "a pickle of an extension": (with_pickle(b"\x80\x02\x82\x01."), RUNS_CODE),
    "a list of 600,000": (with_pickle(b"\x80\x02](" + b"N" * 600_000 + b"e."), "far more objects"),
    "no pickle": (with_pickle(b"\xff\xfe"), "incomplete or damaged"),
    "half a pickle": (with_pickle(call("torch.Size", (1, 2))[:-3]), "incomplete or damaged"),
    "two pickles": (two_pickles, "refused"),
    "two pickles, to PyTorch": (uppercase_pickle, "refused"),
    "two archives": (second_archive, "refused"),
    "a pickle that only PyTorch finds": (pickle_in_capitals, "refused: not a readable"),
    "two lists of members, by a locator": (two_lists_by_a_locator, "refused: not a readable"),
    "two lists of members, by a comment": (two_lists_by_a_comment, "refused: not a readable"),
    "a member with two names": (name_with_a_null, "refused: not a readable"),
    "a zip bomb": (zeros, "would unpack"),
    "a program": (compiled, "not a readable PyTorch file"),
    "a tensor beyond its storage": (beyond_its_storage, "not a readable PyTorch file"),
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
    with pytest.raises(GraphError) as error:
        read_graph(tmp_path / "g.pt")
    assert message in str(error.value)
    assert len(str(error.value)) < 500
    assert_no_code_ran(tmp_path)


def test_pytorch_itself_loads_only_the_classes_of_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second line, behind the check of the pickle."""
    monkeypatch.chdir(tmp_path)
    another_file(tmp_path / "g.pt")
    before = torch.serialization.get_safe_globals()
    monkeypatch.setattr(pt, "check_archive", lambda _path: None)
    with pytest.raises(GraphError, match="could run code"):
        read_graph(tmp_path / "g.pt")
    assert_no_code_ran(tmp_path)
    assert set(torch.serialization.get_safe_globals()) == set(before)


def test_the_attacks_work_on_an_unrestricted_unpickler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise none of these tests could fail."""
    monkeypatch.chdir(tmp_path)
    inside_a_graph(tmp_path / "g.pt")
    torch.load(tmp_path / "g.pt", weights_only=False)
    assert (tmp_path / MARK).exists()


ATTACKS = {
    "10^12 numbers, by lists of the same lists": ({"x": laughs()}, "far more objects"),
    "a mask of lists of the same lists": ({"val_mask": laughs()}, "far more objects"),
    "a level of lists of the same lists": ({"level": laughs()}, "far more objects"),
    "a level that is a list": ({"level": ["node"]}, "level is a list"),
    "a view of one byte, 2 GB after conversion": (
        {"edge_index": torch.zeros(1, dtype=torch.uint8).expand(2, 10**8)},
        "would unpack",
    ),
    "a name with half a character": ({"class_names": ["a", "\ud800"]}, "class_names[1]"),
    "a view of one number, 4 TB large": ({"x": torch.ones(1, 1).expand(10**8, 10**4)}, "ADAR_MAX_BYTES"),
    "labels that are one number": ({"y": torch.ones(1, dtype=torch.long).expand(10**11)}, "ADAR_MAX_BYTES"),
    "a negative view of one number, 4 GB": (
        {"x": torch._neg_view(torch.ones(1, 1).expand(10**9, 1))},
        "would unpack",
    ),
    "a conjugate view of one number, 8 GB": (
        {"x": torch.ones(1, 1, dtype=torch.complex64).expand(10**9, 1).conj()},
        "would unpack",
    ),
    "sparse, with one entry 3 * 10^9 times": ({"x": repeated(3 * 10**9)}, "ADAR_MAX_BYTES"),
    "an unknown key, sparse, with one entry 3 * 10^9 times": ({"a": repeated(3 * 10**9)}, "ADAR_MAX_BYTES"),
    "sparse, with 10^13 rows": ({"x": tall(10**13)}, "ADAR_MAX_BYTES"),
    "sparse, of three dimensions": ({"x": torch.ones(2, 2, 2).to_sparse()}, "not [rows, columns]"),
    "sparse target_x": ({"target_x": torch.eye(10).to_sparse()}, "only x may be sparse"),
    "without content": ({"x": torch.ones(3, 2, device="meta")}, "without data"),
    "complex": ({"x": torch.ones(4, 10, dtype=torch.complex64)}, "not numbers"),
    "lists of lists": ({"x": [[1, 2], [3]]}, "not numbers in a tensor"),
    "names that are a number": ({"class_names": 3}, "list of strings"),
    "names that are one string": ({"class_names": "abc"}, "list of strings"),
    "a mask of words": ({"train_mask": ["yes"] * 4}, "not booleans"),
    "a very long level": ({"level": "x" * 10**5}, "…"),
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


UNUSUAL = {
    "PyG's adj_t": {"adj_t": beta(torch.eye(4).to_sparse_csr)},
    "bfloat16 with a gradient": {"x": X.bfloat16().requires_grad_()},
    "float8": {"x": X.to(torch.float8_e4m3fn)},
    "a negative view": {"x": torch.complex(X, -X).conj().imag},
    "a mask as a list": {"train_mask": [True] * 4},
    "unknown keys of any size": {"a": torch.ones(1).expand(10**13), "b": torch.ones(3, device="meta")},
    "sparse in columns, bfloat16": {"x": beta(X.bfloat16().to_sparse_csc)},
}


@pytest.mark.filterwarnings("ignore::adar_runtime.errors.AdarWarning")  # of unknown keys
@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_graph_is_read(name: str, tmp_path: Path) -> None:
    graph = read_graph(save(tmp_path / "g.pt", **UNUSUAL[name]))
    assert np.array_equal(graph.rows(0, 4), X)


def test_a_compressed_archive_has_a_size_limit(tmp_path: Path, monkeypatch) -> None:
    """Deflate can expand one byte to a thousand, and PyTorch does not check sizes."""
    save(tmp_path / "g.pt", x=torch.zeros(1000, 100))
    with zipfile.ZipFile(tmp_path / "g.pt") as old, zipfile.ZipFile(tmp_path / "z.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name), zipfile.ZIP_DEFLATED)
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
