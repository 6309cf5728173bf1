"""ONNX Runtime, on any of its devices.

Three sets of state buffers are enough for any budget: the cell reads one and writes another, and a
state that is kept holds the third. Keeping is a change of roles, not a copy.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort

from adar_runtime.backends.onnxruntime.sessions import open_sessions, ports_of, told
from adar_runtime.backends.prepared_graph import LAYOUTS, Arrays, encoder_rows, outputs_of, pair_blocks
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.signature import SCALARS, STATE, STEP, Ports
from adar_runtime.errors import BackendError
from adar_runtime.graph import EDGE, Floats, Graph
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.loop.solvers import Motion, Move


class OnnxBackend:
    """The three ONNX models of a bundle as ONNX Runtime sessions."""

    def __init__(
        self,
        name: str,
        device: str,
        provider: str,
        onnx_models: Mapping[str, bytes],
        manifest: Manifest,
        threads: int | None,
    ) -> None:
        self.name = name
        self._device = device
        self._layout, self._level = LAYOUTS[manifest.aggregation], manifest.level
        self._sessions = open_sessions(onnx_models, manifest, provider, threads)

    @property
    def ports(self) -> dict[str, Ports]:
        return {name: ports_of(session) for name, session in self._sessions.items()}

    def start(self, graph: Graph) -> "OnnxRecurrence":
        with told():
            return OnnxRecurrence(self.name, self._device, self._sessions, graph, self._layout, self._level)


class OnnxRecurrence:
    """The states of one graph."""

    def __init__(
        self,
        name: str,
        device: str,
        sessions: Mapping[str, ort.InferenceSession],
        graph: Graph,
        layout: Callable[[Neighbours], Arrays],
        level: str,
    ) -> None:
        self.name = name
        self._device = device
        self._cell, self._head = sessions["cell"], sessions["head"]
        self._outputs = outputs_of(graph, level)
        first = _encode(sessions["encoder"], graph)
        self._buffers = [[self._on_device(array) for array in first] for _ in range(3)]
        self._current = 0
        self._kept: int | None = None
        self._velocities = [[self._on_device(np.zeros_like(array)) for array in first] for _ in range(2)]
        self._latest = 0  # which of the two sets holds the last velocity
        self._step = _StepInputs(device, first[0].shape[1])
        self._heard = {name: np.zeros((), np.float32) for name in SCALARS}
        self._scalars = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self._heard.items()}
        neighbours = Neighbours.of(graph.edge_index, graph.nodes)
        self._structure = {key: self._on_device(value) for key, value in layout(neighbours).items()}
        self._bindings: dict[tuple[int, int, int], Any] = {}
        self._pairs = [self._on_device(block) for block in pair_blocks(graph)] if level == EDGE else []
        self._measure()

    @property
    def alignment(self) -> float:
        return self._heard["alignment"].item()

    @property
    def motion(self) -> Motion:
        return Motion(self._heard["speed"].item(), self._heard["turn"].item())

    def step(self, code: Floats, move: Move) -> None:
        self._step.tell(code, move)
        free = next(slot for slot in range(3) if slot not in (self._current, self._kept))
        binding = self._binding(self._current, free, self._latest)
        with told():
            self._cell.run_with_iobinding(binding)
        self._current, self._latest = free, 1 - self._latest

    def keep(self) -> None:
        self._kept = self._current

    def recall(self) -> None:
        if self._kept is not None:
            self._current = self._kept

    def scores(self, *, kept: bool) -> Floats:
        slot = self._kept if kept and self._kept is not None else self._current
        if not self._pairs:
            return self._score(slot, None, self._outputs)
        scores = np.empty((self._outputs, self._targets(slot)), np.float32)
        start = 0
        for pairs in self._pairs:
            stop = start + pairs.shape()[1]
            scores[start:stop] = self._score(slot, pairs, stop - start)
            start = stop
        return scores

    def _score(self, slot: int, pairs: ort.OrtValue | None, outputs: int) -> Floats:
        """Scores of all nodes, of the graph, or of some pairs."""
        binding = self._head_binding(slot, pairs)
        binding.bind_output("alignment")
        with told():
            self._head.run_with_iobinding(binding)
            scores: Floats = binding.copy_outputs_to_cpu()[0]
        _check_shape("scores", scores, (outputs, self._targets(slot)))
        return scores

    def _targets(self, slot: int) -> int:
        count: int = self._buffers[slot][1].shape()[0]
        return count

    def state(self) -> dict[str, Floats]:
        return {
            name: np.array(value.numpy())
            for name, value in zip(STATE, self._buffers[self._current], strict=True)
        }

    def _measure(self) -> None:
        """The alignment of the state at t = 0, whatever the pairs; later ones come out of the cell."""
        binding = self._head_binding(0, self._pairs[0] if self._pairs else None)
        binding.bind_ortvalue_output("alignment", self._scalars["alignment"])
        self._head.run_with_iobinding(binding)

    def _head_binding(self, slot: int, pairs: ort.OrtValue | None) -> Any:
        nodes, targets, *_ = self._buffers[slot]
        binding = self._head.io_binding()
        binding.bind_ortvalue_input("nodes", nodes)
        binding.bind_ortvalue_input("targets", targets)
        if pairs is not None:
            binding.bind_ortvalue_input("pairs", pairs)
        binding.bind_output("scores")
        return binding

    def _binding(self, source: int, free: int, latest: int) -> Any:
        """Inputs from one set of buffers and outputs into another, bound once."""
        if (source, free, latest) not in self._bindings:
            binding = self._cell.io_binding()
            inputs = dict(zip(STATE, self._buffers[source], strict=True)) | self._structure
            inputs |= self._step.values
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


class _StepInputs:
    """What the cell is told anew before each call.

    On a CPU, an OrtValue shares the memory of the array that it is made from, so writing to the array is
    all it takes; a device needs a copy.
    """

    def __init__(self, device: str, width: int) -> None:
        self._code = np.zeros(width, np.float32)
        self._numbers = {name: np.zeros((), np.float32) for name in STEP}
        self._arrays = {"step_code": self._code} | self._numbers
        self.values = {
            name: ort.OrtValue.ortvalue_from_numpy(array, device, 0) for name, array in self._arrays.items()
        }
        self._shared = device == "cpu"

    def tell(self, code: Floats, move: Move) -> None:
        self._code[:] = code
        for name, number in self._numbers.items():
            number[()] = getattr(move, name)
        if not self._shared:
            for name, array in self._arrays.items():
                self.values[name].update_inplace(array)


def _encode(encoder: ort.InferenceSession, graph: Graph) -> list[Floats]:
    """The four states at t = 0."""
    feeds: dict[str, Floats] = {}
    if len(encoder.get_inputs()) > 1:
        assert graph.target_features is not None
        feeds["target_features"] = graph.target_features
    by_row = encoder.get_modelmeta().custom_metadata_map.get("adar.by_row") == "yes"
    size = encoder_rows(graph, by_row=by_row)
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
