"""Check the pickle in a `.pt` file without running it, before PyTorch reads it.

PyTorch's restricted unpickler calls only functions that it knows to be safe, but these include
`bytearray(10**12)`. The check here allows only the classes and functions that tensors and PyG's containers
need. It also runs before PyTorch is imported, which takes seconds.

Classes are listed one by one: PyG also declares classes safe whose constructor reads another file, without
restrictions (`ClusterData`).

The check follows the stack of the unpickler without building objects. A few bytes can nest a tuple in itself
60 times, twice each time. Its hash then takes 2^60 steps, and Python computes it for the key of a dict. So
keys are texts and numbers only, and the size of a value counts repeated parts as often as they appear.
A tensor can repeat one number any number of times. PyTorch reads all numbers of a sparse tensor to check
them, so these count as well.
"""

import pickletools
import re
from typing import Any

from adar_runtime.errors import GraphError, short
from adar_runtime.graph.limits import ByteBudget

MAX_OPERATIONS = 500_000  # 100,000 class names take 200,000
MAX_BYTES = 64 * 2**20
TOO_MANY = "refused: it holds far more objects than a graph; use .npz"

OPERATIONS = """
    APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPERSID BINPUT BINUNICODE BUILD EMPTY_DICT
    EMPTY_LIST EMPTY_SET EMPTY_TUPLE GLOBAL LONG1 LONG_BINGET LONG_BINPUT MARK NEWFALSE NEWOBJ NEWTRUE NONE
    PROTO REDUCE SETITEM SETITEMS SHORT_BINSTRING STOP TUPLE TUPLE1 TUPLE2 TUPLE3
"""
ALLOWED_OPERATIONS = frozenset(OPERATIONS.split())
"""The operations that PyTorch's restricted unpickler implements."""

INTEGER_OPERATIONS = ("BININT", "BININT1", "BININT2", "LONG1")
PLAIN_OPERATIONS = ("BINFLOAT", "BINUNICODE", "SHORT_BINSTRING", "NEWFALSE", "NEWTRUE", "NONE")
NEW_OPERATIONS = ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET")
# The number of values that become one; None: all after the last mark.
TUPLE_OPERATIONS = {"EMPTY_TUPLE": 0, "TUPLE": None, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "BINPERSID": 1}

TENSORS = tuple(f"torch._utils _rebuild_tensor{version}" for version in ("", "_v2", "_v3"))
SIZES = 2  # the argument of these functions that has the sizes of the tensor
SPARSE = "torch._utils _rebuild_sparse_tensor"
NUMBER_BYTES = 8  # of an index of a sparse tensor

FUNCTIONS = frozenset(
    {
        *TENSORS,
        "collections OrderedDict",
        "torch Size",
        "torch device",
        "torch.serialization _get_layout",
        SPARSE,
        "torch._utils _rebuild_parameter",
        "torch._utils _rebuild_meta_tensor_no_storage",
    }
)
"""What a pickle may call."""

CONTAINERS = frozenset(
    {
        "torch_geometric.data.data Data",
        "torch_geometric.data.data DataEdgeAttr",
        "torch_geometric.data.data DataTensorAttr",
        "torch_geometric.data.storage GlobalStorage",
    }
)
"""The classes that a PyG `Data` consists of. A pickle may make objects of them and set their attributes."""

NAMED = re.compile(
    r"torch (\w+Storage|b?float\w*|u?int\d*|complex\d+|bool|half|double|long|short)"
    r"|torch\.storage UntypedStorage"
)
"""Types of numbers, which a pickle may name, but not call: `UntypedStorage(10**12)` allocates memory."""


def check_pickle(content: bytes, budget: ByteBudget) -> None:
    """Raise a GraphError unless the pickle holds only tensors, PyG's containers and plain values.

    Args:
        content: The pickle.
        budget: The memory for the parts of sparse tensors, which can be larger than the file.
    """
    stack = _Stack(budget)
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(content), start=1):
            if operation.name not in ALLOWED_OPERATIONS:
                _refuse(f"pickle operation {operation.name}")
            if operation.name == "GLOBAL" and not _is_allowed(str(argument)):
                _refuse(str(argument))
            if count > MAX_OPERATIONS:
                raise GraphError(TOO_MANY)
            stack.follow(operation.name, argument)
    except GraphError:
        raise
    except Exception as error:  # pickletools raises many types of error on invalid pickles
        raise GraphError("refused: its pickle is incomplete or damaged") from error


