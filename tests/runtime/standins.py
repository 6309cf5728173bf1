"""A GPU simulated on the CPU, to run and check the device loop on machines without a GPU.

The interface comes from the real classes of `tensorrt_rtx` and `cuda.bindings`: calls that these do not have
fail, and so do calls with a wrong number of arguments. The simulation is strict:

* Queued work runs when the host waits for the stream, not before; during a capture it does not run.
* New memory is full of NaN. Copies have to stay inside allocated memory of the right kind (device or host).
* A call that CUDA does not allow during a capture (allocate, free, wait) makes the capture fail.
* A failed call sets the last error, which stays until it is read. Until then, no context runs.
* Arguments have the types that the real signatures name.
* A context runs the ONNX model of its engine in ONNX Runtime, with the addresses at the time of queueing. It
  refuses a capture before its first run, as TensorRT may, and shapes outside the chosen profile. It needs
  scratch memory for its actual shapes.
"""

# ruff: noqa: N802 - CUDA names its calls

import ctypes
import hashlib
import itertools
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import tensorrt_rtx as trt
from cuda.bindings import runtime as cudart

from adar_export.bf16_emulation import emulate

OK = cudart.cudaError_t.cudaSuccess
FAILED = cudart.cudaError_t.cudaErrorStreamCaptureInvalidated
STREAM = 7
ALIGNMENT = 256
OUT_OF_MEMORY = cudart.cudaError_t.cudaErrorMemoryAllocation
DEVICES = 2
TOTAL_MEMORY = 2**30


def arguments_of(real: Any) -> list[tuple[int, int]]:
    """Smallest and largest number of arguments of each overload of a real function."""
    name = real.__name__
    lines = [line for line in real.__doc__.splitlines() if re.match(rf"(\d+\. )?{name}\(", line)]
    found = []
    for line in lines:
        inside = line[line.index("(") + 1 : line.rindex(")")]
        if "*args" in inside:
            continue
        parts = [
            part for part in re.split(r", (?![^\[<]*[\]>])", inside) if part and not part.startswith("self")
        ]
        found.append((sum("=" not in part for part in parts), len(parts)))
    return found


def types_of(real: Any) -> list[type | None]:
    """The types of the arguments of a function with one signature, as far as it names plain ones."""
    lines = [line for line in real.__doc__.splitlines() if re.match(rf"{real.__name__}\(", line)]
    if len(lines) != 1:
        return []
    inside = lines[0][lines[0].index("(") + 1 : lines[0].rindex(")")]
    plain = {"int": int, "str": str, "typing.SupportsInt": int, "size_t": int}
    parts = [part.strip() for part in re.split(r", (?![^\[<]*[\]>])", inside) if not part.startswith("self")]
    words = [part.partition(":")[2].strip() or part.partition(" ")[0] for part in parts]
    return [plain.get(re.split(r" [|=] ", word)[0]) for word in words]


def checked(
    real: Any, name: str, act: Callable[..., Any], calls: list[tuple[Any, ...]]
) -> Callable[..., Any]:
    """`act`, with recorded calls and a check against the real signature."""
    counts = arguments_of(real)
    assert counts, f"{name} has no signature to hold the stand-in to"

    kinds = types_of(real)

    def call(*arguments: Any) -> Any:
        assert any(few <= len(arguments) <= many for few, many in counts), (name, arguments)
        for kind, argument in zip(kinds, arguments, strict=False):
            assert kind is None or type(argument) is kind, (name, kind, argument)
        calls.append((name, *arguments))
        return act(*arguments)

    return call


class StandIn:
    """An object with the interface of a real class; subclasses simulate the calls of the loop."""

    real: type

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self._calls = calls
        for name in vars(type(self)):
            assert name.startswith("_") or name == "real" or hasattr(self.real, name), f"there is no {name}"

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name == "real":
            return super().__getattribute__(name)
        real = getattr(self.real, name)  # AttributeError if TensorRT does not have it
        value = super().__getattribute__(name)  # and one if it is not simulated
        return checked(real, f"{self.real.__name__}.{name}", value, self._calls) if callable(value) else value

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            assert hasattr(self.real, name), f"there is no {self.real.__name__}.{name}"
            self._calls.append((f"{self.real.__name__}.{name} =", value))
        super().__setattr__(name, value)


class Queue(threading.local):
    """Queued and captured work. Each thread has its own stream, as each session does."""

    def __init__(self) -> None:
        self.capturing: list[Callable[[], None]] | None = None
        self.invalidated = False  # the capture, by a call that is not allowed
        self.pending: list[Callable[[], None]] = []
        self.device = 0
        self.last_error = OK


