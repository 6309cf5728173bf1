"""Hostile pickles in `.pt` files: calls, operations in a wrong order, and objects that cost too much."""

import pickle
import subprocess
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData

from adar_runtime import read_graph
from adar_runtime.graph.formats import read_graphs
from tests.attacks.payload import MARK, TOUCH, Touch, assert_no_code_ran, evil
from tests.attacks.pt_files import EDGES, X, assert_refused, call, save, text, with_pickle


def doubled(levels: int) -> bytes:
    """The operations of a tuple that holds the tuple below twice: its hash takes 2^levels steps."""
    return b")" + b"q\x00h\x00\x86" * levels


class Partition:
    """A call of PyG's ClusterData, which PyG declares safe. It reads part_2/metis.pt without restrictions."""

    def __reduce__(self) -> tuple:
        return ClusterData, (Data(x=X, edge_index=EDGES), 2, False, ".", None, False)


def another_file(path: Path) -> None:
    """A valid graph with an attribute that makes PyG read another file, which runs code."""
    torch.save(Data(x=X, edge_index=EDGES, note=Partition()), path)
    (path.parent / "part_2").mkdir()
    torch.save(Touch(subprocess.getoutput, TOUCH), path.parent / "part_2" / "metis.pt")


def with_state(path: Path) -> None:
    """A tensor that gets another size after it was made, by an operation for old files."""
    save(path, note=Resized())


class Resized:
    def __reduce__(self) -> tuple:
        return torch._utils._rebuild_parameter, (X, False, OrderedDict()), {"a": 1}


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


def inside_a_graph(path: Path) -> None:
    """A valid graph with one attribute that runs code."""
    torch.save(Data(x=X, edge_index=EDGES, note=[{"deep": (Touch(),)}]), path)


def disguised(path: Path) -> None:
    """A call through an old pickle operation."""
    save(path)
    with_pickle(b"(iposix\nsystem\n." + TOUCH.encode())(path)


def beyond_its_storage(path: Path) -> None:
    """A tensor of 10^9 rows over 40 numbers."""
    torch.save(Data(x=X, edge_index=EDGES), path)
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    with_pickle(pickled.replace(b"K\x04K\n\x86", b"J\x00\xca\x9a;K\n\x86", 1))(path)


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
    "no pickle": (with_pickle(b"\xff\xfe"), "could run code"),
    "half a pickle": (with_pickle(call("torch.Size", (1, 2))[:-3]), "incomplete or damaged"),
    "a tensor beyond its storage": (beyond_its_storage, "larger than its storage"),
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


def test_the_attacks_work_on_an_unrestricted_unpickler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise none of these tests could fail."""
    monkeypatch.chdir(tmp_path)
    inside_a_graph(tmp_path / "g.pt")
    torch.load(tmp_path / "g.pt", weights_only=False)
    assert (tmp_path / MARK).exists()


def test_the_last_of_two_equal_keys_is_read(tmp_path: Path) -> None:
    save(tmp_path / "g.pt", y=torch.tensor([0, 1, 2, 3]), w=torch.tensor([3, 2, 1, 0]))
    with zipfile.ZipFile(tmp_path / "g.pt") as archive:
        pickled = archive.read("g/data.pkl")
    with_pickle(pickled.replace(text("w"), text("y")))(tmp_path / "h.pt")
    with zipfile.ZipFile(tmp_path / "h.pt", "a") as archive, zipfile.ZipFile(tmp_path / "g.pt") as old:
        for key in "23":
            archive.writestr(f"h/data/{key}", old.read(f"g/data/{key}"))
    assert read_graph(tmp_path / "h.pt").labels.tolist() == [3, 2, 1, 0]
