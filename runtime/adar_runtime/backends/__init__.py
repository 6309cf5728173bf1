"""Backends: what runs the models of a bundle.

A new backend is one file with one class, and one line in `BACKENDS`.

Importing this module loads neither numpy nor a backend: the command line takes its choices from `BACKENDS`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, runtime_checkable

from adar_runtime.errors import BackendError, MissingExtraError, ProfileError, UsageError, short
from adar_runtime.loop.registry import is_count
from adar_runtime.loop.solvers import Motion, Move

if TYPE_CHECKING:
    from adar_runtime.backends.prepared_graph import PreparedGraph
    from adar_runtime.bundle.manifest import Manifest
    from adar_runtime.bundle.signature import Ports
    from adar_runtime.graph import Floats


class Recurrence(Protocol):
    """The states of one graph on a device. They stay on the device between steps."""

    name: str  # of the backend that runs it

    @property
    def alignment(self) -> float:
        """Alignment of the current state."""
        ...

    @property
    def motion(self) -> Motion:
        """How the nodes moved in the last step; all zero before the first step."""
        ...

    def step(self, code: "Floats", move: Move) -> None:
        """Run the cell once. `code` [d] is the step encoding of the move's time."""
        ...

    def keep(self) -> None:
        """Mark the current state as the one to answer from."""
        ...

    def recall(self) -> None:
        """Make the kept state the current one."""
        ...

    def scores(self, *, kept: bool) -> "Floats":
        """Scores [k, c] of the kept state, or of the current one (also where no state was kept)."""
        ...

    def state(self) -> "dict[str, Floats]":
        """A copy of the current state's arrays, by name."""
        ...


@runtime_checkable
class Lookahead(Protocol):
    """A recurrence that runs faster when it knows the next moves."""

    def plan_ahead(self, moves: "Iterator[tuple[Floats, Move]]") -> None:
        """Receive the expected arguments of the next `step` calls. The actual arguments may differ."""
        ...


class Capture(NamedTuple):
    """Whether blocks of steps run as one CUDA graph, and the reason if not."""

    captured: bool
    why: str = ""

    def __str__(self) -> str:
        return "yes" if self.captured else f"no: {self.why}"


@runtime_checkable
class Capturing(Protocol):
    """A recurrence that tries to capture blocks of steps as one CUDA graph."""

    @property
    def capture(self) -> Capture:
        """Whether it succeeded."""
        ...


class Backend(Protocol):
    """The models of a bundle, ready to run on one kind of device."""

    name: str

    @property
    def ports(self) -> "Mapping[str, Ports]":
        """The actual inputs and outputs of each model."""
        ...

    def start(self, prepared: "PreparedGraph") -> Recurrence:
        """Encode a graph: the state at t = 0."""
        ...


@dataclass(frozen=True)
class Settings:
    """Options of a backend."""

    threads: int | None = None  # of ONNX Runtime and OpenVINO
    bundle: Path | None = None  # folder in which engines are found or built
    rebuild: bool = False  # rebuild engines that do not fit, instead of raising an error
    trusted: bool = False  # load engines from anywhere, not only those that were built on this machine
    device: int = 0  # number of the CUDA device
    tf32: bool = False  # let ONNX Runtime multiply float32 matrices in TF32 on CUDA: faster, less precise
    cuda_graph: bool = False  # let ONNX Runtime capture the cell as a CUDA graph

    def __post_init__(self) -> None:
        if self.threads is not None and (not is_count(self.threads, 1) or self.threads > MAX_THREADS):
            raise UsageError(f"threads is {short(repr(self.threads))}: choose 1 to {MAX_THREADS}")
        if not is_count(self.device, 0) or self.device > MAX_DEVICE:
            raise UsageError(
                f"device is {short(repr(self.device))}: choose the number of a CUDA device, from 0 on"
            )


class BackendClass(Protocol):
    """What the class of a backend has to offer beside the methods of `Backend`."""

    def problem(self) -> str | None:
        """Why the backend cannot work on this machine and what to do; None where it can. A static method."""
        ...

    def __call__(self, onnx_models: Mapping[str, bytes], manifest: "Manifest", settings: Settings) -> Backend:
        """Load the models of a bundle. Raise a BackendError on failure; never use another device instead."""
        ...