class _Value:
    """A value on the stack: whether it may be a key, its size with all repetitions, and what is known of it.

    `known` is an integer, the parts of a tuple, or the name of a function, a class, or an object's class.
    `numbers` counts the numbers of the tensors in it.
    """

    __slots__ = ("is_key", "known", "numbers", "size")

    def __init__(self, known: "int | str | list[_Value] | None" = None, *, is_key: bool = False) -> None:
        self.known, self.is_key, self.size, self.numbers = known, is_key, 1, 0

    def add(self, parts: list["_Value"]) -> "_Value":
        self.size += sum(part.size for part in parts)
        self.numbers += sum(part.numbers for part in parts)
        if self.size > MAX_OPERATIONS:
            raise GraphError(TOO_MANY)
        return self


PLAIN = _Value(is_key=True)  # a text or a number; never changed


class _Stack:
    """The stack and the memo of an unpickler."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._values: list[_Value] = []
        self._marks: list[int] = []
        self._memo: dict[int, _Value] = {}

    def follow(self, name: str, argument: Any) -> None:
        """Do to the stack what an operation does."""
        if name in PLAIN_OPERATIONS:
            self._values.append(PLAIN)
        elif name in INTEGER_OPERATIONS:
            self._values.append(_Value(argument, is_key=True))
        elif name in NEW_OPERATIONS:
            self._values.append(_Value())
        elif name == "GLOBAL":
            self._values.append(_Value(argument))
        elif name == "MARK":
            self._marks.append(len(self._values))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self._values[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self._values.append(self._memo[argument])
        elif name in TUPLE_OPERATIONS:
            parts = self._pop(TUPLE_OPERATIONS[name])
            self._values.append(_Value(parts).add(parts))
        elif name in ("REDUCE", "NEWOBJ"):
            function, arguments = self._pop(2)
            self._call(function, arguments, FUNCTIONS if name == "REDUCE" else CONTAINERS)
        elif name in ("SETITEM", "SETITEMS"):
            parts = self._pop(2 if name == "SETITEM" else None)
            if not all(key.is_key for key in parts[::2]):
                raise GraphError("refused: a key of a dict is neither a text nor a number; use .npz")
            self._add(parts)
        elif name in ("APPEND", "APPENDS", "BUILD"):
            parts = self._pop(None if name == "APPENDS" else 1)
            if name == "BUILD" and self._values[-1].known not in CONTAINERS:
                raise ValueError(
                    "attributes of something else than PyG's containers"
                )  # of a tensor: its size
            self._add(parts)

    def _call(self, function: _Value, arguments: _Value, allowed: frozenset[str]) -> None:
        """Call a function, or make an object of a class."""
        name, parts = function.known, arguments.known
        if not isinstance(name, str) or not isinstance(parts, list):
            raise ValueError("a call of something else than a function")
        if name not in allowed:
            _refuse(name)
        result = _Value(name if name in CONTAINERS else None).add([function, arguments])
        if name in TENSORS:
            result.numbers += _numbers(parts[SIZES])
        elif name == SPARSE:
            self._budget.reserve("a sparse tensor", result.numbers, NUMBER_BYTES)
        self._values.append(result)

    def _add(self, parts: list[_Value]) -> None:
        """Put parts into the last value."""
        if self._values[-1].is_key:
            raise ValueError("a text or a number has no parts")
        self._values[-1].add(parts)

    def _pop(self, count: int | None) -> list[_Value]:
        """The last values; all after the last mark if no number is given."""
        start = self._marks.pop() if count is None else len(self._values) - count
        if start < 0:
            raise IndexError("the stack is empty")
        parts = self._values[start:]
        del self._values[start:]
        return parts


def _numbers(sizes: _Value) -> int:
    """The numbers of a tensor with these sizes."""
    product = 1
    for side in sizes.known if isinstance(sizes.known, list) else [sizes]:
        if not isinstance(side.known, int) or side.known < 0:
            raise ValueError("sizes that are not a tuple of integers")
        product *= side.known
    return product


def _is_allowed(name: str) -> bool:
    return name in FUNCTIONS or name in CONTAINERS or NAMED.fullmatch(name) is not None


def _refuse(found: str) -> None:
    raise GraphError(
        f"refused: it holds objects that could run code when loaded ({short(found)}); "
        "save a PyG Data of tensors, or use .npz"
    )
