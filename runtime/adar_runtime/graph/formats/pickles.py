"""Looks through the pickle of a `.pt` file before PyTorch does, without running any of it.

PyTorch's restricted unpickler calls nothing that it does not know to be safe, but what it knows includes
`bytearray(10**12)`. Here a pickle may name what tensors and PyG's containers are made of, and no more; it is
refused before PyTorch, which takes seconds to import, is there to read it.
"""

import pickletools
import re

from adar_runtime.errors import GraphError, short

MAX_OPERATIONS = 500_000  # of a pickle: 100,000 names of classes take 200,000
MAX_BYTES = 64 * 2**20

OPERATIONS = """
    APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPERSID BINPUT BINUNICODE BUILD EMPTY_DICT
    EMPTY_LIST EMPTY_SET EMPTY_TUPLE GLOBAL LONG1 LONG_BINGET LONG_BINPUT MARK NEWFALSE NEWOBJ NEWTRUE NONE
    PROTO REDUCE SETITEM SETITEMS SHORT_BINSTRING STOP TUPLE TUPLE1 TUPLE2 TUPLE3
"""
KNOWN = frozenset(OPERATIONS.split())
"""What PyTorch's restricted unpickler understands."""

GLOBALS = frozenset(
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


TYPES = re.compile(r"torch (\w+Storage|b?float\w*|u?int\d*|complex\d+|bool|half|double|long|short)")
"""Of numbers."""


def check(content: bytes) -> None:
    """Raise a GraphError unless the pickle is made of tensors, PyG's containers and plain values."""
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(content), start=1):
            if operation.name not in KNOWN:
                _refuse(f"a pickle's {operation.name}")
            if operation.name == "GLOBAL" and not _is_known(str(argument)):
                _refuse(str(argument))
            if count > MAX_OPERATIONS:
                raise GraphError("refused: it holds far more objects than a graph; use .npz")
    except GraphError:
        raise
    except Exception as error:  # a pickle that is none makes pickletools stumble in many ways
        raise GraphError("refused: what it holds is not a whole pickle") from error


def _is_known(name: str) -> bool:
    return name in GLOBALS or TYPES.fullmatch(name) is not None or name.startswith("torch_geometric.")


def _refuse(found: str) -> None:
    raise GraphError(
        f"refused: it holds objects that could run code when loaded ({short(found)}); "
        "save a PyG Data of tensors, or use .npz"
    )
