"""What runs the cell. One file a backend, behind this one small protocol."""

from collections.abc import Mapping
from typing import Protocol

from adar_runtime.graph import Floats, Graph
from adar_runtime.signature import Ports


class Recurrence(Protocol):
    """The states of one graph, wherever they live. They never leave the device between steps."""

    name: str  # what it really runs on

    @property
    def alignment(self) -> float:
        """Of the current state."""
        ...

    def step(self, code: Floats, size: float) -> None:
        """Run the cell once: the step encoding [d] of the current time, and Δt."""
        ...

    def keep(self) -> None:
        """Remember the current state as the one to answer from."""
        ...

    def scores(self, *, kept: bool) -> Floats:
        """Scores [k, c] of the kept state or of the current one (also where none was kept)."""
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
