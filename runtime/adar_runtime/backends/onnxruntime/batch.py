"""The states of many small graphs in ONNX Runtime on the CPU: one call of the cell moves all of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from adar_runtime.backends.onnxruntime.recurrence import encode
from adar_runtime.backends.onnxruntime.sessions import backend_errors
from adar_runtime.backends.prepared_batch import PreparedBatch
from adar_runtime.bundle.manifest import BATCHED_CELL
from adar_runtime.bundle.signature import SCALARS, STATE, STEP
from adar_runtime.graph import Floats


class OnnxBatch:
    """The states of the graphs of a batch; see `adar_runtime.loop.together.Batch`.

    The cell reads one set of state buffers and writes the other. A graph that does not move in a call has
    weights of zero, so its state is the same in both.
    """

    def __init__(
        self, name: str, sessions: Mapping[str, ort.InferenceSession], prepared: PreparedBatch
    ) -> None:
        self.name, self.count = name, len(prepared.graphs)
        self._prepared = prepared
        self._cell, self._head = sessions[BATCHED_CELL], sessions["head"]
        first = _encode(sessions["encoder"], prepared)
        self._states = [first, [np.empty_like(array) for array in first]]
        self._velocities = [[np.zeros_like(array) for array in first] for _ in range(2)]
        self._kept = [array.copy() for array in first]
        self._current = 0
        hidden = first[0].shape[2]
        self._codes = np.zeros((self.count, 1, hidden), np.float32)
        self._weights = np.zeros((len(STEP), self.count, 1, 1), np.float32)
        self.scalars: Floats = np.zeros((len(SCALARS), self.count), np.float32)
        self._to_keep = np.zeros(self.count, bool)  # the current state is the one to answer from
        step = {"step_code": self._codes} | dict(zip(STEP, self._weights, strict=True))
        self._bindings = [self._bind(source, prepared.structure | step) for source in (0, 1)]
        self._run()  # with weights of zero: the alignment of the states at t = 0
        self.scalars[1:] = 0

    def step(self, codes: Floats, weights: NDArray[np.float64], recalled: NDArray[np.bool_]) -> None:
        """Run the batched cell once. A graph with weights of zero stays as it is."""
        now = self._states[self._current]
        _copy(now, self._kept, self._to_keep)
        self._to_keep[:] = False
        _copy(self._kept, now, recalled)
        self._codes[:, 0] = codes
        self._weights[:, :, 0, 0] = weights
        self._run()

    def keep(self, chosen: NDArray[np.bool_]) -> None:
        """Mark current states as those to answer from. They are copied before the next call."""
        self._to_keep |= chosen

    def scores(self, index: int, *, kept: bool) -> Floats:
        """The scores of a graph: of its kept state, or of the current one."""
        arrays = self._kept if kept and not self._to_keep[index] else self._states[self._current]
        nodes = arrays[0][index, : self._prepared.graphs[index].nodes]
        feeds = {"nodes": nodes, "targets": arrays[1][index, : self._prepared.targets(index)]}
        blocks = [{"pairs": block} for block in self._prepared.pair_blocks(index)]
        with backend_errors():
            found = [self._head.run(["scores"], feeds | pairs)[0] for pairs in blocks or [{}]]
        return np.concatenate(found) if len(found) > 1 else found[0]

    def _run(self) -> None:
        with backend_errors():
            self._cell.run_with_iobinding(self._bindings[self._current])
        self._current = 1 - self._current

    def _bind(self, source: int, others: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        """The cell from one set of buffers to the other. OrtValues share the memory of their arrays."""
        binding, free = self._cell.io_binding(), 1 - source
        inputs = dict(others)
        inputs |= zip(STATE, self._states[source], strict=True)
        inputs |= zip((f"previous_{name}_velocity" for name in STATE), self._velocities[source], strict=True)
        outputs = dict(zip(SCALARS, self.scalars, strict=True))
        outputs |= zip((f"next_{name}" for name in STATE), self._states[free], strict=True)
        outputs |= zip((f"{name}_velocity" for name in STATE), self._velocities[free], strict=True)
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, _shared(array))
        for name, array in outputs.items():
            binding.bind_ortvalue_output(name, _shared(array))
        return binding


def _copy(source: list[Floats], destination: list[Floats], chosen: NDArray[np.bool_]) -> None:
    """Copy the states of the chosen graphs."""
    if chosen.all():
        for one, other in zip(source, destination, strict=True):
            other[...] = one
    elif chosen.any():
        for one, other in zip(source, destination, strict=True):
            other[chosen] = one[chosen]


def _encode(encoder: ort.InferenceSession, prepared: PreparedBatch) -> list[Floats]:
    """The states of all graphs at t = 0, padded with zeros: [b, n, d], [b, c, d] and twice [b, p, d]."""
    count = len(prepared.graphs)
    if prepared.is_joined:
        found = [encoder.run(list(STATE), {"features": rows}) for rows in prepared.feature_blocks()]
        joined = np.concatenate([each[0] for each in found])
        return [prepared.padded(joined), *(np.repeat(each[None], count, axis=0) for each in found[0][1:])]
    each = [encode(encoder, prepared.alone(index)) for index in range(count)]
    nodes, targets, *proxies = zip(*each, strict=True)
    padded = prepared.padded(np.concatenate(nodes)), prepared.padded_targets(targets)
    return [*padded, *map(np.stack, proxies)]


def _shared(array: np.ndarray[Any, Any]) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(array)
