"""The two Python packages of TensorRT, `tensorrt` and `tensorrt-rtx`: one API, chosen and loaded here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from adar_runtime.backends.tensorrt.device import device_problem
from adar_runtime.backends.tensorrt.engines.callbacks import make_logger
from adar_runtime.errors import EngineError, MissingExtraError, UsageError

RTX, TENSORRT = "rtx", "tensorrt"
MODULES = {TENSORRT: "tensorrt", RTX: "tensorrt_rtx"}


@dataclass(frozen=True)
class TensorRtPackage:
    """One of the two packages, loaded."""

    name: str  # TENSORRT or RTX
    trt: Any  # the Python module
    version: str
    log: Any  # from `make_logger`

    def create_network(self, builder: Any) -> Any:
        """Create a strongly typed network: tensors have the types of the ONNX model.

        From version 11 on every network is strongly typed, and the flag no longer exists.
        """
        flag = getattr(self.trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return builder.create_network(0 if flag is None else 1 << int(flag))

    def create_context(self, engine: Any, configure: Callable[[Any], None], *, eager: bool) -> Any:
        """Create an execution context whose scratch memory the caller allocates for the actual shapes.

        By default TensorRT allocates for the largest shapes of the profile. For neighbour tables that is
        far more than any graph needs. For `rtx`, `configure` receives the runtime configuration, and `eager`
        says whether the first run waits until kernels are compiled for its shapes.
        """
        user_managed = self.trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if self.name == TENSORRT:
            return engine.create_execution_context(user_managed)
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(user_managed)
        # EAGER compiles the kernels for the actual shapes in the first run, so that the captured CUDA graph
        # contains them. LAZY compiles in the background. The session captures CUDA graphs itself, so
        # TensorRT-RTX must not.
        strategies = self.trt.DynamicShapesKernelSpecializationStrategy
        config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER if eager else strategies.LAZY
        config.cuda_graph_strategy = self.trt.CudaGraphStrategy.DISABLED
        configure(config)
        return engine.create_execution_context(config)


def installed_packages() -> list[str]:
    """Names of the packages that can be imported."""
    return [name for name, module in MODULES.items() if find_spec(module) is not None]


def load_package(name: str | None = None) -> TensorRtPackage:
    """Load the package of this name or, without a name, the best one to build with on this machine.

    `tensorrt` builds for the GPU of this machine; `rtx` needs no GPU and builds for any.
    """
    if name is not None and name not in MODULES:
        raise UsageError(f"there is no TensorRT package {name!r}: choose {' or '.join(MODULES)}")
    found = installed_packages()
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
def _load(name: str) -> TensorRtPackage:
    """Load once per process, because TensorRT uses only the first logger that it receives."""
    try:
        trt = import_module(MODULES[name])
    except (ImportError, OSError) as error:  # the package, or one of its shared libraries
        raise EngineError(f"{MODULES[name]} is installed but cannot be loaded: {error}") from error
    return TensorRtPackage(name, trt, str(trt.__version__), make_logger(trt))
