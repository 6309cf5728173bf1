"""What runs the cell. One file a backend, behind this one small protocol, and one line in `BACKENDS`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Protocol, cast, runtime_checkable

from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.signature import Ports
from adar_runtime.errors import BackendError, ProfileError
from adar_runtime.graph import Floats, Graph
from adar_runtime.loop.solvers import Motion, Move


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


@runtime_checkable
class Foresees(Protocol):
    """A recurrence that goes faster where it knows the moves to come."""

    def foresee(self, moves: Iterator[tuple[Floats, Move]]) -> None:
        """What `step` will be told, as far as anyone can say; where it is told otherwise, that counts."""
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


@dataclass(frozen=True)
class Settings:
    """What a backend may be told."""

    threads: int | None = None  # of ONNX Runtime
    bundle: Path | None = None  # the folder, where engines may be found or put
    rebuild: bool = False  # engines that do not fit are built again, instead of an error
    trusted: bool = False  # engines may be anybody's; otherwise only those that were built here are loaded


class BackendModule(Protocol):
    """What the file of a backend has to define."""

    def problem(self) -> str | None:
        """Why it cannot work on this machine, and what to do; None where it may."""
        ...

    def open(self, onnx_models: Mapping[str, bytes], manifest: Manifest, settings: Settings) -> Backend:
        """Make a bundle ready; a BackendError where that does not work, never another device instead."""
        ...


CPU, CUDA, TENSORRT = "onnxruntime-cpu", "onnxruntime-cuda", "tensorrt"
BACKENDS = {
    TENSORRT: "adar_runtime.backends.tensorrt.backend",
    CUDA: "adar_runtime.backends.onnxruntime.cuda",
    CPU: "adar_runtime.backends.onnxruntime.cpu",
}
"""The module of each, by its name, the best one first. It is imported when somebody asks for it."""

AUTO = "auto"


def available() -> list[str]:
    """The backends that work on this machine, the best one first."""
    return [name for name in BACKENDS if _module(name).problem() is None]


def open_backend(
    name: str, onnx_models: Mapping[str, bytes], manifest: Manifest, settings: Settings | None = None
) -> Backend:
    """The backend of that name or, for "auto", the best that really works with this bundle."""
    if name != AUTO and name not in BACKENDS:
        *most, last = AUTO, *BACKENDS
        raise BackendError(f"there is no backend {name!r}: choose {', '.join(most)} or {last}")
    settings = settings or Settings()

    def opened(candidate: str) -> Backend:
        return _open(candidate, onnx_models, manifest, settings)

    return _first(list(BACKENDS), opened) if name == AUTO else opened(name)


def _first(names: Iterable[str], opened: Callable[[str], Backend]) -> Backend:
    """The first of these that can be opened."""
    problems, rest = [], list(names)
    while rest:
        name = rest.pop(0)
        try:
            found = opened(name)
        except BackendError as error:
            problems.append(str(error))
        else:
            return _OrNext(found, lambda: _first(rest, opened)) if name == TENSORRT else found
    raise BackendError("; ".join(problems))


class _OrNext:
    """Engines take the shapes that they were built for; a graph of another shape goes to the next backend."""

    def __init__(self, best: Backend, following: Callable[[], Backend]) -> None:
        self.name = best.name
        self._best = best
        self._following = following
        self._next: Backend | None = None
        self._opening = Lock()  # threads that share a bundle open the next one once

    @property
    def ports(self) -> Mapping[str, Ports]:
        return self._best.ports

    def start(self, graph: Graph) -> Recurrence:
        try:
            return self._best.start(graph)
        except ProfileError:
            with self._opening:
                self._next = following = self._next or self._following()
            return following.start(graph)


def _open(name: str, onnx_models: Mapping[str, bytes], manifest: Manifest, settings: Settings) -> Backend:
    module = _module(name)
    problem = module.problem()
    if problem is not None:
        raise BackendError(f"{name} does not work here: {problem}")
    return module.open(onnx_models, manifest, settings)


def _module(name: str) -> BackendModule:
    return cast("BackendModule", import_module(BACKENDS[name]))
