"""What the names in the pickle of a `.pt` file mean: tensors, described by their place in a storage.

A description is checked against the length of its storage when it is made. It becomes an array in
`_tensor_arrays.py`, and only if the graph needs it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adar_runtime.errors import GraphError

DATA = "torch_geometric.data.data Data"
STORE = "torch_geometric.data.storage GlobalStorage"
CLASSES = frozenset(
    {
        DATA,
        STORE,
        "torch_geometric.data.data DataEdgeAttr",
        "torch_geometric.data.data DataTensorAttr",
    }
)
"""The classes that a PyG `Data` consists of. A pickle may make objects of them and set their attributes."""

BFLOAT16 = "bfloat16"
FLOAT8 = {  # exponent bits, fraction bits, bias, and whether the code of -0 is the only NaN
    "float8_e4m3fn": (4, 3, 7, False),
    "float8_e5m2": (5, 2, 15, False),
    "float8_e4m3fnuz": (4, 3, 8, True),
    "float8_e5m2fnuz": (5, 2, 16, True),
    "float8_e8m0fnu": (8, 0, 127, False),
}
WITHOUT_NUMPY_TYPE = {
    "complex32": 4,
    "float4_e2m1fn_x2": 1,
    **{f"{sign}int{bits}": 1 for sign in ("", "u") for bits in range(1, 8)},
}
"""Bytes of a number of the types that cannot be converted. Keys that are not read may have them."""

ITEM_BYTES = {
    **{f"{sign}int{8 * size}": size for sign in ("", "u") for size in (1, 2, 4, 8)},
    "bool": 1,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    BFLOAT16: 2,
    **dict.fromkeys(FLOAT8, 1),
    # Without a conversion to numpy: a graph may have such tensors under keys that are not read.
    "complex32": 4,
    "float4_e2m1fn_x2": 1,
    **{f"{sign}int{bits}": 1 for sign in ("", "u") for bits in range(1, 8)},
}
"""Bytes of a number by the name of its type in PyTorch."""

UNTYPED = "uint8"  # a storage without a type has bytes
STORAGE_TYPES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": BFLOAT16,
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
}
NUMBER_TYPES = {
    **{f"torch {name}": name for name in ITEM_BYTES},
    **{f"torch {prefix}Storage": name for prefix, name in STORAGE_TYPES.items()},
    "torch.storage UntypedStorage": UNTYPED,
}
"""Names of types of numbers, which a pickle may name, but not call."""

MAX_DIMENSIONS = 64  # as in PyTorch
LARGEST = 2**63 - 1
COO, CSR, CSC = "torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc"
LAYOUTS = (COO, CSR, CSC, "torch.sparse_bsr", "torch.sparse_bsc")
BEYOND = "refused: a tensor is larger than its storage: the file is damaged"


@dataclass(slots=True, eq=False)
class Name:
    """The name of a class or function, as "module name"."""

    text: str


@dataclass(slots=True, eq=False)
class Object:
    """An object of a class by its name, and its attributes, which a pickle sets once."""

    kind: str
    state: dict[Any, Any] | None = None


@dataclass(slots=True, eq=False)
class Storage:
    """A member of the archive that holds numbers: its key, the type of its numbers, and its bytes."""

    key: str
    type: str
    bytes: int


@dataclass(slots=True, eq=False)
class Tensor:
    """A part of a storage. Offset and strides count numbers. Without a storage: a tensor without data."""

    storage: Storage | None
    type: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    negative: bool = False
    conjugate: bool = False

    @property
    def count(self) -> int:
        """The numbers in it, each as often as it appears."""
        return math.prod(self.shape)


@dataclass(slots=True, eq=False)
class SparseTensor:
    """The parts of a sparse tensor: indices, values. The layout is one of LAYOUTS."""

    layout: str
    parts: tuple[Tensor, ...]
    shape: tuple[int, ...]


def storage_from(described: Any, lengths: dict[str, int]) -> Storage:
    """The storage that a pickle describes. `lengths` has the bytes of each storage in the archive."""
    marker, kind, key, _location, count = described
    if marker != "storage" or not isinstance(kind, Name) or not isinstance(key, str):
        raise TypeError("not the description of a storage")
    type_name = NUMBER_TYPES[kind.text]
    found = _whole((count,))[0] * ITEM_BYTES[type_name]
    if key not in lengths or found > lengths[key]:
        raise GraphError(BEYOND)
    return Storage(key, type_name, found)


def _whole(values: Any) -> tuple[int, ...]:
    """The values if they are a short tuple of integers from 0 to 2^63 - 1."""
    if not isinstance(values, tuple) or len(values) > MAX_DIMENSIONS:
        raise TypeError("not a short tuple")
    if not all(type(each) is int and 0 <= each <= LARGEST for each in values):
        raise TypeError("not a tuple of sizes")
    return values


def _tensor(
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    _requires_grad: Any = None,
    _hooks: Any = None,
    metadata: Any = None,
) -> Tensor:
    """A tensor of the type of its storage."""
    return _typed_tensor(storage, offset, size, stride, None, None, None, metadata)


def _typed_tensor(
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    _grad: Any,
    _hooks: Any,
    kind: Any,
    metadata: Any = None,
) -> Tensor:
    if not isinstance(storage, Storage):
        raise TypeError("a tensor without a storage")
    type_name = storage.type if kind is None else NUMBER_TYPES[kind.text]
    (start,), shape, strides = _whole((offset,)), _whole(size), _whole(stride)
    flags = metadata or {}
    if len(shape) != len(strides) or not isinstance(flags, dict):
        raise ValueError("sizes, strides or flags that do not fit")
    last = start + sum((side - 1) * step for side, step in zip(shape, strides, strict=True))
    if 0 not in shape and (last + 1) * ITEM_BYTES[type_name] > storage.bytes:
        raise GraphError(BEYOND)
    return Tensor(storage, type_name, start, shape, strides, bool(flags.get("neg")), bool(flags.get("conj")))


def _meta_tensor(kind: Any, size: Any, stride: Any, _requires_grad: Any) -> Tensor:
    return Tensor(None, NUMBER_TYPES[kind.text], 0, _whole(size), _whole(stride))


def _sparse_tensor(layout: Any, described: Any) -> SparseTensor:
    """COO: (indices, values, size, and whether they are sorted); others: (starts, indices, values, size)."""
    count = 2 if _layout(layout) == COO else 3
    parts, size = described[:count], _whole(described[count])
    if not isinstance(described, tuple) or not all(isinstance(each, Tensor) for each in parts):
        raise TypeError("not the parts of a sparse tensor")
    return SparseTensor(layout, parts, size)


def _parameter(tensor: Any, _requires_grad: Any, _hooks: Any) -> Any:
    if not isinstance(tensor, Tensor | SparseTensor):
        raise TypeError("a parameter without a tensor")
    return tensor


def _layout(name: Any) -> str:
    if not isinstance(name, str) or name not in LAYOUTS:
        raise TypeError("not the layout of a sparse tensor")
    return name


def _device(_kind: Any, _index: Any = None) -> Object:
    return Object("torch device")


def _size(sides: Any = ()) -> tuple[int, ...]:
    return _whole(sides)


def _ordered_dict() -> dict[Any, Any]:
    return {}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch._utils _rebuild_tensor": _tensor,
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_tensor_v3": _typed_tensor,
    "torch._utils _rebuild_meta_tensor_no_storage": _meta_tensor,
    "torch._utils _rebuild_sparse_tensor": _sparse_tensor,
    "torch._utils _rebuild_parameter": _parameter,
    "torch.serialization _get_layout": _layout,
    "torch Size": _size,
    "torch device": _device,
    "collections OrderedDict": _ordered_dict,
}
"""What a pickle may call, and the function here that is called instead."""
