"""ONNX Runtime, on CPU or CUDA.

Three sets of state buffers are enough for any budget: the cell reads one and writes another, and a
state that is kept holds the third. Keeping is a change of roles, not a copy.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import onnxruntime as ort

from adar_runtime.errors import AdarError, BackendError, reason
from adar_runtime.graph import Floats, Graph
from adar_runtime.manifest import EDGES, TABLES, Port
from adar_runtime.neighbours import Neighbours
from adar_runtime.signature import SCALARS, STATE, STEP, Ports
from adar_runtime.solvers import Motion, Move
from adar_runtime.tables import Tables

Arrays = dict[str, np.ndarray[Any, Any]]

ENCODER_ROWS = 16_384  # nodes are encoded in blocks, so that sparse features are never dense all at once
ENCODER_NUMBERS = 2**26  # and blocks have fewer rows where there are many columns

TYPES = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(int32)": "int32"}
QUIET = 4  # ONNX Runtime's level for what ends the process; what it has to say comes as an exception too
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class OnnxBackend:
    """The three graphs of a bundle as ONNX Runtime sessions."""

    def __init__(
        self, graphs: Mapping[str, bytes], device: str, aggregation: str, threads: int | None = None
    ) -> None:
        self.name = f"onnxruntime-{device}"
        self._device = device
        self._aggregation = aggregation
        self._sessions = {name: _session(content, device, threads) for name, content in graphs.items()}

    @property
    def ports(self) -> dict[str, Ports]:
        return {
            name: Ports(tuple(map(_port, session.get_inputs())), tuple(map(_port, session.get_outputs())))
            for name, session in self._sessions.items()
        }

    def start(self, graph: Graph) -> "OnnxRecurrence":
        with _told():
            return OnnxRecurrence(self.name, self._device, self._sessions, graph, LAYOUTS[self._aggregation])


class OnnxRecurrence:
    """The states of one graph."""

    def __init__(
        self,
        name: str,
        device: str,
        sessions: Mapping[str, ort.InferenceSession],
        graph: Graph,
        layout: Callable[[Neighbours], Arrays],
    ) -> None:
        self.name = name
        self._device = device
        self._cell, self._head = sessions["cell"], sessions["head"]
        self._outputs = graph.outputs
        first = _encode(sessions["encoder"], graph)
        self._buffers = [[self._on_device(array) for array in first] for _ in range(3)]
        self._current = 0
        self._kept: int | None = None
        self._velocities = [[self._on_device(np.zeros_like(array)) for array in first] for _ in range(2)]
        self._latest = 0  # which of the two sets holds the last velocity
        self._code = self._on_device(np.zeros(first[0].shape[1], np.float32))
        self._numbers = {name: self._on_device(np.zeros((), np.float32)) for name in STEP}
        self._scalars = {name: ort.OrtValue.ortvalue_from_numpy(np.zeros((), np.float32)) for name in SCALARS}
        neighbours = Neighbours.of(graph.edge_index, graph.nodes)
        self._structure = {key: self._on_device(value) for key, value in layout(neighbours).items()}
        self._bindings: dict[tuple[int, int, int], Any] = {}
        self._pairs = None if graph.pairs is None else self._on_device(graph.pairs)
        self._measure()

    @property
    def alignment(self) -> float:
        return float(self._scalars["alignment"].numpy())

    @property
    def motion(self) -> Motion:
        return Motion(*(float(self._scalars[name].numpy()) for name in Motion._fields))

    def step(self, code: Floats, move: Move) -> None:
        self._code.update_inplace(code)
        for name, value in self._numbers.items():
            value.update_inplace(np.asarray(getattr(move, name), np.float32))
        free = next(slot for slot in range(3) if slot not in (self._current, self._kept))
        with _told():
            self._cell.run_with_iobinding(self._binding(self._current, free, self._latest))
        self._current, self._latest = free, 1 - self._latest

    def keep(self) -> None:
        self._kept = self._current

    def scores(self, *, kept: bool) -> Floats:
        slot = self._kept if kept and self._kept is not None else self._current
        binding = self._head_binding(slot)
        binding.bind_output("alignment")
        with _told():
            self._head.run_with_iobinding(binding)
            scores: Floats = binding.copy_outputs_to_cpu()[0]
        _check_shape("scores", scores, (self._outputs, self._buffers[slot][1].shape()[0]))
        return scores

    def state(self) -> dict[str, Floats]:
        return {
            name: np.array(value.numpy())
            for name, value in zip(STATE, self._buffers[self._current], strict=True)
        }

    def _measure(self) -> None:
        """The alignment of the state at t = 0; later ones come out of the cell."""
        binding = self._head_binding(0)
        binding.bind_ortvalue_output("alignment", self._scalars["alignment"])
        self._head.run_with_iobinding(binding)

    def _head_binding(self, slot: int) -> Any:
        nodes, targets, *_ = self._buffers[slot]
        binding = self._head.io_binding()
        binding.bind_ortvalue_input("nodes", nodes)
        binding.bind_ortvalue_input("targets", targets)
        if any(port.name == "pairs" for port in self._head.get_inputs()):
            binding.bind_ortvalue_input("pairs", self._pairs)
        binding.bind_output("scores")
        return binding

    def _binding(self, source: int, free: int, latest: int) -> Any:
        """Inputs from one set of buffers and outputs into another, bound once."""
        if (source, free, latest) not in self._bindings:
            binding = self._cell.io_binding()
            inputs = dict(zip(STATE, self._buffers[source], strict=True)) | self._structure | self._numbers
            inputs |= {"step_code": self._code}
            inputs |= zip(
                (f"previous_{name}_velocity" for name in STATE), self._velocities[latest], strict=True
            )
            outputs = dict(self._scalars)
            outputs |= zip((f"next_{name}" for name in STATE), self._buffers[free], strict=True)
            outputs |= zip((f"{name}_velocity" for name in STATE), self._velocities[1 - latest], strict=True)
            for name, value in inputs.items():
                binding.bind_ortvalue_input(name, value)
            for name, value in outputs.items():
                binding.bind_ortvalue_output(name, value)
            self._bindings[source, free, latest] = binding
        return self._bindings[source, free, latest]

    def _on_device(self, array: np.ndarray[Any, Any]) -> ort.OrtValue:
        # A fresh copy each time: ONNX Runtime would otherwise share the memory of the array.
        value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), array.dtype, self._device, 0)
        if array.size:
            value.update_inplace(np.ascontiguousarray(array))
        return value


def _encode(encoder: ort.InferenceSession, graph: Graph) -> list[Floats]:
    """The four states at t = 0."""
    feeds: dict[str, Floats] = {}
    if len(encoder.get_inputs()) > 1:
        assert graph.target_features is not None
        feeds["target_features"] = graph.target_features
    by_row = encoder.get_modelmeta().custom_metadata_map.get("adar.by_row") == "yes"
    size = max(1, min(ENCODER_ROWS, ENCODER_NUMBERS // graph.width)) if by_row else graph.nodes
    first = encoder.run(list(STATE), feeds | {"features": graph.rows(0, size)})
    rest = [
        encoder.run(["nodes"], feeds | {"features": graph.rows(start, start + size)})[0]
        for start in range(size, graph.nodes, size)
    ]
    nodes = np.concatenate([first[0], *rest])
    _check_shape("nodes", nodes, (graph.nodes, first[0].shape[1]))
    return [nodes, *first[1:]]


def _check_shape(name: str, array: Floats, shape: tuple[int, int]) -> None:
    """A graph may declare one shape and give another: ONNX Runtime only warns."""
    if array.shape != shape:
        raise BackendError(f"the bundle gave {name} of shape {list(array.shape)}, not {list(shape)}")


def _port(port: Any) -> Port:
    return Port(port.name, TYPES.get(port.type, port.type), tuple(port.shape))


@contextmanager
def _told() -> Iterator[None]:
    """What goes wrong in ONNX Runtime, as one of our errors; its exceptions share no base class."""
    try:
        yield
    except AdarError:
        raise
    except Exception as error:
        raise BackendError(f"ONNX Runtime could not run the bundle: {reason(error)}") from error


def _as_tables(neighbours: Neighbours) -> Arrays:
    return Tables.of(neighbours).arrays() | {"share": neighbours.share}


def _as_edges(neighbours: Neighbours) -> Arrays:
    return {"edge_source": neighbours.sources, "edge_target": neighbours.targets}


LAYOUTS: dict[str, Callable[[Neighbours], Arrays]] = {TABLES: _as_tables, EDGES: _as_edges}
"""What a cell has to know about the edges, by the name of its aggregation; the same at every step."""


def _session(content: bytes, device: str, threads: int | None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    options.log_severity_level = QUIET
    # Without it the bytes say what they are, and could be a format that nobody has looked into.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    provider = PROVIDERS[device]
    try:
        session = ort.InferenceSession(content, options, providers=[provider])
    except Exception as error:  # its exceptions share no base class
        raise BackendError(f"ONNX Runtime cannot load the graph: {reason(error)}") from error
    if session.get_providers()[0] != provider:
        raise BackendError(
            f"ONNX Runtime fell back to {session.get_providers()[0]}: {provider} does not work here"
        )
    return session


@lru_cache
def cuda_devices() -> int:
    """How many CUDA devices the driver sees. ONNX Runtime lists CUDA whether or not there is one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
