"""Hostile `.pt` files and the error of each, and unusual `.pt` files that are read."""

import io
import pickle
import struct
import subprocess
import time
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
from adar_runtime.graph.formats import read_graphs
from tests.attacks.payload import MARK, TOUCH, Touch, assert_no_code_ran, evil

SECONDS = 2
X, EDGES = torch.ones(4, 10), torch.tensor([[0, 1], [1, 2]])


def save(path: Path, **entries: object) -> Path:
    if any(isinstance(entry, Forged | Sparse) for entry in entries.values()):
        forge(path, entries)
        return path
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


def quiet(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A tensor without PyTorch's warnings about its kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def outside() -> torch.Tensor:
    """A sparse matrix of four rows with an entry in row 9."""
    return torch.sparse_coo_tensor(torch.tensor([[9], [0]]), torch.ones(1), (4, 10), check_invariants=False)


def wrapping() -> torch.Tensor:
    """A sparse matrix whose counts per column add up to its entries only modulo 2^64."""
    starts = torch.tensor([0, 2**62, -(2**63), -(2**62), 3])
    return quiet(
        lambda: torch.sparse_csc_tensor(
            starts, torch.zeros(3).long(), torch.ones(3), (4, 4), check_invariants=False
        )
    )


def quantised() -> torch.Tensor:
    return quiet(lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8))


class Mine(torch.Tensor):
    pass


class FakeStorage:
    """The description of a storage, which need not exist."""

    def __init__(self, key: object, count: object) -> None:
        self.description = ("storage", torch.FloatStorage, key, "cpu", count)


class Forged:
    """A tensor with any place in any storage. The file has two storages, "0" of 160 bytes and "1" of 32."""

    def __init__(
        self,
        key: object = "0",
        count: object = 40,
        offset: int = 0,
        size: object = (4, 10),
        stride: object = (10, 1),
    ) -> None:
        self._arguments = (FakeStorage(key, count), offset, size, stride, False, OrderedDict())

    def __reduce__(self) -> tuple:
        return torch._utils._rebuild_tensor_v2, self._arguments


class Sparse:
    """A sparse matrix with indices of a shape that may be wrong."""

    def __init__(self, indices: tuple[int, int]) -> None:
        self._indices, self._values = (
            Forged(size=indices, stride=(indices[1], 1)),
            Forged(size=(3,), stride=(1,)),
        )

    def __reduce__(self) -> tuple:
        layout = torch.sparse_coo
        return torch._utils._rebuild_sparse_tensor, (layout, (self._indices, self._values, (4, 10), False))


BEYOND = "larger than its storage"
FORGERIES: dict[str, tuple[dict, str]] = {
    "a negative size": ({"size": (-4, 10)}, "damaged"),
    "a negative stride": ({"stride": (-10, 1)}, "damaged"),
    "a negative offset": ({"offset": -1}, "damaged"),
    "a size that is True": ({"size": (True, 10)}, "damaged"),
    "a size that is a fraction": ({"size": (4.0, 10)}, "damaged"),
    "a size of 65 bits": ({"size": (2**65, 10), "stride": (0, 0)}, "damaged"),
    "sizes in a list": ({"size": [4, 10]}, "damaged"),
    "65 dimensions": ({"size": (1,) * 65, "stride": (1,) * 65}, "damaged"),
    "more sizes than strides": ({"stride": (1,)}, "damaged"),
    "an offset beyond the end": ({"offset": 1}, BEYOND),
    "a stride beyond the end": ({"stride": (11, 1)}, BEYOND),
    "10^9 rows": ({"size": (10**9, 10)}, BEYOND),
    "2^124 numbers that are one": ({"size": (2**62, 2**62), "stride": (0, 0)}, "ADAR_MAX_BYTES"),
    "a storage that claims more than it has": ({"count": 41}, BEYOND),
    "a storage of 2^62 numbers": ({"count": 2**62}, BEYOND),
    "a storage of -1 numbers": ({"count": -1}, "damaged"),
    "a storage that is not there": ({"key": "9"}, BEYOND),
    "a storage in another folder": ({"key": "../data/0"}, BEYOND),
    "a storage by its absolute path": ({"key": "/etc/passwd"}, BEYOND),
    "a storage by a number": ({"key": 0}, "damaged"),
}


class Pickler(pickle.Pickler):
    """PyTorch's pickler, with forged storages."""

    def persistent_id(self, value: object) -> tuple | None:
        if isinstance(value, FakeStorage):
            return value.description
        if isinstance(value, torch.storage.TypedStorage):
            key = "0" if value._nbytes() == 160 else "1"
            return "storage", getattr(torch, value._pickle_storage_type()), key, "cpu", value._size()
        return None

    def reducer_override(self, value: object) -> object:
        """PyTorch names a layout by a function."""
        if isinstance(value, torch.layout):
            return torch.serialization._get_layout, (str(value),)
        return NotImplemented


