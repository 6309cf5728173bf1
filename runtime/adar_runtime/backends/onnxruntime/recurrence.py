"""The states of one graph in ONNX Runtime, on the CPU or on a GPU.

Three sets of state buffers are enough for any budget: the cell reads one and writes another, and a kept state
occupies the third. Keeping a state changes the roles of the buffers and copies nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import onnxruntime as ort

from adar_runtime.backends import Capture
from adar_runtime.backends.onnxruntime.sessions import backend_errors
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.backends.state_buffers import STATES, state_buffers
from adar_runtime.bundle.signature import SCALARS, STATE, STEP
from adar_runtime.errors import BackendError
from adar_runtime.graph import Floats
from adar_runtime.interruption import interruption_point
from adar_runtime.loop.solvers import Motion, Move


@dataclass(frozen=True)
class Placement:
    """Where the states are, and how the cell is called."""

    device: str  # "cpu" or "cuda"
    number: int = 0
    cuda_graph: bool = False  # the session of the cell captures CUDA graphs


class OnnxRecurrence:
    """The states of one graph; see `adar_runtime.backends.Recurrence`."""

    def __init__(
        self,
        name: str,
        placement: Placement,
        sessions: Mapping[str, ort.InferenceSession],
        prepared: PreparedGraph,
    ) -> None:
        self.name = name
        self._placement = placement
        self._cell, self._head = sessions["cell"], sessions["head"]
        self._outputs = prepared.outputs
        first = encode(sessions["encoder"], prepared)
        self._buffers, self._velocities = (
            [[self._buffer(array) for array in one] for one in sets] for sets in state_buffers(first)
        )
        self._current = 0
        self._kept: int | None = None
        self._latest = 0  # which of the two sets holds the last velocity
        self._step = _StepInputs(placement, first[0].shape[1])
        self._scalars = {name: np.zeros((), np.float32) for name in SCALARS}
        # A captured graph writes only to the device. Otherwise, ONNX Runtime writes to arrays on the host.
        self._scalar_outputs = {
            name: self._on_device(array) if placement.cuda_graph else ort.OrtValue.ortvalue_from_numpy(array)
            for name, array in self._scalars.items()
        }
        self._structure = {key: self._on_device(value) for key, value in prepared.structure.items()}
        self._bindings: dict[tuple[int, int, int], tuple[Any, ort.RunOptions | None]] = {}
        self._pairs = [self._on_device(block) for block in prepared.pair_blocks()]
        self._measure()

    @property
    def alignment(self) -> float:
        return self._scalars["alignment"].item()

    @property
    def motion(self) -> Motion:
        return Motion(self._scalars["speed"].item(), self._scalars["turn"].item())

    def step(self, code: Floats, move: Move) -> None:
        self._step.write(code, move)
        free = next(slot for slot in range(STATES) if slot not in (self._current, self._kept))
        binding, options = self._binding(self._current, free, self._latest)
        with backend_errors():
            self._cell.run_with_iobinding(binding, options)
            self._read_scalars(*SCALARS)
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
        """Scores of all nodes, of the graph, or of one block of pairs."""
        binding = self._head_binding(slot, pairs)
        binding.bind_output("alignment")
        with backend_errors():
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
        """Compute the alignment of the state at t = 0. The cell returns the alignment of later states."""
        binding = self._head_binding(0, self._pairs[0] if self._pairs else None)
        binding.bind_ortvalue_output("alignment", self._scalar_outputs["alignment"])
        self._head.run_with_iobinding(binding)
        self._read_scalars("alignment")

    def _read_scalars(self, *names: str) -> None:
        """Copy scalars from the device, if ONNX Runtime has written them there."""
        if self._placement.cuda_graph:
            for name in names:
                self._scalars[name][()] = self._scalar_outputs[name].numpy()

    def _head_binding(self, slot: int, pairs: ort.OrtValue | None) -> Any:
        nodes, targets, *_ = self._buffers[slot]
        binding = self._head.io_binding()
        binding.bind_ortvalue_input("nodes", nodes)
        binding.bind_ortvalue_input("targets", targets)
        if pairs is not None:
            binding.bind_ortvalue_input("pairs", pairs)
        binding.bind_output("scores")
        return binding

    def _binding(self, source: int, free: int, latest: int) -> "tuple[Any, ort.RunOptions | None]":
        """The cell with its inputs from one set of buffers and its outputs to another; made once.

        Each binding has its own captured graph, because a captured graph reads and writes fixed addresses.
        """
        if (source, free, latest) not in self._bindings:
            binding = self._cell.io_binding()
            inputs = dict(zip(STATE, self._buffers[source], strict=True)) | self._structure
            inputs |= self._step.values
            inputs |= zip(
                (f"previous_{name}_velocity" for name in STATE), self._velocities[latest], strict=True
            )
            outputs = dict(self._scalar_outputs)
            outputs |= zip((f"next_{name}" for name in STATE), self._buffers[free], strict=True)
            outputs |= zip((f"{name}_velocity" for name in STATE), self._velocities[1 - latest], strict=True)
            for name, value in inputs.items():
                binding.bind_ortvalue_input(name, value)
            for name, value in outputs.items():
                binding.bind_ortvalue_output(name, value)
            options = None
            if self._placement.cuda_graph:
                options = ort.RunOptions()
                options.add_run_config_entry("gpu_graph_id", str(next(_graph_numbers)))
            self._bindings[source, free, latest] = binding, options
        return self._bindings[source, free, latest]

    def _buffer(self, array: Floats) -> ort.OrtValue:
        """An array that the cell writes to: shared on the CPU."""
        return (
            ort.OrtValue.ortvalue_from_numpy(array)
            if self._placement.device == "cpu"
            else self._on_device(array)
        )

    def _on_device(self, array: np.ndarray[Any, Any]) -> ort.OrtValue:
        # Copy: an OrtValue that is made from an array on the CPU shares the array's memory.
        device, number = self._placement.device, self._placement.number
        value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), array.dtype, device, number)
        if array.size:
            value.update_inplace(np.ascontiguousarray(array))
        return value


class CapturingOnnxRecurrence(OnnxRecurrence):
    """On a GPU, where the cell may run as a CUDA graph."""

    @property
    def capture(self) -> Capture:
        """As requested: ONNX Runtime raises an error if it cannot capture."""
        on = self._placement.cuda_graph
        return Capture(captured=on, why="" if on else "CUDA graphs of ONNX Runtime are off (--cuda-graph)")


_graph_numbers = count(1)  # never used again: the graph of another run has other addresses


class _StepInputs:
    """The cell's inputs that change before each call.

    On the CPU, an OrtValue shares the memory of its array, so writing to the array is enough. Another device
    needs a copy.
    """

    def __init__(self, placement: Placement, width: int) -> None:
        self._code = np.zeros(width, np.float32)
        self._numbers = {name: np.zeros((), np.float32) for name in STEP}
        self._arrays = {"step_code": self._code} | self._numbers
        self.values = {
            name: ort.OrtValue.ortvalue_from_numpy(array, placement.device, placement.number)
            for name, array in self._arrays.items()
        }
        self._shared = placement.device == "cpu"

    def write(self, code: Floats, move: Move) -> None:
        self._code[:] = code
        for name, number in self._numbers.items():
            number[()] = getattr(move, name)
        if not self._shared:
            for name, array in self._arrays.items():
                self.values[name].update_inplace(array)


def encode(encoder: ort.InferenceSession, prepared: PreparedGraph) -> list[Floats]:
    """The four arrays of the state at t = 0."""
    graph, feeds = prepared.graph, {}
    if prepared.target_features is not None:
        feeds["target_features"] = prepared.target_features
    (_, stop), *rest = prepared.feature_blocks()
    first = encoder.run(list(STATE), feeds | {"features": graph.rows(0, stop)})
    others: list[Floats] = []
    for block in rest:
        interruption_point()
        others += encoder.run(["nodes"], feeds | {"features": graph.rows(*block)})
    nodes = np.concatenate([first[0], *others]) if others else first[0]
    _check_shape("nodes", nodes, (graph.nodes, first[0].shape[1]))
    return [prepared.first_nodes(nodes), *first[1:]]


def _check_shape(name: str, array: Floats, shape: tuple[int, int]) -> None:
    """A model may declare one shape and return another: ONNX Runtime only warns."""
    if array.shape != shape:
        raise BackendError(f"the bundle returned {name} of shape {list(array.shape)}, not {list(shape)}")
