"""What runs the cell. One file a backend, behind this one small protocol."""

from collections.abc import Mapping
from typing import Protocol

from adar_runtime.graph import Floats, Graph
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


def devices() -> list[str]:
    """The devices that really work here, the best one first."""
    from adar_runtime.backends.onnx import cuda_devices

    return ["cuda", "cpu"] if cuda_devices() else ["cpu"]
