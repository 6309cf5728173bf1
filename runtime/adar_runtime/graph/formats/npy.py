"""Arrays in `.npy` files, mapped into memory and read without pickle. Every header is checked first."""

import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from adar_runtime.errors import GraphError, reason, short
from adar_runtime.files import NO_LINK

HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
"""By version. Version 3 is for arrays with named columns, which a graph does not have."""


def map_array(path: Path, mode: Literal["r", "c", "r+"] = "r") -> NDArray[Any]:
    """Map an array of numbers or texts.

    Args:
        path: The `.npy` file.
        mode: "r" is read-only; with "c", changes stay in memory; with "r+", they go to the file.

    Raises:
        GraphError: The file is not a regular file, is damaged, or holds Python objects.
    """
    try:
        access = os.O_RDWR if mode == "r+" else os.O_RDONLY
        with os.fdopen(os.open(path, access | NO_LINK), "r+b" if mode == "r+" else "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise ValueError("not a regular file")
            shape, in_columns, dtype = HEADER_READERS[npy.read_magic(file)](file)
            offset = file.tell()
            if dtype.hasobject or in_columns or min(shape, default=0) < 0:
                raise ValueError("its items are not plain, or not in the order of rows")
            if math.prod(shape) * dtype.itemsize != facts.st_size - offset:
                raise ValueError(f"it claims the shape {short(shape)}, which its size is not that of")
            if not math.prod(shape):
                return np.zeros(shape, dtype)
            return np.memmap(file, dtype, mode, offset, shape)
    except Exception as error:  # the header decides which errors numpy raises
        raise GraphError(f"{path}: not a readable .npy file ({reason(error)})") from error


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array."""
    with path.open("wb") as file:
        npy.write_array(file, np.asarray(array, order="C"), allow_pickle=False)


def write_stack(path: Path, arrays: Sequence[NDArray[Any]]) -> None:
    """Write arrays of one shape as one array with a first axis more, without having all of it in memory."""
    shape, dtype = (len(arrays), *arrays[0].shape), arrays[0].dtype
    with path.open("wb") as file:
        npy.write_array_header_2_0(
            file, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        )
        for array in arrays:
            file.write(np.ascontiguousarray(array).data)
