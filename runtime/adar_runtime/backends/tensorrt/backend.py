"""TensorRT on an NVIDIA GPU: the engines of a bundle, and a loop that stays on the device.

An engine fits one TensorRT version, some GPUs, one ONNX file and some shapes. An error names what does not
fit. Engines are rebuilt only on request.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Lock
from typing import Any
from weakref import finalize

from adar_runtime.backends import TENSORRT, Settings, tensor_limits
from adar_runtime.backends.prepared_graph import Arrays, PreparedGraph
from adar_runtime.backends.tensorrt.context import Shape
from adar_runtime.backends.tensorrt.cuda import Cuda, bindings_problem, device_problem
from adar_runtime.backends.tensorrt.engines.build import build_engines
from adar_runtime.backends.tensorrt.engines.clock import CLOCK, clock_model
from adar_runtime.backends.tensorrt.engines.model_shapes import ENCODER, model_shapes
from adar_runtime.backends.tensorrt.engines.options import BuildOptions
from adar_runtime.backends.tensorrt.engines.packages import (
    MODULES,
    TensorRtPackage,
    installed_packages,
    load_package,
)
from adar_runtime.backends.tensorrt.engines.profiles import Profile
from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar, outdated, read_engine, sha256, sidecars
from adar_runtime.backends.tensorrt.engines.trusted_engines import built_here
from adar_runtime.backends.tensorrt.recurrence import TensorRtRecurrence
from adar_runtime.backends.tensorrt.session import Session
from adar_runtime.bundle.manifest import Manifest, Port
from adar_runtime.bundle.onnx_facts import encodes_by_row
from adar_runtime.bundle.signature import STATE, Ports
from adar_runtime.errors import BackendError, EngineError, MissingExtraError, ProfileError
from adar_runtime.graph.neighbour_tables import FIXED, LONGEST
from adar_runtime.interrupts import deferred_signals


@dataclass(frozen=True)
class _Engines:
    """One engine of each model, for one kind of GPU."""

    package: TensorRtPackage
    sidecars: Mapping[str, Sidecar]
    runtime: Any  # has to live as long as the loaded engines
    loaded: Mapping[str, Any]
    idle: list[Session]  # of finished runs: the next run need not allocate and capture

    def session(self, hidden: int) -> Session:
        """An unused session. `pop` is atomic, so threads may ask at the same time."""
        try:
            return self.idle.pop()
        except IndexError:
            return Session(self.package, self.loaded, hidden)

    def give_back(self, session: Session) -> None:
        """Return a session for the next run. The caller keeps these engines alive until then."""
        self.idle.append(session)

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


class TensorRtBackend:
    """A bundle's engines on the first device."""

    name = TENSORRT

    @staticmethod
    def problem() -> str | None:
        """What is missing. This loads nothing but the driver."""
        found = device_problem()
        if found is not None:
            return f"{found}; use onnxruntime-cpu"
        if not any(find_spec(module) for module in MODULES.values()):
            return "no TensorRT is installed: pip install 'adar-deploy[tensorrt]' or 'adar-deploy[rtx]'"
        return bindings_problem()

    def __init__(self, onnx_models: Mapping[str, bytes], manifest: Manifest, settings: Settings) -> None:
        if settings.bundle is None:
            raise BackendError(
                "tensorrt runs the engines in a bundle's folder: load the bundle from a folder"
            )
        self._onnx_models, self._manifest, self._bundle = onnx_models, manifest, settings.bundle
        self._rebuild, self._trusted = settings.rebuild, settings.trusted
        self._by_row = encodes_by_row(onnx_models[ENCODER])
        self._building = Lock()
        self._engines = self._find()  # replaced as a whole: a run keeps the engines that it started with

    @property
    def ports(self) -> dict[str, Ports]:
        return {name: _ports(self._engines, name, self._manifest) for name in self._manifest.onnx_models}

    def start(self, prepared: PreparedGraph) -> TensorRtRecurrence:
        engines = self._engines
        try:
            return self._start(prepared, engines)
        except ProfileError as error:
            if not self._rebuild:
                raise ProfileError(
                    f"the graph does not fit the TensorRT engines, {error}: adar-deploy build {self._bundle} "
                    "--for GRAPH, or --rebuild, or --backend auto"
                ) from error
        with self._building:
            if self._engines is not engines:  # another thread has built engines in the meantime
                with suppress(ProfileError):
                    return self._start(prepared, self._engines)
            self._build((*(self._profiles() or ()), Profile.around(prepared.graph)))
            self._engines = self._load()
            try:
                return self._start(prepared, self._engines)
            except ProfileError as error:
                raise ProfileError(
                    f"the graph does not fit the TensorRT engines that were built for it, {error}: "
                    "use --backend auto, and please report it"
                ) from error

    def _start(self, prepared: PreparedGraph, engines: _Engines) -> TensorRtRecurrence:
        d, p = self._manifest.hidden, self._manifest.proxies
        n, c, structure = prepared.graph.nodes, prepared.targets, _structure(prepared)
        states = dict(zip(STATE, ((n, d), (c, d), (p, d), (p, d)), strict=True))
        shapes = _input_shapes(prepared, states, structure)
        tensor_limits.check(prepared, self._manifest, shapes, pairs=prepared.outputs)
        chosen = {name: engines.profile(name, shapes) for name in self._manifest.onnx_models}

        session = engines.session(d)
        session.fit(chosen["cell"], states, structure)
        session.head.fit(chosen["head"], shapes, prepared.pairs, (prepared.outputs, c))
        session.side = 0
        session.encoder.run(chosen["encoder"], prepared, session.sides[0])
        recurrence = TensorRtRecurrence(self.name, session)
        finalize(recurrence, engines.give_back, session).atexit = False
        return recurrence

    def _find(self) -> _Engines:
        try:
            return self._load()
        except BackendError:
            if not self._rebuild:
                raise
        self._build(self._profiles())
        return self._load()

    def _profiles(self) -> tuple[Profile, ...] | None:
        """The profiles of the existing engines; None, the default profiles, where there are no engines."""
        for sidecar in sidecars(self._bundle):
            if sidecar.onnx_model == "cell":
                return sidecar.profiles
        return None

    def _build(self, profiles: tuple[Profile, ...] | None) -> None:
        build_engines(self._bundle, self._manifest, self._onnx_models, BuildOptions(profiles=profiles))

    def _load(self) -> _Engines:
        """Load the engines that fit."""
        found = list(sidecars(self._bundle))
        if not found and outdated(self._bundle):
            raise BackendError(
                f"the TensorRT engines of {self._bundle} were built by an older version of adar-deploy, for "
                f"other neighbour tables: build again with adar-deploy build {self._bundle}, or --rebuild"
            )
        if not found:
            raise BackendError(f"{self._bundle} has no TensorRT engines: adar-deploy build {self._bundle}")
        hashes = {name: file.sha256 for name, file in self._manifest.onnx_models.items()}
        hashes[CLOCK] = sha256(clock_model(self._manifest.hidden))
        capability = Cuda().compute_capability()
        problems = []
        for target in dict.fromkeys(one.target for one in found):
            of_target = {one.onnx_model: one for one in found if one.target == target}
            package = _package(of_target)
            problem = self._incompatibility(of_target, hashes, package, capability)
            if problem is None:
                runtime = package.trt.Runtime(package.log)
                loaded = {name: self._deserialize(package, runtime, of_target[name]) for name in hashes}
                return _Engines(package, of_target, runtime, loaded, [])
            problems.append(problem)
        raise BackendError(
            f"no TensorRT engine of {self._bundle} fits, {problems[0]}: "
            f"adar-deploy build {self._bundle}, or --rebuild, or --backend auto"
        )

    def _incompatibility(
        self,
        found: Mapping[str, Sidecar],
        hashes: Mapping[str, str],
        package: TensorRtPackage,
        capability: int,
    ) -> str | None:
        """The first reason why these engines cannot be used here."""
        for name, digest in hashes.items():
            if name not in found:
                return f"there is no engine of the {name}"
            why = found[name].incompatibility(digest, package.name, package.version, capability)
            if why is None and not self._describes(found[name]):
                why = "its profiles are for other inputs"
            if why is None and not self._trusted and not built_here([found[name].engine_sha256]):
                why = "it was not built here and is a program: type --backend tensorrt to trust it"
            if why is not None:
                return f"{found[name].file}, since {why}"
        return None

    def _describes(self, sidecar: Sidecar) -> bool:
        """Whether its shapes are those that this version gives its profiles, for the inputs of its model."""
        shapes = model_shapes(self._manifest, sidecar.onnx_model, sidecar.profiles, by_row=self._by_row)
        return shapes == sidecar.shapes

    def _deserialize(self, package: TensorRtPackage, runtime: Any, sidecar: Sidecar) -> Any:
        package.log.messages.clear()
        content = read_engine(self._bundle, sidecar)
        with deferred_signals():  # TensorRT calls the Python logger inside
            engine = runtime.deserialize_cuda_engine(content)
        if engine is None:
            raise BackendError(
                f"TensorRT cannot load {sidecar.file}: {package.log.messages.reason}; "
                f"adar-deploy build {self._bundle}"
            )
        return engine


