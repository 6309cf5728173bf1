"""Engines of a bundle in memory: one of each model, for one kind of GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adar_runtime.backends.tensorrt.context import Context, Shape
from adar_runtime.backends.tensorrt.cuda import Cuda
from adar_runtime.backends.tensorrt.engines.packages import TENSORRT, TensorRtPackage
from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar, read_engine
from adar_runtime.backends.tensorrt.runtime_cache import RuntimeCache
from adar_runtime.backends.tensorrt.session import Session
from adar_runtime.backends.tensorrt.sessions import SessionPool
from adar_runtime.errors import BackendError, ProfileError
from adar_runtime.interrupts import deferred_signals


class UnfitEngineError(BackendError):
    """An engine cannot be used on this machine; others of the bundle may."""


@dataclass(frozen=True)
class LoadOptions:
    """What a set of engines has to know beside its files."""

    hidden: int
    trusted: bool  # also use a runtime cache that was not made on this machine


@dataclass(frozen=True)
class LoadedEngines:
    """One engine of each model, and the sessions that run them."""

    sidecars: Mapping[str, Sidecar]
    package: TensorRtPackage
    runtime: Any  # has to live as long as the engines
    engines: Mapping[str, Any]
    cache: RuntimeCache
    sessions: SessionPool

    @classmethod
    def load(
        cls,
        package: TensorRtPackage,
        sidecars: Mapping[str, Sidecar],
        bundle: Path,
        cuda: Cuda,
        options: LoadOptions,
    ) -> "LoadedEngines":
        """Load the engines that these sidecars describe.

        Raises:
            UnfitEngineError: TensorRT says that an engine does not fit this GPU or driver.
            BackendError: A file was changed, or TensorRT cannot load it.
        """
        cuda.activate()
        runtime = package.trt.Runtime(package.log)
        if any(one.version_compatible for one in sidecars.values()):
            runtime.engine_host_code_allowed = True  # such an engine contains a small runtime
        contents = {name: read_engine(bundle, one) for name, one in sidecars.items()}
        for name, content in contents.items():
            _check_validity(package, runtime, sidecars[name], content, cuda)
        engines = {
            name: _deserialize(package, runtime, sidecars[name], content, bundle)
            for name, content in contents.items()
        }
        cache = RuntimeCache(bundle, next(iter(sidecars.values())).target, trusted=options.trusted)

        def session(eager: bool) -> Session:
            def context(of: Cuda, name: str) -> Context:
                return Context(package, of, name, engines[name], cache, eager=eager)

            return Session(
                Cuda(cuda.device), context, options.hidden, eager=eager or package.name == TENSORRT
            )

        return cls(sidecars, package, runtime, engines, cache, SessionPool(session))

    def profile(self, name: str, shapes: Mapping[str, Shape]) -> int:
        """The first profile that accepts these shapes."""
        sidecar = self.sidecars[name]
        for index, profile in enumerate(sidecar.shapes):
            if all(free.take(shapes[one]) for one, free in profile.items()):
                return index
        if not sidecar.shapes:
            return 0
        outside = next(one for one, free in sidecar.shapes[-1].items() if not free.take(shapes[one]))
        raise ProfileError(
            f"its {outside} {list(shapes[outside])} is outside every profile of {sidecar.file}"
        )


def _check_validity(
    package: TensorRtPackage, runtime: Any, sidecar: Sidecar, content: bytes, cuda: Cuda
) -> None:
    """Ask TensorRT whether the engine fits this GPU; without such a query, compare compute capabilities."""
    query = getattr(runtime, "get_engine_validity", None)
    if query is None:
        why = sidecar.other_gpu(cuda.compute_capability())
        if why is not None:
            raise UnfitEngineError(f"{sidecar.file}, since {why}")
        return
    package.log.messages.clear()
    with deferred_signals():  # TensorRT calls the Python logger inside
        validity, found = query(content)
    if validity == package.trt.EngineValidity.INVALID:
        names = package.trt.EngineInvalidityDiagnostics.__members__.items()
        why = ", ".join(name.lower().replace("_", " ") for name, bit in names if int(found) & int(bit))
        raise UnfitEngineError(
            f"{sidecar.file}, since TensorRT refuses it on this GPU ({why or package.log.messages.reason}); "
            f"it was built for {sidecar.gpus}, and this GPU has {cuda.compute_capability() / 10}"
        )


def _deserialize(
    package: TensorRtPackage, runtime: Any, sidecar: Sidecar, content: bytes, bundle: Path
) -> Any:
    package.log.messages.clear()
    with deferred_signals():  # TensorRT calls the Python logger inside
        engine = runtime.deserialize_cuda_engine(content)
    if engine is None:
        raise BackendError(
            f"TensorRT cannot load {sidecar.file}: {package.log.messages.reason}; adar-deploy build {bundle}"
        )
    return engine
