"""What runs the cell. One file a backend, behind this one small protocol, and one line in `BACKENDS`."""

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, cast

from adar_runtime.errors import BackendError
from adar_runtime.graph import Floats, Graph
from adar_runtime.manifest import Manifest
from adar_runtime.signature import Ports
from adar_runtime.solvers import Motion, Move


class Recurrence(Protocol):
    """The states of one graph, wherever they live. They never leave the device between steps."""

    name: str  # what it really runs on

    @property
    def alignment(self) -> float:
        """Of the current state."""
        ...

    @property
    def motion(self) -> Motion:
        """How the nodes moved in the last step; all zero before the first."""
        ...

    def step(self, code: Floats, move: Move) -> None:
        """Run the cell once: the step encoding [d] of the move's time, and the move."""
        ...

    def keep(self) -> None:
        """Remember the current state as the one to answer from."""
        ...

    def recall(self) -> None:
        """Go back to the kept state."""
        ...

    def scores(self, *, kept: bool) -> Floats:
        """Scores [k, c] of the kept state or of the current one (also where none was kept)."""
        ...

    def state(self) -> dict[str, Floats]:
        """A copy of the current state, by the names of its parts: for looking at, not for running."""
        ...


class Backend(Protocol):
    """A bundle made ready to run on one kind of device."""

    name: str

    @property
    def ports(self) -> Mapping[str, Ports]:
        """What each graph really takes and gives."""
        ...

    def start(self, graph: Graph) -> Recurrence:
        """Encode the features: the state at t = 0."""
        ...


class BackendModule(Protocol):
    """What the file of a backend has to define."""

    def problem(self) -> str | None:
        """Why it cannot work on this machine, and what to do; None where it may."""
        ...

    def open(self, graphs: Mapping[str, bytes], manifest: Manifest, threads: int | None) -> Backend:
        """Make a bundle ready; a BackendError where that does not work, never another device instead."""
        ...


CPU, CUDA = "onnxruntime-cpu", "onnxruntime-cuda"
BACKENDS = {
    CUDA: "adar_runtime.backends.onnx_cuda",
    CPU: "adar_runtime.backends.onnx_cpu",
}
"""The module of each, by its name, the best one first. It is imported when somebody asks for it."""

AUTO = "auto"


def available() -> list[str]:
    """The backends that work on this machine, the best one first."""
    return [name for name in BACKENDS if _module(name).problem() is None]


def open_backend(
    name: str, graphs: Mapping[str, bytes], manifest: Manifest, threads: int | None = None
) -> Backend:
    """The backend of that name or, for "auto", the best that really works with this bundle."""
    if name != AUTO and name not in BACKENDS:
        raise BackendError(f"there is no backend {name!r}: choose {AUTO}, {' or '.join(BACKENDS)}")
    problems = []
    for candidate in BACKENDS if name == AUTO else [name]:
        try:
            return _open(candidate, graphs, manifest, threads)
        except BackendError as error:
            problems.append(str(error))
    raise BackendError("; ".join(problems))


def _open(name: str, graphs: Mapping[str, bytes], manifest: Manifest, threads: int | None) -> Backend:
    module = _module(name)
    problem = module.problem()
    if problem is not None:
        raise BackendError(f"{name} does not work here: {problem}")
    return module.open(graphs, manifest, threads)


def _module(name: str) -> BackendModule:
    return cast("BackendModule", import_module(BACKENDS[name]))
