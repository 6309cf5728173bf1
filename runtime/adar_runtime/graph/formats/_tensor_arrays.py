"""Numpy arrays from the tensors of a `.pt` file. Memory is counted before it is used."""

from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError, short
from adar_runtime.graph import MASKS, Floats, SparseRows
from adar_runtime.graph._checks import rises
from adar_runtime.graph.formats._archive import Archive, read_member
from adar_runtime.graph.formats._tensors import (
    BFLOAT16,
    COO,
    CSC,
    CSR,
    FLOAT8,
    ITEM_BYTES,
    WITHOUT_NUMPY_TYPE,
    SparseTensor,
    Storage,
    Tensor,
)
from adar_runtime.graph.limits import SPARSE_ENTRY_BYTES, SPARSE_ROW_BYTES, ByteBudget

FLOAT8_BYTES = 12  # of a number while it is looked up: its index and its value
ORDERS: dict[str, Literal["<", ">"]] = {"little": "<", "big": ">"}


class TensorArrays:
    """Makes arrays of the tensors in one archive.

    Args:
        archive: The open archive.
        folder: The folder of its members.
        budget: The memory that the arrays may take.
    """

    def __init__(self, archive: Archive, folder: str, budget: ByteBudget) -> None:
        self._archive, self._folder, self._budget = archive, folder, budget
        self._storages: dict[str, NDArray[np.uint8]] = {}
        self._order = self._byte_order()

    def array(self, key: str, tensor: Tensor | SparseTensor) -> Any:
        """An array, or sparse rows, of a tensor under a key of the graph."""
        if isinstance(tensor, SparseTensor):
            return self._sparse_rows(key, tensor)
        found = _numpy_type(key, tensor)
        self._budget.reserve_array(key, tensor.count, found, copied=not _in_rows(tensor))
        array = self._view(key, tensor)
        return array.T if key in MASKS and array.ndim == 2 else array  # PyG stores several splits as columns

    def _byte_order(self) -> Literal["<", ">"]:
        name = f"{self._folder}/byteorder"
        if name not in self._archive.NameToInfo:
            return ORDERS["little"]
        return ORDERS[read_member(self._archive, name).tobytes().decode()]

    def _view(self, key: str, tensor: Tensor) -> NDArray[Any]:
        """The numbers of a tensor, as a view of its storage or, if they are converted, as a copy."""
        converted, size = _numpy_type(key, tensor), ITEM_BYTES[tensor.type]
        stored = np.dtype(f"u{size}" if _is_narrow(tensor) else converted).newbyteorder(self._order)
        if _is_narrow(tensor) or stored != converted or converted == np.bool_:
            item = FLOAT8_BYTES if tensor.type in FLOAT8 else converted.itemsize
            self._budget.reserve(key, tensor.count, item)
        if tensor.negative or tensor.conjugate:
            self._budget.reserve(key, tensor.count, converted.itemsize)
        if not tensor.count or tensor.storage is None:
            return np.zeros(tensor.shape, converted)
        content = self._content(key, tensor.storage, tensor.count * size)
        strides = tuple(size * step for step in tensor.strides)
        view: NDArray[Any] = np.ndarray(tensor.shape, stored, content, size * tensor.offset, strides)
        return _with_flags(_converted(view, tensor.type, converted), tensor)

    def _content(self, key: str, storage: Storage, counted: int) -> NDArray[np.uint8]:
        """The bytes of a storage, read once. `counted` of them are in the budget already."""
        if storage.key not in self._storages:
            name = f"{self._folder}/data/{storage.key}"
            self._budget.reserve(key, max(0, self._archive.getinfo(name).file_size - counted), 1)
            self._storages[storage.key] = read_member(self._archive, name)
        return self._storages[storage.key]

    def _sparse_rows(self, key: str, tensor: SparseTensor) -> SparseRows:
        if key != "x":
            raise GraphError(f"{key} is a sparse tensor: only x may be sparse")
        if len(tensor.shape) != 2:
            raise GraphError(f"x has shape {list(tensor.shape)}, not [rows, columns]")
        if tensor.layout not in (COO, CSR, CSC):
            raise GraphError("x is sparse in blocks: convert it with x.to_dense() or x.to_sparse()")
        (rows, columns), values = tensor.shape, tensor.parts[-1]
        lines = columns if tensor.layout == CSC else rows
        self._budget.reserve(key, rows + (lines if tensor.layout == CSC else 0), 8 + SPARSE_ROW_BYTES)
        # Twice: the entries are sorted by row here, and by column in SparseRows.
        self._budget.reserve(key, values.count, 16 + 2 * SPARSE_ENTRY_BYTES)
        entries = values.shape[:1]
        expected = [(2, *entries)] if tensor.layout == COO else [(lines + 1,), entries]
        if len(values.shape) != 1 or [part.shape for part in tensor.parts[:-1]] != expected:
            raise GraphError("the parts of the sparse tensor x do not fit together")
        *indices, numbers = (self._view(key, part) for part in tensor.parts)
        if any(index.dtype.kind not in "iu" for index in indices):
            raise GraphError("the indices of the sparse tensor x are not integers")
        if tensor.layout == CSR:
            return SparseRows(indices[0], indices[1], numbers, (rows, columns))
        row, column = (
            indices[0] if tensor.layout == COO else (indices[1], _expanded(indices[0], len(numbers)))
        )
        return _sorted_rows(row, column, numbers, (rows, columns))


