"""Python objects that TensorRT calls while it parses and builds: its logger and its progress monitor."""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Report = Callable[[str, float, str], None]
"""Receives the name of the ONNX model, the finished share of its build (0 to 1) and the current phase."""


def ignore_progress(_onnx_model: str, _done: float, _phase: str) -> None:
    """Report progress to nobody."""


_ACTIVATION = re.compile(r"Total Activation Memory: (\d+) bytes")
_PARSING = re.compile(r"Parsing node: (.*) \[(\w+)\]")
_SOURCE = re.compile(r"^(\[[^\]]*::[^\]]*\]|\w+\.cpp:\d+:|ERROR:|[\w.]+:\d+ In function \w+:|\s)*")


@dataclass
class LogMessages:
    """Recent log messages. TensorRT's calls return False or None, and only the log says why."""

    node: str = ""  # name of the node that the parser read last
    operator: str = ""  # and its operator
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=10))
    activation: list[int] = field(default_factory=list)  # bytes for each profile, as the builder reports them

    def clear(self) -> None:
        self.node = self.operator = ""
        self.errors.clear()
        self.activation.clear()

    def record(self, message: str, *, is_error: bool) -> None:
        """Store a message if it is an error, names the node being parsed, or has the activation memory."""
        parsing, activation = _PARSING.match(message), _ACTIVATION.search(message)
        if parsing:
            self.node, self.operator = parsing.groups()
        elif activation:
            self.activation.append(int(activation[1]))
        elif is_error:
            self.errors.append(message)

    @property
    def reason(self) -> str:
        """The last error, without its location in TensorRT's source code."""
        last = self.errors[-1] if self.errors else "TensorRT did not say why"
        return " ".join(_SOURCE.sub("", last).split())


def make_logger(trt: Any) -> Any:
    """A logger that prints nothing and records messages in its attribute `messages`."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.messages = LogMessages()

        def log(self, severity: Any, message: str) -> None:
            is_error = severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR)
            self.messages.record(message, is_error=is_error)

    return Logger()


@dataclass
class _Phase:
    name: str
    steps: int
    done: int = 0


class Phases:
    """Nested build phases as one number: a phase inside a step fills the time of that step."""

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
        """Finished share of the outermost phase, 0 to 1."""
        total, step_share = 0.0, 1.0
        for phase in self._open:
            total += step_share * min(phase.done, phase.steps) / phase.steps
            step_share /= phase.steps
        return min(1.0, total)

    @property
    def name(self) -> str:
        """Name of the innermost phase."""
        return self._open[-1].name if self._open else ""


def make_monitor(trt: Any, report: Callable[[float, str], None], cancelled: Callable[[], bool]) -> Any:
    """A progress monitor that calls `report` and stops the build when `cancelled` returns True.

    TensorRT calls the monitor from C++, where no Python exception may pass. The monitor stores an exception
    of `report` in its attribute `error` and stops the build.
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
            return self.error is None and not cancelled()

        def phase_finish(self, phase_name: str) -> None:
            self._safely(lambda: self._phases.finish(phase_name))

        def _safely(self, update: Callable[[], None]) -> None:
            try:
                update()
                report(self._phases.done, self._phases.name)
            except BaseException as error:
                self.error = self.error or error

    return Monitor()