def _structure(prepared: PreparedGraph) -> Arrays:
    """The neighbour tables, with the widths of every engine."""
    longest = int(prepared.neighbours.counts.max(initial=0))
    if longest > LONGEST:
        raise ProfileError(f"one of its nodes has {longest:,} neighbours, and engines take up to {LONGEST:,}")
    return prepared.structure_with(FIXED)


def _input_shapes(
    prepared: PreparedGraph, states: Mapping[str, Shape], structure: Arrays
) -> dict[str, Shape]:
    """The shapes of the inputs of all engines, by name."""
    shapes: dict[str, Shape] = dict(states)
    shapes |= {name: array.shape for name, array in structure.items()}
    shapes |= {f"previous_{name}_velocity": shape for name, shape in states.items()}
    rows = max(stop - start for start, stop in prepared.feature_blocks())
    shapes["features"] = (rows, prepared.graph.width)
    if prepared.target_features is not None:
        shapes["target_features"] = prepared.target_features.shape
    if prepared.pairs is not None:
        shapes["pairs"] = prepared.pairs.shape
    return shapes


def _package(found: Mapping[str, Sidecar]) -> TensorRtPackage:
    """The TensorRT package that built the engines, where it is installed; otherwise the installed one."""
    wanted = next(iter(found.values())).package
    try:
        return load_package(wanted if wanted in installed_packages() else None)
    except (EngineError, MissingExtraError) as error:
        raise BackendError(f"tensorrt does not work here: {error}") from error


def _ports(engines: _Engines, name: str, manifest: Manifest) -> Ports:
    """The inputs and outputs of an engine; a dynamic dimension has its name from the manifest."""
    trt, engine, file = engines.package.trt, engines.loaded[name], manifest.onnx_models[name]
    types = {trt.DataType.FLOAT: "float32", trt.DataType.INT32: "int32", trt.DataType.INT64: "int64"}
    declared = {port.name: port.shape for port in (*file.inputs, *file.outputs)}
    found: dict[bool, list[Port]] = {True: [], False: []}
    for index in range(engine.num_io_tensors):
        tensor = engine.get_tensor_name(index)
        shape, named = tuple(engine.get_tensor_shape(tensor)), declared.get(tensor, ())
        if len(named) == len(shape):
            shape = tuple(there if side == -1 else side for side, there in zip(shape, named, strict=True))
        kind = engine.get_tensor_dtype(tensor)
        is_input = engine.get_tensor_mode(tensor) == trt.TensorIOMode.INPUT
        found[is_input].append(Port(tensor, types.get(kind, str(kind)), shape))
    return Ports(tuple(found[True]), tuple(found[False]))
