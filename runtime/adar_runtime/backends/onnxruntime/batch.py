"""The states of many small graphs in ONNX Runtime on the CPU: one call of the cell moves all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from adar_runtime.backends.onnxruntime.recurrence import encode
from adar_runtime.backends.onnxruntime.sessions import backend_errors
from adar_runtime.backends.prepared_batch import PreparedBatch
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle.manifest import BATCHED_CELL
from adar_runtime.bundle.signature import SCALARS, STATE, STEP
from adar_runtime.graph import Floats
from adar_runtime.loop.solvers import Motion, Move
from adar_runtime.loop.together import Call


class OnnxBatch:
    """The states of the graphs of a batch; see `adar_runtime.loop.together.Batch`.

    The cell reads one set of state buffers and writes the other. A graph that does not move in a call has
    weights of zero, so its state is the same in both.
    """

    def __init__(
        self, name: str, sessions: Mapping[str, ort.InferenceSession], prepared: PreparedBatch
    ) -> None:
        self.name = name
        self.head = sessions["head"]
        self._cell = sessions[BATCHED_CELL]
        first = _encode(sessions["encoder"], prepared)
        self._states = [first, [np.empty_like(array) for array in first]]
        self._velocities = [[np.zeros_like(array) for array in first] for _ in range(2)]
        self._kept = [array.copy() for array in first]
        self._current = 0
        count, hidden = len(first[0]), first[0].shape[2]
        self._code = np.zeros((count, 1, hidden), np.float32)
        self._numbers = np.zeros((len(STEP), count, 1, 1), np.float32)
        self._scalars = np.zeros((len(SCALARS), count), np.float32)
        self._to_keep = np.zeros(count, bool)  # the current state is the one to answer from
        step = {"step_code": self._code} | dict(zip(STEP, self._numbers, strict=True))
        self._bindings = [self._bind(source, prepared.structure | step) for source in (0, 1)]
        self.graphs = [BatchedGraph(self, index, each) for index, each in enumerate(prepared.graphs)]
        self._run()  # with weights of zero: the alignment of the states at t = 0
        self._numbers_of = [[alignment, 0.0, 0.0] for alignment in self._scalars[0].tolist()]

    def step(self, calls: Sequence[Call | None]) -> None:
        """Run the batched cell once. A graph without a call stays as it is."""
        marked = np.flatnonzero(self._to_keep)
        now = self._states[self._current]
        for kept, array in zip(self._kept, now, strict=True):
            kept[marked] = array[marked]
        self._to_keep[:] = False
        self._numbers[:] = 0
        for index, call in enumerate(calls):
            if call is None:
                continue
            if call.recall:
                for kept, array in zip(self._kept, now, strict=True):
                    array[index] = kept[index]
            self._code[index, 0] = call.code
            move = call.move
            self._numbers[:, index, 0, 0] = move.weight, move.previous_weight, move.lead
        self._run()
        self._numbers_of = self._scalars.T.tolist()

    def keep(self, index: int) -> None:
        """Mark the current state of a graph as the one to answer from. It is copied before the next call."""
        self._to_keep[index] = True

    def scalars(self, index: int) -> list[float]:
        """Alignment, speed and turn of a graph."""
        return self._numbers_of[index]

    def state(self, index: int, *, kept: bool) -> list[Floats]:
        """The four arrays of a graph, with the rows of padding: of the kept state, or of the current one."""
        arrays = self._kept if kept and not self._to_keep[index] else self._states[self._current]
        return [array[index] for array in arrays]

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
        outputs = dict(zip(SCALARS, self._scalars, strict=True))
        outputs |= zip((f"next_{name}" for name in STATE), self._states[free], strict=True)
        outputs |= zip((f"{name}_velocity" for name in STATE), self._velocities[free], strict=True)
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, _shared(array))
        for name, array in outputs.items():
            binding.bind_ortvalue_output(name, _shared(array))
        return binding


class BatchedGraph:
    """The states of one graph of a batch; see `adar_runtime.backends.Recurrence`.

    The batch makes the steps, for all graphs at once, before the loops of the graphs ask for them.
    """

    def __init__(self, batch: OnnxBatch, index: int, prepared: PreparedGraph) -> None:
        self.name = batch.name
        self._batch = batch
        self._index = index
        self._prepared = prepared
        self._has_kept = False

    @property
    def alignment(self) -> float:
        return self._batch.scalars(self._index)[0]

    @property
    def motion(self) -> Motion:
        return Motion(*self._batch.scalars(self._index)[1:])

    def step(self, code: Floats, move: Move) -> None:
        """Do nothing: the batch has made this step."""

    def keep(self) -> None:
        self._has_kept = True
        self._batch.keep(self._index)

    def recall(self) -> None:
        """Do nothing: the batch has recalled the state."""

    def scores(self, *, kept: bool) -> Floats:
        nodes, targets = self._state(kept=kept and self._has_kept)[:2]
        feeds = {"nodes": nodes, "targets": targets}
        with backend_errors():
            found = [
                self._batch.head.run(["scores"], feeds | pairs)[0]
                for pairs in ([{"pairs": block} for block in self._prepared.pair_blocks()] or [{}])
            ]
        return np.concatenate(found) if len(found) > 1 else found[0]

    def state(self) -> dict[str, Floats]:
        return {name: array.copy() for name, array in zip(STATE, self._state(kept=False), strict=True)}

    def _state(self, *, kept: bool) -> list[Floats]:
        nodes, *others = self._batch.state(self._index, kept=kept)
        return [nodes[: self._prepared.graph.nodes], *others]


def _encode(encoder: ort.InferenceSession, prepared: PreparedBatch) -> list[Floats]:
    """The states of all graphs at t = 0, padded with zeros: [b, n, d], [b, c, d] and twice [b, p, d]."""
    each = encode_many(encoder, prepared.graphs)
    nodes = np.zeros((len(each), prepared.rows, each[0][0].shape[1]), np.float32)
    for row, (found, *_) in zip(nodes, each, strict=True):
        row[: len(found)] = found
    return [nodes, *(np.stack([found[i] for found in each]) for i in range(1, len(STATE)))]


def encode_many(encoder: ort.InferenceSession, graphs: Sequence[PreparedGraph]) -> list[list[Floats]]:
    """The states of each graph at t = 0. An encoder that treats each node alone gets all nodes at once."""
    if not graphs[0].by_row or graphs[0].target_features is not None:
        return [encode(encoder, each) for each in graphs]
    features = np.concatenate([each.graph.rows(0, each.graph.nodes) for each in graphs])
    nodes, *others = encoder.run(list(STATE), {"features": features})
    ends = np.cumsum([each.graph.nodes for each in graphs])[:-1]
    return [
        [each.first_nodes(found), *others] for each, found in zip(graphs, np.split(nodes, ends), strict=True)
    ]


def _shared(array: np.ndarray[Any, Any]) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(array)