def forge(path: Path, entries: dict) -> None:
    """A file with forged tensors."""
    buffer = io.BytesIO()
    Pickler(buffer, 2).dump(Data(**{"x": X, "edge_index": EDGES} | entries))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("g/data.pkl", buffer.getvalue())
        archive.writestr("g/data/0", X.numpy().tobytes())
        archive.writestr("g/data/1", EDGES.numpy().tobytes())


def text(value: str) -> bytes:
    """The operation of a text."""
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def many_memos(count: int) -> bytes:
    memos = b"".join(b"}r" + number.to_bytes(4, "little") for number in range(count))
    return b"\x80\x02](" + memos + b"e."


def equal_hashes(count: int) -> bytes:
    """A dict whose keys all have the hash 0, so that it takes count^2 / 2 comparisons to make."""
    keys = (pickle.dumps(step * (2**61 - 1), 2)[2:-1] for step in range(10, count + 10))
    return b"\x80\x02}(" + b"".join(key + b"N" for key in keys) + b"u."


def numbered(count: int) -> bytes:
    """The operations of a dict with many keys, between its mark and its end."""
    return b"".join(text(str(number)) + b"K\x01" for number in range(count))


STORE = b"ctorch_geometric.data.storage\nGlobalStorage\n)\x81"
DATA = b"ctorch_geometric.data.data\nData\n)\x81"


def set_again(count: int) -> bytes:
    """An object whose attributes, as many as this, are set as often."""
    return b"\x80\x02" + DATA + b"}(" + numbered(count) + b"uq\x00b" + b"h\x00b" * count + b"."


def long_sizes(count: int) -> bytes:
    """A tuple of many sizes, for as many calls."""
    call_again = b"h\x01h\x00\x85R"
    sizes = b"(" + b"K\x01" * count + b"tq\x00"
    return b"\x80\x02](" + sizes + b"ctorch\nSize\nq\x01" + call_again * count + b"e."


def data_of(mapping: bytes) -> bytes:
    """The operations of a Data with these keys."""
    return DATA + b"}" + text("_store") + STORE + b"}" + text("_mapping") + mapping + b"sbsb"


def tensor_of(kind: str, key: str, rows: int, columns: int) -> bytes:
    """The operations of a tensor that fills its storage."""
    count, size = bytes([rows * columns]), b"K%cK%c\x86K%cK\x01\x86" % (rows, columns, columns)
    storage = (
        b"(" + text("storage") + b"ctorch\n" + kind.encode() + b"\n" + text(key) + text("cpu") + b"K" + count
    )
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"tQK\x00" + size + b"\x89NtR"


XY = (
    text("x")
    + tensor_of("FloatStorage", "0", 4, 10)
    + text("edge_index")
    + tensor_of("LongStorage", "1", 2, 2)
)


def shared(graphs: int, more: bytes, *, names: bool) -> bytes:
    """Many graphs with the same class names, or the same keys."""
    if names:
        first = b"}(" + XY + text("class_names") + b"](" + more + b"eq\x00u"
        again = b"}(" + XY + text("class_names") + b"h\x00u"
    else:
        first, again = b"}(" + XY + more + b"uq\x00", b"h\x00"
    return b"\x80\x02](" + data_of(first) + data_of(again) * (graphs - 1) + b"e."


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
        with zipfile.ZipFile(path) as old:
            kept = {member: old.read(member) for member in old.namelist()}
        with zipfile.ZipFile(path, "w") as new:
            for member, found in kept.items():
                new.writestr(member, content if member == f"{path.stem}/{name}" else found)

    return make


