"""Write `.pt` files that PyTorch would not write, and check the error of reading one."""

import io
import pickle
import time
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from adar_runtime.errors import GraphError

SECONDS = 2


X, EDGES = torch.ones(4, 10), torch.tensor([[0, 1], [1, 2]])


def save(path: Path, **entries: object) -> Path:
    if any(isinstance(entry, Forged | Sparse) for entry in entries.values()):
        forge(path, entries)
        return path
    torch.save(Data(**{"x": X, "edge_index": EDGES} | entries), path)
    return path


def with_pickle(pickled: bytes) -> Callable[[Path], None]:
    """A file of PyTorch with its pickle replaced."""

    def make(path: Path) -> None:
        save(path)
        rewrite(path, path, lambda name, old: pickled if name.endswith("data.pkl") else old)

    return make


def rewrite(
    old: Path, new: Path, change: Callable[[str, bytes], bytes], kind: int = zipfile.ZIP_STORED
) -> None:
    """Write an archive again, with the content that `change` returns for the name and content of a member."""
    with zipfile.ZipFile(old) as archive:
        kept = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(new, "w", kind) as archive:
        for name, content in kept.items():
            archive.writestr(name, change(name, content))


def call(name: str, *arguments: object) -> bytes:
    """The pickle of a call, in operations that PyTorch's unpickler supports."""
    module, _, function = name.rpartition(".")
    given = pickle.dumps(arguments, 2)[2:-1]
    return b"\x80\x02c" + f"{module}\n{function}\n".encode() + given + b"R."


def text(value: str) -> bytes:
    """The operation of a text."""
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def quiet(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A tensor without PyTorch's warnings about its kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


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


def assert_refused(read: Callable[[Path], object], path: Path, message: str) -> None:
    """Reading the file is one short error with this message, within `SECONDS` of processor time."""
    started = time.process_time()
    with pytest.raises(GraphError) as error:
        read(path)
    assert time.process_time() - started < SECONDS
    assert message in str(error.value)
    assert len(str(error.value)) < 500
