"""Check the pickle in a `.pt` file without running it, before PyTorch reads it.

PyTorch's restricted unpickler calls only functions that it knows to be safe, but these include
`bytearray(10**12)`. The check here allows only the classes and functions that tensors and PyG's containers
need. It also runs before PyTorch is imported, which takes seconds.
"""

import pickletools
import re

from adar_runtime.errors import GraphError, short

MAX_OPERATIONS = 500_000  # 100,000 class names take 200,000
MAX_BYTES = 64 * 2**20

OPERATIONS = """
    APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPERSID BINPUT BINUNICODE BUILD EMPTY_DICT
    EMPTY_LIST EMPTY_SET EMPTY_TUPLE GLOBAL LONG1 LONG_BINGET LONG_BINPUT MARK NEWFALSE NEWOBJ NEWTRUE NONE
    PROTO REDUCE SETITEM SETITEMS SHORT_BINSTRING STOP TUPLE TUPLE1 TUPLE2 TUPLE3
"""
ALLOWED_OPERATIONS = frozenset(OPERATIONS.split())
"""The operations that PyTorch's restricted unpickler implements."""

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
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(content), start=1):
            if operation.name not in ALLOWED_OPERATIONS:
                _refuse(f"pickle operation {operation.name}")
            if operation.name == "GLOBAL" and not _is_allowed(str(argument)):
                _refuse(str(argument))
            if count > MAX_OPERATIONS:
                raise GraphError("refused: it holds far more objects than a graph; use .npz")
    except GraphError:
        raise
    except Exception as error:  # pickletools raises many types of error on invalid pickles
        raise GraphError("refused: its pickle is incomplete or damaged") from error


def _is_allowed(name: str) -> bool:
    known = name in ALLOWED_GLOBALS or NUMBER_TYPES.fullmatch(name) is not None
    return known or name.startswith("torch_geometric.")


def _refuse(found: str) -> None:
    raise GraphError(
        f"refused: it holds objects that could run code when loaded ({short(found)}); "
        "save a PyG Data of tensors, or use .npz"
    )