def in_itself() -> list:
    found: list = []
    found.append(found)
    return found


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
    "a key of nested tuples": (with_pickle(b"\x80\x02}" + doubled(60) + b"K\x01s."), "neither a text nor"),
    "a key of a few tuples": (with_pickle(b"\x80\x02}" + doubled(3) + b"K\x01s."), "neither a text nor"),
    "several keys, one a tuple": (
        with_pickle(b"\x80\x02}(X\x01\x00\x00\x00aK\x01)K\x01u."),
        "neither a text nor a small number",
    ),
    "a storage with nested tuples": (with_pickle(b"\x80\x02" + doubled(60) + b"Q."), "damaged"),
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
    "nested in 300,000 tuples": (with_pickle(b"\x80\x02)" + b"\x85" * 300_000 + b"."), "holds a tuple"),
    "nested in 150,000 lists": (
        with_pickle(b"\x80\x02" + b"]" * 150_000 + b"a" * 149_999 + b"."),
        "holds a list",
    ),
    "a list in itself": (with_pickle(b"\x80\x02]q\x00h\x00a."), "holds a list"),
    "a memo of 300,000": (with_pickle(many_memos(300_000)), "far more objects"),
    "keys with one hash": (with_pickle(equal_hashes(60_000)), "neither a text nor a small number"),
    "attributes that are set again and again": (with_pickle(set_again(50_000)), "damaged"),
    "sizes of 50,000 dimensions, again and again": (with_pickle(long_sizes(50_000)), "damaged"),
    "a text of 60 MB": (zipped(b"\x80\x02" + text("a" * 60 * 10**6) + b"."), "would unpack"),
    "1,000 graphs with the same 50,000 names": (
        with_pickle(shared(1000, text("a") * 50_000, names=True)),
        "would unpack",
    ),
    "1,000 graphs with the same 50,000 keys": (
        with_pickle(shared(1000, numbered(50_000), names=False)),
        "would unpack",
    ),
    "10,000 times the same graph": (with_pickle(b"\x80\x02](Nq\x00" + b"h\x00" * 9999 + b"e."), "1 to 5,000"),
    "a list of numbers": (with_pickle(b"\x80\x02]K\x01a."), "graph 1 of 1: holds a int"),
    "two values": (with_pickle(b"\x80\x02K\x01K\x02."), "damaged"),
    "values below a mark": (with_pickle(b"\x80\x02K\x01(\x85."), "damaged"),
    "an unknown byte order": (with_member("byteorder", b"middle"), "refused: not a readable"),
    "members that share their bytes": (overlapping, "refused: not a readable"),
    "no pickle": (with_pickle(b"\xff\xfe"), "could run code"),
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
    "a tensor beyond its storage": (beyond_its_storage, "larger than its storage"),
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
    started = time.process_time()
    with pytest.raises(GraphError) as error:
        read_graphs(tmp_path / "g.pt")
    assert time.process_time() - started < SECONDS
    assert message in str(error.value)
    assert len(str(error.value)) < 500
    assert_no_code_ran(tmp_path)