MAX_THREADS = 1024
MAX_DEVICE = 1023
AUTO = "auto"
CPU, CUDA, TENSORRT, OPENVINO = "onnxruntime-cpu", "onnxruntime-cuda", "tensorrt", "openvino"
BACKENDS = {
    TENSORRT: "adar_runtime.backends.tensorrt.backend:TensorRtBackend",
    CUDA: "adar_runtime.backends.onnxruntime.backend:OnnxCudaBackend",
    OPENVINO: "adar_runtime.backends.openvino:OpenVinoBackend",
    CPU: "adar_runtime.backends.onnxruntime.backend:OnnxCpuBackend",
}
"""The module and class of each backend by name, the fastest first. A module is imported on first use."""

ON_REQUEST = (OPENVINO,)
"""Backends that "auto" uses for bf16 bundles only: benchmarks/runtime.md has the reason."""


def available() -> list[str]:
    """The backends that work on this machine, the fastest first."""
    _require_onnxruntime()
    return [name for name in BACKENDS if _class(name).problem() is None]


def backend_problem(name: str) -> str | None:
    """Why a backend cannot work on this machine and what to do; None if it can."""
    _require_onnxruntime()
    return _class(name).problem()


def open_backend(
    name: str, onnx_models: Mapping[str, bytes], manifest: "Manifest", settings: Settings | None = None
) -> Backend:
    """The backend of that name; for "auto", the fastest one that works with this bundle."""
    if name != AUTO and name not in BACKENDS:
        *most, last = AUTO, *BACKENDS
        raise BackendError(f"there is no backend {name!r}: choose {', '.join(most)} or {last}")
    settings = settings or Settings()
    _require_onnxruntime()

    def open_one(candidate: str) -> Backend:
        return _open(candidate, onnx_models, manifest, settings)

    # ONNX Runtime cannot run bf16 on the CPU, and OpenVINO takes about half of the time of float32.
    automatic = [one for one in BACKENDS if one not in ON_REQUEST or manifest.precision == "bf16"]
    return _first(automatic, open_one) if name == AUTO else open_one(name)


def open_isolated(
    name: str, onnx_models: Mapping[str, bytes], manifest: "Manifest", settings: Settings
) -> Backend:
    """A child process on the CPU, for models that are not known."""
    if name not in (AUTO, CPU):
        raise BackendError(f"unknown models run on {CPU} only: choose {CPU} or {AUTO}")
    _require_onnxruntime()
    isolated = import_module("adar_runtime.backends.isolated.backend").IsolatedBackend
    problem = isolated.problem()
    if problem is not None:
        raise BackendError(problem)
    return cast("Backend", isolated(onnx_models, manifest, settings))


def _require_onnxruntime() -> None:
    """All backends use it. The base installation has none: users choose one of its two packages."""
    if find_spec("onnxruntime") is None:
        raise MissingExtraError("running a bundle (on a GPU: the extra gpu)", "cpu")


def _first(names: Iterable[str], open_one: Callable[[str], Backend]) -> Backend:
    """The first of these backends that opens."""
    problems, rest = [], list(names)
    while rest:
        name = rest.pop(0)
        try:
            backend = open_one(name)
        except BackendError as error:
            problems.append(str(error))
        else:
            return _WithFallback(backend, lambda: _first(rest, open_one)) if rest else backend
    raise BackendError("; ".join(problems))


class _WithFallback:
    """A backend, and the next one for graphs whose shapes the first does not accept (TensorRT profiles)."""

    def __init__(self, best: Backend, open_next: Callable[[], Backend]) -> None:
        self.name = best.name
        self._best = best
        self._open_next = open_next
        self._next: Backend | None = None
        self._opening = Lock()  # threads that share a bundle open the next backend once

    @property
    def ports(self) -> "Mapping[str, Ports]":
        return self._best.ports

    def start(self, prepared: "PreparedGraph") -> Recurrence:
        try:
            return self._best.start(prepared)
        except ProfileError:
            with self._opening:
                self._next = following = self._next or self._open_next()
            return following.start(prepared)


def _open(name: str, onnx_models: Mapping[str, bytes], manifest: "Manifest", settings: Settings) -> Backend:
    backend = _class(name)
    problem = backend.problem()
    if problem is not None:
        raise BackendError(f"{name} does not work here: {problem}")
    return backend(onnx_models, manifest, settings)


def _class(name: str) -> BackendClass:
    module, attribute = BACKENDS[name].split(":")
    return cast("BackendClass", getattr(import_module(module), attribute))
