"""Read the pickle in a `.pt` file with a small interpreter of our own, which imports nothing.

Python's and PyTorch's unpicklers are not used. The interpreter has the operations that `torch.save` writes,
and no others. A class or function is a name in `_tensors.py`, which says what the name means here; every
other name is refused. Tensors become descriptions, whose sizes are checked before arrays are made.

The cost is bounded by the number of operations. Nothing here walks through nested values, so it does not
matter how deep they are or whether a list contains itself. Keys of dicts are texts and small numbers: the
hash of nested tuples can take 2^60 steps, and any number of large integers can have the same hash.
"""

import struct
from collections.abc import Callable
from typing import Any

from adar_runtime.errors import GraphError, short
from adar_runtime.graph.formats._tensors import CLASSES, FUNCTIONS, NUMBER_TYPES, Name, Object, Storage

MAX_OPERATIONS = 600_000  # 100,000 class names take 200,000; a list of 5,000 graphs takes all
MAX_BYTES = 64 * 2**20
LARGEST_KEY = 2**63
DAMAGED = "refused: its pickle is incomplete or damaged"
STOP = ord(".")


def read_pickle(content: bytes, find_storage: Callable[[Any], Storage]) -> Any:
    """The value in a pickle: plain values, and the objects of `_tensors.py`.

    Args:
        content: The pickle.
        find_storage: Makes a storage from its description in the pickle.

    Raises:
        GraphError: The pickle is damaged, is too large, or names something that is not part of a graph.
    """
    try:
        return _Machine(content, find_storage).run()
    except GraphError:
        raise
    except Exception as error:  # an invalid pickle causes errors of many types
        raise GraphError(DAMAGED) from error