class Device:
    """Memory and a stream: the simulated calls of `cuda.bindings.runtime`."""

    def __init__(self, capability: int = 89) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.device_memory: dict[int, Any] = {}
        self.host_memory: dict[int, Any] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.fail: set[str] = set()  # calls that return an error
        self.memory_limit = TOTAL_MEMORY
        self._queue, self._numbers = Queue(), itertools.count(1)
        self.capability = capability
        self.log_error: Callable[[str], None] = lambda _message: None

    def __getattr__(self, name: str) -> Any:
        real = getattr(cudart, name)
        act = getattr(type(self), f"act_{name}", None)
        if act is None:
            assert not callable(real) or isinstance(real, type), f"{name} is not simulated"
            return real
        if name in self.fail:
            return checked(real, name, lambda *_: self._failed(FAILED), self.calls)
        return checked(real, name, act.__get__(self), self.calls)

    def _failed(self, error: Any) -> tuple[Any, None]:
        self._queue.last_error = error
        return error, None

    def _not_in_capture(self) -> None:
        """CUDA ends a capture in which the thread makes such a call."""
        self._queue.invalidated = self._queue.invalidated or self.capturing is not None

    @property
    def last_error(self) -> Any:
        return self._queue.last_error

    @property
    def current_device(self) -> int:
        return self._queue.device

    def act_cudaSetDevice(self, device):
        if not 0 <= device < DEVICES:
            return self._failed(cudart.cudaError_t.cudaErrorInvalidDevice)
        self._queue.device = device
        return (OK,)

    def act_cudaGetLastError(self):
        error, self._queue.last_error = self._queue.last_error, OK
        return (error,)

    def act_cudaMemGetInfo(self):
        return OK, TOTAL_MEMORY - sum(len(memory) for _, memory in self._regions()), TOTAL_MEMORY

    @property
    def capturing(self) -> list[Callable[[], None]] | None:
        return self._queue.capturing

    def queue(self, work: Callable[[], None]) -> None:
        (self._queue.pending if self.capturing is None else self.capturing).append(work)

    def act_cudaGetDeviceCount(self):
        return OK, DEVICES

    def act_cudaDeviceGetAttribute(self, attribute, device):
        major = attribute == cudart.cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor
        return OK, self.capability // 10 if major else self.capability % 10

    def act_cudaGetErrorString(self, error):
        return OK, str(error).encode()

    def act_cudaStreamCreateWithFlags(self, flags):
        assert flags == cudart.cudaStreamNonBlocking
        return OK, STREAM

    def act_cudaStreamDestroy(self, stream):
        return (OK,)

    def act_cudaMalloc(self, size):
        self._not_in_capture()
        if sum(len(memory) for _, memory in self._regions()) + size > self.memory_limit:
            return self._failed(OUT_OF_MEMORY)
        return OK, _allocate(self.device_memory, size)

    def act_cudaFree(self, address):
        self._not_in_capture()
        del self.device_memory[address]
        return (OK,)

    def act_cudaMallocHost(self, size):
        return OK, _allocate(self.host_memory, size)

    def act_cudaFreeHost(self, address):
        del self.host_memory[address]
        return (OK,)

    def act_cudaMemcpyAsync(self, to, source, size, kind, stream):
        assert stream == STREAM
        kinds = cudart.cudaMemcpyKind
        on_device = {kinds.cudaMemcpyHostToDevice: (1, 0), kinds.cudaMemcpyDeviceToHost: (0, 1)}.get(
            kind, (1, 1)
        )
        assert (self.holds(to, size), self.holds(source, size)) == on_device
        self.queue(lambda: ctypes.memmove(to, source, size))
        return (OK,)

    def act_cudaMemsetAsync(self, address, value, size, stream):
        assert self.holds(address, size)
        self.queue(lambda: ctypes.memset(address, value, size))
        return (OK,)

    def act_cudaStreamSynchronize(self, stream):
        assert stream == STREAM
        if self.capturing is not None:
            self._not_in_capture()
            return self._failed(FAILED)
        for work in self._queue.pending:
            work()
        self._queue.pending.clear()
        return (OK,)

    def act_cudaStreamBeginCapture(self, stream, mode):
        assert self.capturing is None
        self._queue.capturing = []
        return (OK,)

    def act_cudaStreamEndCapture(self, stream):
        assert self.capturing is not None
        if self._queue.invalidated:
            self._queue.capturing, self._queue.invalidated = None, False
            return self._failed(FAILED)
        graph = next(self._numbers)
        self.graphs[graph], self._queue.capturing = self.capturing, None
        return OK, graph

    def act_cudaGraphInstantiate(self, graph, flags):
        self.graphs[-graph] = list(self.graphs[graph])
        return OK, -graph

    def act_cudaGraphDestroy(self, graph):
        del self.graphs[graph]
        return (OK,)

    def act_cudaGraphExecDestroy(self, graph):
        del self.graphs[graph]
        return (OK,)

    def act_cudaGraphLaunch(self, graph, stream):
        for work in self.graphs[graph]:
            self.queue(work)
        return (OK,)

    def holds(self, address: int, size: int = 1) -> bool:
        """Whether the whole range is device memory."""
        return any(
            start <= address and address + size <= start + len(memory) for start, memory in self._regions()
        )

    def _regions(self):
        return self.device_memory.copy().items()  # other threads allocate; the copy is one operation

    @property
    def names(self) -> list[str]:
        """Names of the recorded calls, without the choice of the device, which comes before each of them."""
        return [name for name, *_ in self.calls if name != "cudaSetDevice"]


