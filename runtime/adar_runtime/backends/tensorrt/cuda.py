"""CUDA: whether there is a device, and the few calls of it that a loop on one needs.

Everything is queued on one stream, so that what comes first is done first and nobody has to wait in between.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from math import prod
from typing import Any
from weakref import finalize

import numpy as np

from adar_runtime.errors import BackendError, reason

ALIGNMENT = 256  # bytes: what TensorRT asks of every address
Array = np.ndarray[Any, Any]


@lru_cache
def device_problem() -> str | None:
    """Why there is no CUDA device to work on; None where there is one. Loads nothing but the driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no CUDA driver, hence no CUDA device"
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or not count.value:
        return "the driver sees no CUDA device"
    return None


def bindings_problem() -> str | None:
    """Whether `cuda.bindings`, of the package cuda-python, is there."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return "cuda-python is not installed: pip install 'adar-deploy[tensorrt]' or 'adar-deploy[rtx]'"
    return None


def runtime_api() -> Any:
    """The calls of the CUDA runtime, as `cuda.bindings` has them: each returns an error and what it gives."""
    try:
        return import_module("cuda.bindings.runtime")
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(f"cuda-python is installed and cannot be loaded: {reason(error)}") from error


class Cuda:
    """The first device, and one stream on it."""

    def __init__(self) -> None:
        self._api = runtime_api()
        if not self._call("cudaGetDeviceCount"):
            raise BackendError("the CUDA runtime sees no device")
        stream = self._call("cudaStreamCreateWithFlags", self._api.cudaStreamNonBlocking)
        self.stream = int(stream)
        _at_last(self, self._api.cudaStreamDestroy, stream)

    def compute_capability(self) -> int:
        """Of the device, as in SM names: 89 is 8.9."""
        device = self._call("cudaGetDevice")
        attributes = self._api.cudaDeviceAttr
        major, minor = (
            self._call("cudaDeviceGetAttribute", attribute, device)
            for attribute in (
                attributes.cudaDevAttrComputeCapabilityMajor,
                attributes.cudaDevAttrComputeCapabilityMinor,
            )
        )
        return int(10 * major + minor)

    def allocate(self, size: int) -> "Memory":
        """Device memory, given back when nobody holds it any more."""
        address = int(self._call("cudaMalloc", max(size, ALIGNMENT)))
        return Memory(address, size, self._api.cudaFree)

    def allocate_host(self, size: int) -> "Memory":
        """Host memory that a copy from the device can go to while others go on."""
        address = int(self._call("cudaMallocHost", max(size, ALIGNMENT)))
        return Memory(address, size, self._api.cudaFreeHost)

    def upload(self, address: int, array: Array) -> None:
        """To the device. The array may change as soon as this returns."""
        array = np.ascontiguousarray(array)
        if array.nbytes:
            kind = self._api.cudaMemcpyKind.cudaMemcpyHostToDevice
            self._call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, kind, self.stream)
            self.wait()  # not every kind of host memory is copied before the call returns

    def download(self, address: int, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        """From the device, when all that was queued is done."""
        array = np.empty(shape, dtype)
        if array.nbytes:
            kind = self._api.cudaMemcpyKind.cudaMemcpyDeviceToHost
            self._call("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, kind, self.stream)
        self.wait()
        return array

    def copy(self, to: int, source: int, size: int) -> None:
        """Within the device, queued."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call("cudaMemcpyAsync", to, source, size, kind, self.stream)

    def copy_out(self, to: "Memory", source: "Memory") -> None:
        """To host memory from `allocate_host`, queued."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", to.address, source.address, source.size, kind, self.stream)

    def clear(self, memory: "Memory") -> None:
        """All zeros, queued."""
        self._call("cudaMemsetAsync", memory.address, 0, memory.size, self.stream)

    def wait(self) -> None:
        """Until all that was queued is done."""
        self._call("cudaStreamSynchronize", self.stream)

    @contextmanager
    def capturing(self) -> Iterator["Captured"]:
        """What is queued inside is not done but written down, to be replayed any number of times.

        Capture ends whatever happens inside: a stream left capturing would refuse all later work.
        """
        mode = self._api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", self.stream, mode)
        captured = Captured(self)
        try:
            yield captured
        except BaseException:
            _, graph = self._api.cudaStreamEndCapture(self.stream)  # it fails where what was queued did
            if graph:
                self._api.cudaGraphDestroy(graph)
            raise
        graph = self._call("cudaStreamEndCapture", self.stream)
        try:
            captured.executable = self._call("cudaGraphInstantiate", graph, 0)
            _at_last(captured, self._api.cudaGraphExecDestroy, captured.executable)
        finally:
            self._api.cudaGraphDestroy(graph)

    def launch(self, captured: "Captured") -> None:
        """Replay, queued."""
        self._call("cudaGraphLaunch", captured.executable, self.stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Every call's error becomes ours; what it gives is returned."""
        error, *values = getattr(self._api, name)(*arguments)
        if int(error):
            _, said = self._api.cudaGetErrorString(error)
            text = said.decode() if isinstance(said, bytes) else said
            raise BackendError(f"CUDA failed in {name}: {text}")
        return values[0] if values else None


class Captured:
    """Work that was written down."""

    def __init__(self, cuda: Cuda) -> None:
        self.executable: Any = None
        self._cuda = cuda  # its stream outlives this


class Memory:
    """Some bytes, free again when this object is gone."""

    def __init__(self, address: int, size: int, free: Any) -> None:
        self.address = address
        self.size = size
        _at_last(self, free, address)


def _at_last(owner: object, free: Any, what: Any) -> None:
    """Give something back when its owner is gone; the end of the process gives back all by itself."""
    finalize(owner, free, what).atexit = False


class Arena:
    """Several arrays in one piece of memory, each where TensorRT can take it: one copy copies all."""

    def __init__(self, cuda: Cuda, shapes: Mapping[str, Sequence[int]], item: int = 4) -> None:
        self.addresses: dict[str, int] = {}
        size = 0
        for name, shape in shapes.items():
            self.addresses[name] = size
            size += -(-max(1, prod(shape)) * item // ALIGNMENT) * ALIGNMENT
        self.memory = cuda.allocate(size)
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        for name, offset in self.addresses.items():
            self.addresses[name] = self.memory.address + offset
