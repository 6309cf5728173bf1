"""The timing cache of `tensorrt`: a file beside the engines."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from adar_runtime.backends.tensorrt.engines import FOLDER
from adar_runtime.backends.tensorrt.engines.options import BuildOptions, Target
from adar_runtime.backends.tensorrt.engines.packages import TENSORRT
from adar_runtime.errors import BundleError
from adar_runtime.files import check_writable, read_bundle_file, write_file

MAX_TIMING_BYTES = 2**28  # largest timing cache that is read


class TimingCache:
    """Measured times of TensorRT's kernels on this GPU, so that the next build does not measure again.

    TensorRT-RTX measures nothing during a build and has no timing cache.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._content = b""
        if path is not None:
            with suppress(OSError, BundleError):  # no usable file: TensorRT measures again
                self._content = read_bundle_file(path, MAX_TIMING_BYTES)

    @classmethod
    def of(cls, target: Target, options: BuildOptions, bundle: Path) -> "TimingCache":
        if target.package.name != TENSORRT:
            return cls(None)
        path = options.timing_cache or bundle / FOLDER / "timing.cache"
        check_writable(path)
        return cls(path)

    def attach(self, config: Any) -> None:
        """Let a build use the cache. TensorRT rejects a cache of another version or GPU: use an empty one."""
        if self._path is None:
            return
        if not config.set_timing_cache(config.create_timing_cache(self._content), False):
            config.set_timing_cache(config.create_timing_cache(b""), False)

    def update(self, config: Any) -> None:
        """Read the cache back after a build."""
        if self._path is not None:
            self._content = bytes(config.get_timing_cache().serialize())

    def save(self) -> None:
        if self._path is not None:
            write_file(self._path, self._content)
