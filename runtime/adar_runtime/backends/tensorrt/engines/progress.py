"""TensorRT's own account of a build, as one number from 0 to 1."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Report = Callable[[str, float, str], None]
"""Called with the graph, how much of it is done, and what is being done."""


@dataclass
class _Phase:
    name: str
    steps: int
    done: int = 0


class Phases:
    """Phases within phases; each step of one is as long as all that happens inside it."""

    def __init__(self) -> None:
        self._open: list[_Phase] = []

    def start(self, name: str, steps: int) -> None:
        self._open.append(_Phase(name, max(1, steps)))

    def step(self, name: str, step: int) -> None:
        for phase in self._open:
            if phase.name == name:
                phase.done = max(phase.done, step + 1)

    def finish(self, name: str) -> None:
        self._open = [phase for phase in self._open if phase.name != name]

    @property
    def done(self) -> float:
        """Of the outermost phase."""
        part, share = 0.0, 1.0
        for phase in self._open:
            part += share * min(phase.done, phase.steps) / phase.steps
            share /= phase.steps
        return min(1.0, part)

    @property
    def name(self) -> str:
        """Of the innermost phase."""
        return self._open[-1].name if self._open else ""


def make_monitor(trt: Any, report: Callable[[float, str], None], unwanted: Callable[[], bool]) -> Any:
    """What a builder tells its progress to; it is asked to give up as soon as its work is unwanted.

    It is called from the middle of TensorRT's own code, which no exception may cross. So one that `report`
    raises is kept, and the builder asked to give up too.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.error: BaseException | None = None
            self._phases = Phases()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:  # noqa: ARG002
            self._safely(lambda: self._phases.start(phase_name, num_steps))

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._safely(lambda: self._phases.step(phase_name, step))
            return self.error is None and not unwanted()

        def phase_finish(self, phase_name: str) -> None:
            self._safely(lambda: self._phases.finish(phase_name))

        def _safely(self, act: Callable[[], None]) -> None:
            try:
                act()
                report(self._phases.done, self._phases.name)
            except BaseException as error:
                self.error = self.error or error

    return Monitor()
