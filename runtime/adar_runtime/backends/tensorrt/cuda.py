"""The few calls of CUDA that a loop on the device needs.

All work is queued on one stream. The stream runs it in order, so the host does not have to wait in between.
"""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from math import prod
from typing import Any
from weakref import finalize

import numpy as np

from adar_runtime.errors import BackendError, reason

ALIGNMENT = 256  # bytes; TensorRT requires aligned addresses
Array = np.ndarray[Any, Any]


def runtime_api() -> Any:
    """The module of CUDA runtime calls. Each call returns an error code and its results."""
    try:
        return import_module("cuda.bindings.runtime")
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(f"cuda-python is installed but cannot be loaded: {reason(error)}") from error


def used_gpu_memory(device: int) -> int | None:
    """Bytes in use on a device, by all processes; None if they cannot be read."""
    try:
        return Cuda(device).used_memory()
    except BackendError:
        return None


class OutOfMemoryError(BackendError):
    """The device has too little free memory."""


class _ThreadState(threading.local):
    """What belongs to a capture, which is in one thread."""

    delayed: list[tuple[Any, Any]] | None = None  # resources to free after a capture; None without a capture


_thread = _ThreadState()


class Cuda:
    """One CUDA device, with one stream."""

    def __init__(self, device: int = 0) -> None:
        self._api = runtime_api()
        self._process = os.getpid()
        self.device = device
        count = self._call("cudaGetDeviceCount", on_device=False)
        if not count:
            raise BackendError("the CUDA runtime finds no device")
        if not 0 <= device < count:
            raise BackendError(f"there is no CUDA device {device}: choose 0 to {count - 1}")
        stream = self._call("cudaStreamCreateWithFlags", self._api.cudaStreamNonBlocking)
        self.stream = int(stream)
        _free_with(self, self._api.cudaStreamDestroy, stream)

    def activate(self) -> None:
        """Make this device the current one of the calling thread, also for calls of TensorRT.

        Other libraries set the current device of a thread too, so this one sets it before every use.
        """
        if os.getpid() != self._process:
            raise BackendError(
                "this process was forked after CUDA was initialised: open the bundle in the child process, "
                "or start processes with the method 'spawn'"
            )
        self._call("cudaSetDevice", self.device, on_device=False)

    @cached_property
    def total_memory(self) -> int:
        """Bytes of the device's memory."""
        return int(self._call_all("cudaMemGetInfo")[1])

    def used_memory(self) -> int:
        """Bytes of the device's memory that are in use, by all processes."""
        free, total = self._call_all("cudaMemGetInfo")
        return int(total - free)

    def compute_capability(self) -> int:
        """The compute capability of the device as one number: 89 is 8.9."""
        attributes = self._api.cudaDeviceAttr
        major, minor = (
            self._call("cudaDeviceGetAttribute", attribute, self.device)
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
        try:
            with _delayed_frees():
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
        except BackendError:
            self._api.cudaGetLastError()  # of calls that TensorRT made in the capture
            raise

    def launch(self, captured: "Captured") -> None:
        """Queue a replay of captured work."""
        self._call("cudaGraphLaunch", captured.executable, self.stream)

    def _call(self, name: str, *arguments: Any, on_device: bool = True) -> Any:
        """Call the CUDA runtime; return the first result or raise BackendError."""
        values = self._call_all(name, *arguments, on_device=on_device)
        return values[0] if values else None

    def _call_all(self, name: str, *arguments: Any, on_device: bool = True) -> list[Any]:
        if on_device:
            self.activate()
        error, *values = getattr(self._api, name)(*arguments)
        if int(error):
            self._api.cudaGetLastError()  # forget it: TensorRT would take it for a failure of its next call
            _, text = self._api.cudaGetErrorString(error)
            message = text.decode() if isinstance(text, bytes) else text
            out_of_memory = error == self._api.cudaError_t.cudaErrorMemoryAllocation
            kind = OutOfMemoryError if out_of_memory else BackendError
            raise kind(f"CUDA failed in {name}: {message}")
        return values


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
    finalize(owner, _free, free, resource, os.getpid()).atexit = False


def _free(free: Any, resource: Any, process: int) -> None:
    """Free a resource. Not in a forked process, and not during a capture in this thread: it would fail."""
    if os.getpid() != process:
        return
    if _thread.delayed is not None:
        _thread.delayed.append((free, resource))
    else:
        free(resource)


@contextmanager
def _delayed_frees() -> Iterator[None]:
    """Free what the garbage collector finds in this thread after the block."""
    _thread.delayed = []
    try:
        yield
    finally:
        delayed, _thread.delayed = _thread.delayed, None
        for free, resource in delayed:
            free(resource)


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