class _Machine:
    """The stack and the memo of an unpickler. Every method that changes the stack is one operation."""

    def __init__(self, content: bytes, find_storage: Callable[[Any], Storage]) -> None:
        self._content, self._view = content, memoryview(content)
        self._at, self._find_storage = 0, find_storage
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(MAX_OPERATIONS):
            code = self._content[self._at]
            self._at += 1
            if code == STOP:
                return self._result()
            operation = OPERATIONS.get(code)
            if operation is None:
                _refuse(f"pickle operation 0x{code:02x}")
            else:
                operation(self)
        raise GraphError("refused: it holds far more objects than a graph; use .npz")

    def _result(self) -> Any:
        (value,) = self._stack
        if self._marks or self._at != len(self._content):
            raise ValueError("something follows the value")
        return value

    def _take(self, count: int) -> memoryview:
        taken = self._view[self._at : self._at + count]
        if len(taken) != count:
            raise ValueError("the pickle ends too early")
        self._at += count
        return taken

    def _number(self, count: int) -> int:
        return int.from_bytes(self._take(count), "little")

    def _line(self) -> str:
        end = self._content.index(b"\n", self._at)
        line = self._content[self._at : end].decode()
        self._at = end + 1
        return line

    def _pop(self, count: int) -> list[Any]:
        """The last values, which must be above the last mark."""
        start = len(self._stack) - count
        if start < (self._marks[-1] if self._marks else 0):
            raise IndexError("the stack is empty")
        return self._cut(start)

    def _pop_mark(self) -> list[Any]:
        """All values above the last mark."""
        return self._cut(self._marks.pop())

    def _cut(self, start: int) -> list[Any]:
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def protocol(self) -> None:
        self._take(1)

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def constant(self, value: bool | None) -> None:
        self._stack.append(value)

    def unsigned(self, count: int) -> None:
        self._stack.append(self._number(count))

    def signed(self, count: int) -> None:
        self._stack.append(int.from_bytes(self._take(count), "little", signed=True))

    def long(self) -> None:
        self.signed(self._number(1))

    def float(self) -> None:
        self._stack.append(struct.unpack(">d", self._take(8))[0])

    def text(self) -> None:
        try:  # Python would call a function for each half of a pair that it accepts: seconds for a small file
            self._stack.append(str(self._take(self._number(4)), "utf-8"))
        except UnicodeDecodeError as error:
            raise GraphError(
                "refused: a text in it contains characters that are not valid Unicode"
            ) from error

    def new_list(self) -> None:
        self._stack.append([])

    def new_dict(self) -> None:
        self._stack.append({})

    def make_tuple(self, count: int) -> None:
        self._stack.append(tuple(self._pop(count)))

    def make_long_tuple(self) -> None:
        self._stack.append(tuple(self._pop_mark()))

    def remember(self, count: int) -> None:
        self._memo[self._number(count)] = self._stack[-1]

    def recall(self, count: int) -> None:
        self._stack.append(self._memo[self._number(count)])

    def append(self) -> None:
        self._extend(self._pop(1))

    def append_all(self) -> None:
        self._extend(self._pop_mark())

    def set_item(self) -> None:
        self._update(self._pop(2))

    def set_items(self) -> None:
        self._update(self._pop_mark())

    def name(self) -> None:
        name = f"{self._line()} {self._line()}"
        if name not in FUNCTIONS and name not in CLASSES and name not in NUMBER_TYPES:
            _refuse(name)
        self._stack.append(Name(name))

    def call(self) -> None:
        function, arguments = self._pop(2)
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise TypeError("a call of something else than a function")
        if function.text not in FUNCTIONS:
            _refuse(function.text)
        self._stack.append(FUNCTIONS[function.text](*arguments))

    def new_object(self) -> None:
        kind, arguments = self._pop(2)
        if not isinstance(kind, Name) or not isinstance(arguments, tuple) or arguments:
            raise TypeError("an object of something else than a class")
        if kind.text not in CLASSES:
            _refuse(kind.text)
        self._stack.append(Object(kind.text))

    def set_state(self) -> None:
        (state,) = self._pop(1)
        target = self._stack[-1]
        if not isinstance(target, Object) or target.kind not in CLASSES or not isinstance(state, dict):
            raise TypeError("attributes of something else than PyG's containers")
        if target.state is not None:  # copying the attributes again and again would take any time
            raise ValueError("attributes that are set twice")
        target.state = state

    def storage(self) -> None:
        self._stack.append(self._find_storage(*self._pop(1)))

    def _extend(self, values: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise TypeError("only a list has items")
        self._stack[-1].extend(values)

    def _update(self, values: list[Any]) -> None:
        keys = values[::2]
        if not isinstance(self._stack[-1], dict) or len(values) % 2:
            raise TypeError("only a dict has keys")
        if not all(map(_is_key, keys)):
            raise GraphError("refused: a key of a dict is neither a text nor a small number; use .npz")
        self._stack[-1].update(zip(keys, values[1::2], strict=True))


def _is_key(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) <= LARGEST_KEY
    return value is None or isinstance(value, str | float)


def _refuse(found: str) -> None:
    raise GraphError(
        f"refused: it holds objects that could run code when loaded ({short(found)}); "
        "save a PyG Data of tensors, or use .npz"
    )


OPERATIONS: dict[int, Callable[[_Machine], None]] = {
    0x80: _Machine.protocol,
    ord("("): _Machine.mark,
    ord("N"): lambda machine: machine.constant(None),
    0x88: lambda machine: machine.constant(True),
    0x89: lambda machine: machine.constant(False),
    ord("K"): lambda machine: machine.unsigned(1),
    ord("M"): lambda machine: machine.unsigned(2),
    ord("J"): lambda machine: machine.signed(4),
    0x8A: _Machine.long,
    ord("G"): _Machine.float,
    ord("X"): _Machine.text,
    ord("]"): _Machine.new_list,
    ord("}"): _Machine.new_dict,
    ord(")"): lambda machine: machine.make_tuple(0),
    0x85: lambda machine: machine.make_tuple(1),
    0x86: lambda machine: machine.make_tuple(2),
    0x87: lambda machine: machine.make_tuple(3),
    ord("t"): _Machine.make_long_tuple,
    ord("q"): lambda machine: machine.remember(1),
    ord("r"): lambda machine: machine.remember(4),
    ord("h"): lambda machine: machine.recall(1),
    ord("j"): lambda machine: machine.recall(4),
    ord("a"): _Machine.append,
    ord("e"): _Machine.append_all,
    ord("s"): _Machine.set_item,
    ord("u"): _Machine.set_items,
    ord("c"): _Machine.name,
    ord("R"): _Machine.call,
    0x81: _Machine.new_object,
    ord("b"): _Machine.set_state,
    ord("Q"): _Machine.storage,
}
"""Code -> operation: what Python's pickler writes for protocol 2, which `torch.save` uses."""
