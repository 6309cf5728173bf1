"""OpenVINO on the CPU: a second executor of the same models, which also runs bf16 bundles there."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import numpy as np

from adar_runtime.backends import OPENVINO, Settings
from adar_runtime.backends.prepared_graph import Arrays, PreparedGraph
from adar_runtime.backends.state_buffers import STATES, state_buffers
from adar_runtime.bundle.manifest import ONNX_MODELS, Manifest, OnnxFile, Port
from adar_runtime.bundle.signature import SCALARS, STATE, STEP, Ports
from adar_runtime.errors import AdarError, BackendError, reason
from adar_runtime.graph import Floats, Integers
from adar_runtime.loop.solvers import Motion, Move

TYPES = {"f32": "float32", "i32": "int32", "i64": "int64"}
MAY_BE_UNUSED = (*STEP, "step_code")  # inputs of a step that some cells do not read
CONVERTER = "openvino.tools.ovc"  # sends an event to its maker when it is imported


class OpenVinoBackend:
    """The models of a bundle, compiled by OpenVINO for the CPU."""

    name = OPENVINO

    @staticmethod
    def problem() -> str | None:
        """Whether the package is installed."""
        if find_spec("openvino") is None:
            return "OpenVINO is not installed: pip install 'adar-deploy[openvino]'"
        return None

    def __init__(self, onnx_models: Mapping[str, bytes], manifest: Manifest, settings: Settings) -> None:
        self._manifest = manifest
        with _backend_errors("load"):
            compiler = _Compiler(manifest.precision, settings.threads)
            self._models = {name: compiler.compile(onnx_models[name]) for name in ONNX_MODELS}

    @property
    def ports(self) -> dict[str, Ports]:
        return {name: _ports(model, self._manifest.onnx_models[name]) for name, model in self._models.items()}

    def start(self, prepared: PreparedGraph) -> "OpenVinoRecurrence":
        with _backend_errors("run"):
            return OpenVinoRecurrence(self._models, prepared)


class OpenVinoRecurrence:
    """The states of one graph; see `adar_runtime.backends.Recurrence`."""

    name = OPENVINO

    def __init__(self, models: Mapping[str, Any], prepared: PreparedGraph) -> None:
        self._cell, self._head = _Request(models["cell"]), _Request(models["head"])
        first = _encode(_Request(models["encoder"]), prepared)
        self._states, self._velocities = (
            [dict(zip(first, arrays, strict=True)) for arrays in sets]
            for sets in state_buffers([*first.values()])
        )
        self._current, self._kept = 0, -1  # slots; -1: no state was kept
        self._latest = 0  # which of the two holds the last velocity
        self._code = np.zeros(first["nodes"].shape[1], np.float32)
        self._step = {name: np.zeros((), np.float32) for name in STEP}
        self._scalars = {name: np.zeros((), np.float32) for name in SCALARS}
        self._pairs: list[Integers | None] = [*prepared.pair_blocks()] or [None]
        self._cell.bind(prepared.structure | self._step | self._scalars | {"step_code": self._code})
        self._scalars["alignment"][()] = self._run_head(0, self._pairs[0])[1]

    @property
    def alignment(self) -> float:
        return self._scalars["alignment"].item()

    @property
    def motion(self) -> Motion:
        return Motion(self._scalars["speed"].item(), self._scalars["turn"].item())

    def step(self, code: Floats, move: Move) -> None:
        self._code[:] = code
        for name, number in self._step.items():
            number[()] = getattr(move, name)
        free = next(slot for slot in range(STATES) if slot not in (self._current, self._kept))
        before, after = self._velocities[self._latest], self._velocities[1 - self._latest]
        inputs = dict(self._states[self._current]) | _renamed("previous_{}_velocity", before)
        outputs = _renamed("next_{}", self._states[free]) | _renamed("{}_velocity", after)
        with _backend_errors("run"):
            self._cell.run(inputs | outputs)
        self._current, self._latest = free, 1 - self._latest

    def keep(self) -> None:
        self._kept = self._current

    def recall(self) -> None:
        if self._kept >= 0:
            self._current = self._kept

    def scores(self, *, kept: bool) -> Floats:
        slot = self._kept if kept and self._kept >= 0 else self._current
        with _backend_errors("run"):
            blocks = [self._run_head(slot, pairs)[0] for pairs in self._pairs]
        return np.concatenate(blocks)

    def state(self) -> dict[str, Floats]:
        return {name: array.copy() for name, array in self._states[self._current].items()}

    def _run_head(self, slot: int, pairs: Integers | None) -> tuple[Floats, float]:
        """Scores of all nodes, of the graph or of one block of pairs, and the alignment."""
        inputs = {name: self._states[slot][name] for name in ("nodes", "targets")}
        self._head.run(inputs if pairs is None else inputs | {"pairs": pairs})
        return self._head.output("scores"), self._head.output("alignment").item()


class _Request:
    """Runs a model on arrays, in place. OpenVINO does not keep arrays alive, so this object does."""

    def __init__(self, model: Any) -> None:
        self._request = model.create_infer_request()
        self._names = {name for port in (*model.inputs, *model.outputs) for name in port.names}
        self._arrays: Arrays = {}
        self._tensor = load_openvino().Tensor

    def bind(self, arrays: Arrays) -> None:
        """Let the next runs read and write these arrays."""
        for name, array in arrays.items():
            if name in MAY_BE_UNUSED and name not in self._names:
                continue
            self._arrays[name] = np.require(array, requirements=("C", "W"))
            self._request.set_tensor(name, self._tensor(self._arrays[name], shared_memory=True))

    def run(self, arrays: Arrays) -> None:
        self.bind(arrays)
        self._request.infer()

    def output(self, name: str) -> Floats:
        """A copy of an output that is not bound."""
        found: Floats = self._request.get_tensor(name).data.copy()
        return found


class _Compiler:
    """Compiles ONNX models for the CPU."""

    def __init__(self, precision: str, threads: int | None) -> None:
        openvino = load_openvino()
        self._core = openvino.Core()
        # Only the ONNX reader is used, because only this format was checked.
        self._reader = openvino.frontend.FrontEndManager().load_by_framework("onnx")
        has_bf16 = "BF16" in self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        self._options = {
            # Without it, OpenVINO rounds the factors of float32 products to bfloat16 if the processor can.
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" and has_bf16 else "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        if threads is not None:
            self._options["INFERENCE_NUM_THREADS"] = str(threads)

    def compile(self, content: bytes) -> Any:
        model = self._reader.convert(self._reader.load(BytesIO(content)))
        return self._core.compile_model(model, "CPU", self._options)


@lru_cache
def load_openvino() -> Any:
    """Import OpenVINO without its converter, whose import sends an event to the maker of OpenVINO."""
    blocked = CONVERTER not in sys.modules
    if blocked:
        sys.modules[CONVERTER] = None  # type: ignore[assignment]  # an import of it fails, which openvino accepts
    try:
        return import_module("openvino")
    except (ImportError, OSError) as error:
        raise BackendError(f"OpenVINO is installed but cannot be loaded: {reason(error)}") from error
    finally:
        if blocked:
            del sys.modules[CONVERTER]


def _encode(encoder: _Request, prepared: PreparedGraph) -> dict[str, Floats]:
    """The four arrays of the state at t = 0."""
    graph, blocks = prepared.graph, []
    inputs: Arrays = {} if prepared.target_features is None else {"target_features": prepared.target_features}
    for block in prepared.feature_blocks():
        encoder.run(inputs | {"features": graph.rows(*block)})
        blocks.append({name: encoder.output(name) for name in STATE})
    nodes = np.concatenate([block["nodes"] for block in blocks])
    return blocks[0] | {"nodes": np.array(prepared.first_nodes(nodes), np.float32)}


def _renamed(form: str, arrays: Arrays) -> Arrays:
    return {form.format(name): array for name, array in arrays.items()}


def _ports(model: Any, file: OnnxFile) -> Ports:
    """The inputs and outputs of a compiled model; a dynamic dimension has its name from the manifest.

    OpenVINO leaves out inputs that nothing reads: a number of the step in the cell of a pretrained model, and
    the time in a zero-shot cell whose layers are zero.
    """

    def of(found: Any, declared: tuple[Port, ...]) -> tuple[Port, ...]:
        known = {port.name: port.shape for port in declared}
        return tuple(_port(one, known) for one in found)

    inputs = of(model.inputs, file.inputs)
    names = {port.name for port in inputs}
    unused = tuple(port for port in file.inputs if port.name in MAY_BE_UNUSED and port.name not in names)
    return Ports((*inputs, *unused), of(model.outputs, file.outputs))


def _port(found: Any, declared: Mapping[str, tuple[int | str, ...]]) -> Port:
    """OpenVINO adds names of its own to a port: take the declared one."""
    name = next((name for name in sorted(found.names) if name in declared), found.any_name)
    shape = tuple(-1 if side.is_dynamic else side.get_length() for side in found.partial_shape)
    names = declared.get(name, ())
    if len(names) == len(shape):
        shape = tuple(there if side == -1 else side for side, there in zip(shape, names, strict=True))
    kind = found.element_type.to_string()
    return Port(name, TYPES.get(kind, kind), shape)


@contextmanager
def _backend_errors(what: str) -> Iterator[None]:
    """Turn exceptions of OpenVINO into a BackendError."""
    try:
        yield
    except AdarError:
        raise
    except Exception as error:  # its exceptions share no base class
        raise BackendError(f"OpenVINO could not {what} the bundle: {reason(error)}") from error
