"""The two kinds of TensorRT, `tensorrt` and `tensorrt-rtx`: one API under two names, picked only here."""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from adar_runtime.backends.tensorrt.cuda import device_problem
from adar_runtime.errors import EngineError, MissingExtraError, UsageError

RTX, TENSORRT = "rtx", "tensorrt"
MODULES = {TENSORRT: "tensorrt", RTX: "tensorrt_rtx"}


@dataclass(frozen=True)
class Flavour:
    """One of them, loaded."""

    name: str
    trt: Any  # the module
    version: str
    log: Any

    def create_network(self, builder: Any) -> Any:
        """A network in which types are those that the ONNX file says; from version 11 there is no other."""
        flag = getattr(self.trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return builder.create_network(0 if flag is None else 1 << int(flag))

    def create_context(self, engine: Any) -> Any:
        """An execution context whose scratch memory is ours to give, as large as the real shapes need it.

        TensorRT's own choice is as large as the largest shapes of a profile would need it, which for
        tables of neighbours is far more than any graph does.
        """
        user_managed = self.trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if self.name == TENSORRT:
            return engine.create_execution_context(user_managed)
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(user_managed)
        # Kernels for the real shapes are there after the first run, hence in what is captured; and it is
        # we who capture.
        config.dynamic_shapes_kernel_specialization_strategy = (
            self.trt.DynamicShapesKernelSpecializationStrategy.EAGER
        )
        config.cuda_graph_strategy = self.trt.CudaGraphStrategy.DISABLED
        return engine.create_execution_context(config)


@dataclass
class Heard:
    """What TensorRT said while it worked: its calls return False or None, and only the log says why."""

    node: str = ""  # that is being parsed
    operator: str = ""
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=10))

    def clear(self) -> None:
        self.node = self.operator = ""
        self.errors.clear()

    def take(self, message: str, *, is_error: bool) -> None:
        """Remember what will be asked for."""
        parsing = _PARSING.match(message)
        if parsing:
            self.node, self.operator = parsing.groups()
        elif is_error:
            self.errors.append(message)

    @property
    def reason(self) -> str:
        """The last error, without the place in TensorRT's own source."""
        last = self.errors[-1] if self.errors else "TensorRT did not say why"
        return " ".join(_SOURCE.sub("", last).split())


_PARSING = re.compile(r"Parsing node: (.*) \[(\w+)\]")
_SOURCE = re.compile(r"^(\[[^\]]*::[^\]]*\]|\w+\.cpp:\d+:|ERROR:|[\w.]+:\d+ In function \w+:|\s)*")


def installed() -> list[str]:
    """The flavours that can be imported here."""
    return [name for name, module in MODULES.items() if find_spec(module) is not None]


def flavour_of(name: str | None = None) -> Flavour:
    """The flavour of that name or, without one, the one to build with here.

    `tensorrt` builds for the GPU that it finds; `rtx` builds without one, for any that it is told of.
    """
    if name is not None and name not in MODULES:
        raise UsageError(f"there is no flavour {name!r} of TensorRT: choose {' or '.join(MODULES)}")
    found = installed()
    if name is None:
        name = _best(found)
    if name is None or name not in found:
        raise MissingExtraError("building or running TensorRT engines", name or RTX)
    return _load(name)


def _best(found: Sequence[str]) -> str | None:
    if len(found) == len(MODULES):
        return TENSORRT if device_problem() is None else RTX
    return found[0] if found else None


@lru_cache
def _load(name: str) -> Flavour:
    """Once a process: TensorRT takes one logger, the first."""
    try:
        trt = import_module(MODULES[name])
    except (ImportError, OSError) as error:  # the package, or a library of its own
        raise EngineError(f"{MODULES[name]} is installed and cannot be loaded: {error}") from error
    return Flavour(name, trt, str(trt.__version__), _logger(trt))


def _logger(trt: Any) -> Any:
    class Log(trt.ILogger):  # type: ignore[misc]
        """Prints nothing: what went wrong is told by whoever finds out."""

        def __init__(self) -> None:
            super().__init__()
            self.heard = Heard()

        def log(self, severity: Any, message: str) -> None:
            self.heard.take(message, is_error=severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR))

    return Log()
