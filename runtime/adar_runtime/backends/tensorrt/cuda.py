"""CUDA: whether a device is available, and the few calls that a loop on the device needs.

All work is queued on one stream. The stream runs it in order, so the host does not have to wait in between.
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

ALIGNMENT = 256  # bytes; TensorRT requires aligned addresses
Array = np.ndarray[Any, Any]


@lru_cache
def device_problem() -> str | None:
    """Why no CUDA device can be used; None if one can. Loads only the driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no CUDA driver, so no CUDA device can be used"
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or not count.value:
        return "the CUDA driver finds no device"
    return None


def bindings_problem() -> str | None:
    """Why `cuda.bindings` (package cuda-python) cannot be used; None if it is installed."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return "cuda-python is not installed: pip install 'adar-deploy[tensorrt]' or 'adar-deploy[rtx]'"
    return None


def runtime_api() -> Any:
    """The module of CUDA runtime calls. Each call returns an error code and its results."""
    try:
        return import_module("cuda.bindings.runtime")
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(f"cuda-python is installed but cannot be loaded: {reason(error)}") from error


class Cuda:
    """The first CUDA device, with one stream."""

    def __init__(self) -> None:
        self._api = runtime_api()
        if not self._call("cudaGetDeviceCount"):
            raise BackendError("the CUDA runtime finds no device")
        stream = self._call("cudaStreamCreateWithFlags", self._api.cudaStreamNonBlocking)
        self.stream = int(stream)
        _free_with(self, self._api.cudaStreamDestroy, stream)

    def compute_capability(self) -> int:
        """The compute capability of the device as one number: 89 is 8.9."""
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
        """Allocate device memory. It is freed with the returned object."""
        address = int(self._call("cudaMalloc", max(size, ALIGNMENT)))
        return Memory(address, size, self._api.cudaFree)

    def allocate_host(self, size: int) -> "Memory":
        """Allocate pinned host memory, which asynchronous copies need."""
        address = int(self._call("cudaMallocHost", max(size, ALIGNMENT)))
        return Memory(address, size, self._api.cudaFreeHost)

    def upload(self, address: int, array: Array) -> None:
        """Copy an array to the device. The array may change as soon as this returns."""
        array = np.ascontiguousarray(array)
        if array.nbytes:
            kind = self._api.cudaMemcpyKind.cudaMemcpyHostToDevice
            self._call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, kind, self.stream)
            self.wait()  # the call alone may return before the copy has finished

    def download(self, address: int, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        """Copy an array from the device, after all queued work."""
        array = np.empty(shape, dtype)
        if array.nbytes:
            kind = self._api.cudaMemcpyKind.cudaMemcpyDeviceToHost
            self._call("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, kind, self.stream)
        self.wait()
        return array

    def copy(self, to: int, source: int, size: int) -> None:
        """Queue a copy within the device."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call("cudaMemcpyAsync", to, source, size, kind, self.stream)

    def copy_out(self, to: "Memory", source: "Memory") -> None:
        """Queue a copy to host memory from `allocate_host`."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", to.address, source.address, source.size, kind, self.stream)

    def clear(self, memory: "Memory") -> None:
        """Queue filling with zeros."""
        self._call("cudaMemsetAsync", memory.address, 0, memory.size, self.stream)

    def wait(self) -> None:
        """Wait until all queued work is done."""
        self._call("cudaStreamSynchronize", self.stream)

    @contextmanager
    def capturing(self) -> Iterator["Captured"]:
        """Record the work queued inside the block as a CUDA graph, without running it.

        The capture ends even if the block raises: a stream that keeps capturing rejects all later work.
        """
        mode = self._api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", self.stream, mode)
        captured = Captured(self)
        try:
            yield captured
        except BaseException:
            _, graph = self._api.cudaStreamEndCapture(self.stream)  # fails too if queued work failed
            if graph:
                self._api.cudaGraphDestroy(graph)
            raise
        graph = self._call("cudaStreamEndCapture", self.stream)
        try:
            captured.executable = self._call("cudaGraphInstantiate", graph, 0)
            _free_with(captured, self._api.cudaGraphExecDestroy, captured.executable)
        finally:
            self._api.cudaGraphDestroy(graph)

    def launch(self, captured: "Captured") -> None:
        """Queue a replay of captured work."""
        self._call("cudaGraphLaunch", captured.executable, self.stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the CUDA runtime; return the result or raise BackendError."""
        error, *values = getattr(self._api, name)(*arguments)
        if int(error):
            _, text = self._api.cudaGetErrorString(error)
            message = text.decode() if isinstance(text, bytes) else text
            raise BackendError(f"CUDA failed in {name}: {message}")
        return values[0] if values else None


class Captured:
    """Captured work: an executable CUDA graph."""

    def __init__(self, cuda: Cuda) -> None:
        self.executable: Any = None
        self._cuda = cuda  # keeps the stream alive


class Memory:
    """A block of memory, freed when this object is garbage-collected."""

    def __init__(self, address: int, size: int, free: Any) -> None:
        self.address = address
        self.size = size
        _free_with(self, free, address)


def _free_with(owner: object, free: Any, resource: Any) -> None:
    """Free a resource with its owner. At exit the operating system frees everything."""
    finalize(owner, free, resource).atexit = False


class Arena:
    """Several aligned arrays in one block of device memory, so that one call copies all of them."""

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