def _allocate(regions: dict[int, Any], size: int) -> int:
    whole = ctypes.create_string_buffer(b"\xff" * (size + ALIGNMENT), size + ALIGNMENT)
    address = -(-ctypes.addressof(whole) // ALIGNMENT) * ALIGNMENT
    memory = (ctypes.c_char * size).from_address(address)
    memory.owner = whole
    regions[address] = memory
    return address


TYPES = {"tensor(float)": trt.float32, "tensor(int32)": trt.int32, "tensor(int64)": trt.int64}
Profiles = list[dict[str, tuple[tuple[int, ...], tuple[int, ...]]]]  # least and largest shape of each input
Sources = dict[str, tuple[bytes, Profiles, tuple[int, ...]]]  # an engine's hash -> ONNX file, profiles, GPUs
NUMPY = {trt.float32: np.float32, trt.int32: np.int32, trt.int64: np.int64}


class Cache(StandIn):
    """Kernels by shapes: what an engine compiled, as text."""

    real = trt.IRuntimeCache

    def __init__(self, device: Device) -> None:
        super().__init__(device.calls)
        self._kernels: set[str] = set()

    def serialize(self):
        return "\n".join(["kernels", *sorted(self._kernels)]).encode()

    def deserialize(self, blob):
        if not blob.startswith(b"kernels"):
            return False
        self._kernels = set(blob.decode().splitlines()[1:])
        return True


def is_bf16(content: bytes) -> bool:
    """Whether a model multiplies in bfloat16."""
    weights = onnx.load_from_string(content).graph.initializer
    return any(weight.data_type == onnx.TensorProto.BFLOAT16 for weight in weights)


class Config(StandIn):
    real = trt.IRuntimeConfig

    def __init__(self, device: Device) -> None:
        super().__init__(device.calls)
        self._device, self._cache = device, None

    def create_runtime_cache(self):
        return Cache(self._device)

    def set_runtime_cache(self, cache):
        self._cache = cache
        return True

    def set_execution_context_allocation_strategy(self, strategy):
        self._strategy = strategy


class Engine(StandIn):
    real = trt.ICudaEngine

    def __init__(self, device: Device, content: bytes, profiles: Profiles) -> None:
        super().__init__(device.calls)
        self._device, self._profiles = device, profiles
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        if is_bf16(content):  # ONNX Runtime has no bfloat16 products on the CPU
            content = emulate(onnx.load_from_string(content)).SerializeToString()
        self._session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._ports = {p.name: p for p in (*self._session.get_inputs(), *self._session.get_outputs())}
        self._inputs = [p.name for p in self._session.get_inputs()]
        self._outputs = [p.name for p in self._session.get_outputs()]

    @property
    def num_io_tensors(self):
        return len(self._ports)

    def get_tensor_name(self, index):
        return list(self._ports)[index]

    def get_tensor_mode(self, name):
        return trt.TensorIOMode.INPUT if name in self._inputs else trt.TensorIOMode.OUTPUT

    def get_tensor_shape(self, name):
        return tuple(-1 if isinstance(side, str) else side for side in self._ports[name].shape)

    def get_tensor_dtype(self, name):
        return TYPES[self._ports[name].type]

    def create_runtime_config(self):
        return Config(self._device)

    def create_execution_context(self, config_or_strategy):
        strategy = getattr(config_or_strategy, "_strategy", config_or_strategy)
        assert strategy == trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if "context" in self._device.fail:
            self._device.fail.remove("context")
            self._device.log_error("OutOfMemory (Requested size was 1000 bytes.)")
            return None
        return Context(self, config_or_strategy)


class Context(StandIn):
    real = trt.IExecutionContext

    def __init__(self, engine: Engine, config: Any) -> None:
        super().__init__(engine._calls)
        self._cache = getattr(config, "_cache", None)
        self._engine, self._device = engine, engine._device
        self._shapes = {name: tuple(engine._ports[name].shape) for name in engine._inputs}
        self._addresses: dict[str, int] = {}
        self._warm = False
        self._profile: int | None = None
        self._scratch = 0
        self._home = self._device.current_device

    def set_optimization_profile_async(self, profile, stream):
        if not 0 <= profile < max(1, len(self._engine._profiles)):
            return False
        self._profile, self._warm = profile, False
        return stream == STREAM

    def set_input_shape(self, name, shape):
        fixed = self._engine._ports[name].shape
        assert self._profile is not None
        least, most = self._engine._profiles[self._profile][name]
        if not all(low <= side <= high for low, side, high in zip(least, shape, most, strict=True)):
            return False
        self._shapes[name], self._warm = tuple(shape), False
        return len(fixed) == len(shape) and all(
            isinstance(there, str) or there == here for there, here in zip(fixed, shape, strict=True)
        )

    def update_device_memory_size_for_shapes(self):
        assert self._profile is not None
        if "memory" in self._device.fail:
            self._device.log_error("the shapes are not known")
            return 0
        return self._needed()

    def _needed(self) -> int:
        """Scratch memory: the size of all inputs."""
        return 4 * sum(int(np.prod(self._shapes[name])) for name in self._engine._inputs)

    def set_device_memory(self, address, size):
        assert self._device.holds(address, size)
        self._scratch = size

    def set_tensor_address(self, name, address):
        assert name in self._engine._ports
        self._addresses[name] = address
        return address % ALIGNMENT == 0 and self._device.holds(address)

    def is_stream_capturable(self, stream):
        return "capture" not in self._device.fail

    def execute_async_v3(self, stream):
        assert self._device.current_device == self._home, (
            "a context runs on the device that it was created on"
        )
        if (
            stream != STREAM
            or self._scratch < self._needed()
            or set(self._addresses) != set(self._engine._ports)
        ):
            return False
        if self._device.last_error != OK:
            self._device.log_error(f"CUDA reports {self._device.last_error}")
            return False
        if "execute" in self._device.fail or (self._device.capturing is not None and not self._warm):
            return False
        shapes, addresses = dict(self._shapes), dict(self._addresses)
        self._device.queue(lambda: self._run(shapes, addresses))
        if not self._warm and self._cache is not None:
            self._cache._kernels.add(repr(sorted(shapes.items())))
        self._warm = True
        return True

    def _run(self, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]) -> None:
        engine = self._engine
        feeds = {name: self._array(name, addresses[name], shapes[name]).copy() for name in engine._inputs}
        for name, array in zip(engine._outputs, engine._session.run(engine._outputs, feeds), strict=True):
            self._array(name, addresses[name], array.shape)[...] = array

    def _array(self, name: str, address: int, shape: tuple[int, ...]) -> np.ndarray:
        dtype = np.dtype(NUMPY[TYPES[self._engine._ports[name].type]])
        size = int(np.prod(shape)) * dtype.itemsize
        assert self._device.holds(address, size), name
        content = (ctypes.c_char * size).from_address(address)
        return np.frombuffer(content, dtype).reshape(shape)


class Runtime(StandIn):
    """Finds the ONNX model and profiles of an engine: a real engine cannot be loaded without a GPU."""

    real = trt.Runtime

    def __init__(self, device: Device, sources: Sources) -> None:
        super().__init__(device.calls)
        self._device, self._sources = device, sources

    def deserialize_cuda_engine(self, content):
        source = self._sources.get(hashlib.sha256(content).hexdigest())
        return None if source is None else Engine(self._device, *source[:2])

    def get_engine_validity(self, content):
        source, kinds = self._sources.get(hashlib.sha256(content).hexdigest()), trt.EngineValidity
        if source is None:
            return kinds.VALID, 0  # loading says what is wrong
        built_for, here = source[2], self._device.capability
        if here in built_for or (not built_for and here >= 80):
            return kinds.VALID, 0
        return kinds.INVALID, int(trt.EngineInvalidityDiagnostics.UNSUPPORTED_CC)


class TensorRt:
    """The real module with a simulated runtime."""

    def __init__(self, device: Device, sources: Sources) -> None:
        self.Runtime = lambda _logger: Runtime(device, sources)

    def __getattr__(self, name: str) -> Any:
        return getattr(trt, name)