def test_the_attacks_work_on_an_unrestricted_unpickler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise none of these tests could fail."""
    monkeypatch.chdir(tmp_path)
    inside_a_graph(tmp_path / "g.pt")
    torch.load(tmp_path / "g.pt", weights_only=False)
    assert (tmp_path / MARK).exists()


ATTACKS = {
    "10^12 numbers, by lists of the same lists": ({"x": laughs()}, "not numbers in a tensor"),
    "a mask of lists of the same lists": ({"val_mask": laughs()}, "not booleans in a tensor"),
    "a level of lists of the same lists": ({"level": laughs()}, "level holds 'list', not a text"),
    "a level that is a list": ({"level": ["node"]}, "level is a list"),
    "a view of one byte, 2 GB after conversion": (
        {"edge_index": torch.zeros(1, dtype=torch.uint8).expand(2, 10**8)},
        "would unpack",
    ),
    "a name with half a character": ({"class_names": ["a", "\ud800"]}, "not valid Unicode"),
    "10^7 halves of characters": ({"note": "\ud800" * 10**7}, "not valid Unicode"),
    "sparse in columns whose differences wrap around": ({"x": wrapping()}, "do not rise"),
    "a view of one number, 4 TB large": ({"x": torch.ones(1, 1).expand(10**8, 10**4)}, "ADAR_MAX_BYTES"),
    "labels that are one number": ({"y": torch.ones(1, dtype=torch.long).expand(10**11)}, "ADAR_MAX_BYTES"),
    "a negative view of one number, 4 GB": (
        {"x": torch._neg_view(torch.ones(1, 1).expand(10**9, 1))},
        "ADAR_MAX_BYTES",
    ),
    "a conjugate view of one number, 8 GB": (
        {"x": torch.ones(1, 1, dtype=torch.complex64).expand(10**9, 1).conj()},
        "ADAR_MAX_BYTES",
    ),
    "sparse, with one entry 3 * 10^9 times": ({"x": repeated(3 * 10**9)}, "ADAR_MAX_BYTES"),
    "sparse, with 10^13 rows": ({"x": tall(10**13)}, "ADAR_MAX_BYTES"),
    "sparse, of three dimensions": ({"x": torch.ones(2, 2, 2).to_sparse()}, "not [rows, columns]"),
    "sparse, with a row that does not exist": ({"x": outside()}, "outside its 4 rows"),
    "sparse in blocks": ({"x": quiet(lambda: X.to_sparse_bsr((2, 2)))}, "in blocks"),
    "sparse in one dimension": ({"x": X.to_sparse(1)}, "do not fit together"),
    "sparse, with indices that are floats": ({"x": Sparse(indices=(2, 3))}, "not integers"),
    "sparse, with indices of another length": ({"x": Sparse(indices=(2, 4))}, "do not fit together"),
    "quantised": ({"x": quantised()}, "_rebuild_qtensor"),
    "of a subclass": ({"x": X.as_subclass(Mine)}, "could run code"),
    "nested": ({"x": quiet(lambda: torch.nested.nested_tensor([X, X]))}, "could run code"),
    "in half complex numbers": (
        {"x": quiet(lambda: X.to(torch.complex32))},
        "torch.complex32, which numpy does not have",
    ),
    **{f"with {name}": ({"x": Forged(**given)}, message) for name, (given, message) in FORGERIES.items()},
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
    path = save(tmp_path / "g.pt", **entries)
    started = time.process_time()
    with pytest.raises(GraphError) as error:
        read_graph(path)
    assert time.process_time() - started < SECONDS
    assert message in str(error.value)
    assert len(str(error.value)) < 500


UNUSUAL = {
    "PyG's adj_t": {"adj_t": quiet(torch.eye(4).to_sparse_csr)},
    "bfloat16 with a gradient": {"x": X.bfloat16().requires_grad_()},
    "float8": {"x": X.to(torch.float8_e4m3fn)},
    "a negative view": {"x": torch.complex(X, -X).conj().imag},
    "a mask as a list": {"train_mask": [True] * 4},
    "unknown keys of any size": {"a": torch.ones(1).expand(10**13), "b": torch.ones(3, device="meta")},
    "an unknown key, sparse, with one entry 3 * 10^9 times": {"a": repeated(3 * 10**9)},
    "an unknown key of lists of the same lists": {"a": laughs(), "b": in_itself()},
    "rows that share their numbers": {"x": torch.ones(13).as_strided((4, 10), (1, 1))},
    "sparse in columns, bfloat16": {"x": quiet(X.bfloat16().to_sparse_csc)},
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


def test_forged_descriptions_can_be_valid(tmp_path: Path) -> None:
    """Otherwise none of the forgeries could fail for its own reason."""
    assert np.array_equal(read_graph(save(tmp_path / "g.pt", x=Forged())).features, X)


def test_the_last_of_two_equal_keys_is_read(tmp_path: Path) -> None:
    save(tmp_path / "g.pt", y=torch.tensor([0, 1, 2, 3]), w=torch.tensor([3, 2, 1, 0]))
    with zipfile.ZipFile(tmp_path / "g.pt") as archive:
        pickled = archive.read("g/data.pkl")
    with_pickle(pickled.replace(text("w"), text("y")))(tmp_path / "h.pt")
    with zipfile.ZipFile(tmp_path / "h.pt", "a") as archive, zipfile.ZipFile(tmp_path / "g.pt") as old:
        for key in "23":
            archive.writestr(f"h/data/{key}", old.read(f"g/data/{key}"))
    assert read_graph(tmp_path / "h.pt").labels.tolist() == [3, 2, 1, 0]


def test_numbers_in_another_byte_order_are_read(tmp_path: Path) -> None:
    """A file from a computer that stores the highest byte first."""
    x = torch.arange(40.0).reshape(4, 10)
    save(tmp_path / "g.pt", x=x, y=torch.arange(4), train_mask=torch.tensor([True, False, True, False]))
    with zipfile.ZipFile(tmp_path / "g.pt") as old, zipfile.ZipFile(tmp_path / "h.pt", "w") as new:
        sizes = {"g/data/0": "4", "g/data/1": "8", "g/data/2": "8"}
        for name in old.namelist():
            content = b"big" if name == "g/byteorder" else old.read(name)
            if name in sizes:
                content = np.frombuffer(content, f"<u{sizes[name]}").astype(f">u{sizes[name]}").tobytes()
            new.writestr(name, content)
    graph = read_graph(tmp_path / "h.pt")
    assert np.array_equal(graph.features, x)
    assert graph.labels.tolist() == [0, 1, 2, 3]
    assert graph.train_mask.tolist() == [[True, False, True, False]]


def test_a_boolean_is_true_or_false(tmp_path: Path) -> None:
    """Any byte but 0 is true: a boolean of another byte would be neither."""
    save(tmp_path / "g.pt", y=torch.arange(4), train_mask=torch.tensor([True, False, True, False]))
    with zipfile.ZipFile(tmp_path / "g.pt") as old, zipfile.ZipFile(tmp_path / "h.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, bytes([2, 0, 255, 0]) if name == "g/data/3" else old.read(name))
    mask = read_graph(tmp_path / "h.pt").train_mask
    assert (mask.view(np.uint8).tolist(), mask.sum()) == ([[1, 0, 1, 0]], 2)