def _numpy_type(key: str, tensor: Tensor) -> np.dtype[Any]:
    """The type of the array; float types that numpy does not have become float32."""
    if tensor.storage is None:
        raise GraphError(f"{key} is a tensor without data (device 'meta')")
    if tensor.type in WITHOUT_NUMPY_TYPE:
        raise GraphError(
            f"{key} has the type torch.{tensor.type}, which numpy does not have: convert it to float32"
        )
    return np.dtype(np.float32 if _is_narrow(tensor) else tensor.type)


def _is_narrow(tensor: Tensor) -> bool:
    """Whether the tensor has a float type that numpy does not have."""
    return tensor.type == BFLOAT16 or tensor.type in FLOAT8


def _in_rows(tensor: Tensor) -> bool:
    """Whether the numbers lie one after the other, row by row."""
    expected = 1
    for side, step in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if side != 1 and step != expected:
            return False
        expected *= side
    return True


def _converted(view: NDArray[Any], name: str, wanted: np.dtype[Any]) -> NDArray[Any]:
    """Numbers of a type and byte order that numpy computes with."""
    if name == BFLOAT16:
        bits = view.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    if name in FLOAT8:
        return float8_values(name)[view]
    if wanted == np.bool_:  # another byte than 0 and 1 would be a boolean that is neither
        return np.not_equal(view.view(np.uint8), 0)
    return view.astype(wanted, copy=False)


def _with_flags(array: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
    """PyTorch marks tensors as negative or conjugate instead of changing their numbers."""
    if tensor.conjugate and array.dtype.kind == "c":
        array = array.conj()
    if tensor.negative and array.dtype.kind in "fic":
        array = -array
    return array


@cache
def float8_values(name: str) -> Floats:
    """The number of each of the 256 codes of an 8-bit float type."""
    exponent_bits, fraction_bits, bias, one_nan = FLOAT8[name]
    codes = np.arange(256)
    fraction = codes % 2**fraction_bits / 2**fraction_bits
    exponent = codes >> fraction_bits & (2**exponent_bits - 1)
    if not fraction_bits:  # powers of two, without sign and zero
        return np.where(codes == 255, np.nan, 2.0 ** (codes - bias)).astype(np.float32)
    size = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    values = np.where(codes >= 128, -size, size)
    top = exponent == 2**exponent_bits - 1
    if one_nan:
        values[0x80] = np.nan
    elif name == "float8_e5m2":
        values[top] = np.where(fraction[top] == 0, np.sign(values[top]) * np.inf, np.nan)
    else:
        values[[0x7F, 0xFF]] = np.nan
    return values.astype(np.float32)


def _expanded(starts: NDArray[Any], entries: int) -> NDArray[np.int64]:
    """The column of each entry of a matrix that is stored by columns."""
    starts = starts.astype(np.int64)
    if starts[0] != 0 or starts[-1] != entries or not rises(starts):
        raise GraphError("the columns of the sparse tensor x do not rise from 0 to the number of entries")
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def _sorted_rows(
    row: NDArray[Any], column: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]
) -> SparseRows:
    if row.size and not 0 <= row.min() <= row.max() < shape[0]:
        raise GraphError(f"the sparse tensor x has entries outside its {short(shape[0])} rows")
    order = np.argsort(row, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=shape[0]))])
    return SparseRows(starts, column[order], values[order], shape)
