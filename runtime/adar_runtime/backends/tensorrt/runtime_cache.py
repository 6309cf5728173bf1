"""The runtime cache of TensorRT-RTX: kernels that it compiled for the shapes of a graph on this GPU.

Without the cache, every process compiles again for every shape. The cache is one file beside the engines,
shared by all contexts and processes. It contains programs, as engines do, so a file from elsewhere is loaded
only on request.
"""

from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from adar_runtime.backends.tensorrt.engines import FOLDER
from adar_runtime.backends.tensorrt.engines.packages import RTX, TensorRtPackage
from adar_runtime.backends.tensorrt.engines.sidecar import sha256
from adar_runtime.backends.tensorrt.engines.trusted_engines import built_here, remember
from adar_runtime.errors import AdarError
from adar_runtime.files import read_bundle_file, write_file
from adar_runtime.interrupts import deferred_signals

MAX_BYTES = 2**30  # largest cache that is read
SUFFIX = ".kernels"


class RuntimeCache:
    """One cache for all contexts of a bundle's engines; without effect for `tensorrt`, which has none."""

    def __init__(self, bundle: Path, target: str, *, trusted: bool) -> None:
        self.path = bundle / FOLDER / f"{target}{SUFFIX}"
        self._trusted = trusted
        self._cache: Any = None
        self._saved = 0  # bytes of the cache in the file
        self._lock = Lock()

    def attach(self, package: TensorRtPackage, config: Any) -> None:
        """Let a context with this runtime configuration use the cache. The first one reads the file."""
        if package.name != RTX:
            return
        with self._lock:
            if self._cache is None:
                self._cache = config.create_runtime_cache()
                self._read()
            config.set_runtime_cache(self._cache)

    def _read(self) -> None:
        with suppress(OSError, AdarError):  # no usable file: TensorRT compiles again
            content = read_bundle_file(self.path, MAX_BYTES)
            if not self._trusted and not built_here([sha256(content)]):
                return
            with deferred_signals():  # TensorRT calls the Python logger inside
                if self._cache.deserialize(content):  # False for another version, GPU or driver
                    self._saved = len(content)

    def save(self) -> None:
        """Write new kernels to the file. A folder that cannot be written is no error."""
        with self._lock:
            if self._cache is None:
                return
            content = bytes(self._cache.serialize())
            if len(content) == self._saved:
                return
            with suppress(OSError, AdarError):
                remember([sha256(content)])
                write_file(self.path, content)
                self._saved = len(content)
