"""The arrays of a shard in a folder, one `.npy` file each: the memory holds only those that are in use."""

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adar_runtime.graph.formats.npy import map_array, write_array

Array = NDArray[Any]


class FolderArrays(MutableMapping[str, Array]):
    """Arrays by name. Reading maps the file; writing replaces it. The folder is made if it does not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npy"

    def __getitem__(self, name: str) -> Array:
        if not self._path(name).exists():
            raise KeyError(name)
        return map_array(self._path(name))

    def __setitem__(self, name: str, array: Array) -> None:
        # A mapped file must not change under a reader, so the new array gets a new file.
        self._path(name).unlink(missing_ok=True)
        write_array(self._path(name), np.asarray(array))

    def __delitem__(self, name: str) -> None:
        self._path(name).unlink()

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in self._folder.glob("*.npy"))

    def __len__(self) -> int:
        return sum(1 for _ in self)
