"""Check the pickle in a `.pt` file without running it, before PyTorch reads it.

PyTorch's restricted unpickler calls only functions that it knows to be safe, but these include
`bytearray(10**12)`. The check here allows only the classes and functions that tensors and PyG's containers
need. It also runs before PyTorch is imported, which takes seconds.

The check follows the stack of the unpickler without building objects. A few bytes can nest a tuple in itself
60 times, twice each time. Its hash then takes 2^60 steps, and Python computes it for the key of a dict. So
keys are texts and numbers only, and the size of a value counts repeated parts as often as they appear.
"""

import pickletools
import re
from typing import Any

from adar_runtime.errors import GraphError, short

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

PLAIN_OPERATIONS = (
    *("BINFLOAT", "BININT", "BININT1", "BININT2", "BINUNICODE", "LONG1", "SHORT_BINSTRING"),
    *("NEWFALSE", "NEWTRUE", "NONE"),
)
NEW_OPERATIONS = ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET", "EMPTY_TUPLE", "GLOBAL")
# The number of values that become one; None: all after the last mark. A call becomes a tuple of its parts.
TUPLE_OPERATIONS = {
    "TUPLE": None,
    "TUPLE1": 1,
    "TUPLE2": 2,
    "TUPLE3": 3,
    "REDUCE": 2,
    "NEWOBJ": 2,
    "BINPERSID": 1,
}

ALLOWED_GLOBALS = frozenset(
    {
        "collections OrderedDict",
        "torch Size",
        "torch device",
        "torch.serialization _get_layout",
        "torch.storage UntypedStorage",
        "torch._utils _rebuild_tensor",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_tensor_v3",
        "torch._utils _rebuild_parameter",
        "torch._utils _rebuild_sparse_tensor",
        "torch._utils _rebuild_meta_tensor_no_storage",
    }
)

NUMBER_TYPES = re.compile(r"torch (\w+Storage|b?float\w*|u?int\d*|complex\d+|bool|half|double|long|short)")


def check_pickle(content: bytes) -> None:
    """Raise a GraphError unless the pickle holds only tensors, PyG's containers and plain values."""
    stack = _Stack()
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
    """A value on the stack: whether it may be a key, and its size with all repetitions."""

    __slots__ = ("is_key", "size")

    def __init__(self, *, is_key: bool = False, size: int = 1) -> None:
        self.is_key, self.size = is_key, size

    def add(self, parts: list["_Value"]) -> "_Value":
        self.size += sum(part.size for part in parts)
        if self.size > MAX_OPERATIONS:
            raise GraphError(TOO_MANY)
        return self


PLAIN = _Value(is_key=True)  # a text or a number; never changed


class _Stack:
    """The stack and the memo of an unpickler."""

    def __init__(self) -> None:
        self._values: list[_Value] = []
        self._marks: list[int] = []
        self._memo: dict[int, _Value] = {}

    def follow(self, name: str, argument: Any) -> None:
        """Do to the stack what an operation does."""
        if name in PLAIN_OPERATIONS:
            self._values.append(PLAIN)
        elif name in NEW_OPERATIONS:
            self._values.append(_Value())
        elif name == "MARK":
            self._marks.append(len(self._values))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self._values[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self._values.append(self._memo[argument])
        elif name in TUPLE_OPERATIONS:
            self._values.append(_Value().add(self._pop(TUPLE_OPERATIONS[name])))
        elif name in ("SETITEM", "SETITEMS"):
            parts = self._pop(2 if name == "SETITEM" else None)
            if not all(key.is_key for key in parts[::2]):
                raise GraphError("refused: a key of a dict is neither a text nor a number; use .npz")
            self._add(parts)
        elif name in ("APPEND", "APPENDS", "BUILD"):
            self._add(self._pop(None if name == "APPENDS" else 1))

    def _add(self, parts: list[_Value]) -> None:
        """Put parts into the last value."""
        if self._values[-1] is PLAIN:
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


def _is_allowed(name: str) -> bool:
    known = name in ALLOWED_GLOBALS or NUMBER_TYPES.fullmatch(name) is not None
    return known or name.startswith("torch_geometric.")


def _refuse(found: str) -> None:
    raise GraphError(
        f"refused: it holds objects that could run code when loaded ({short(found)}); "
        "save a PyG Data of tensors, or use .npz"
    )
