"""TensorRT on an NVIDIA GPU: the engines of a bundle, and a loop that stays on the device.

An engine fits one TensorRT version, some GPUs, one ONNX file and some shapes. An error names what does not
fit. Engines are rebuilt only on request.
"""

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from threading import Lock
from weakref import finalize

from adar_runtime.backends import TENSORRT, Settings, tensor_limits
from adar_runtime.backends.prepared_graph import Arrays, PreparedGraph
from adar_runtime.backends.tensorrt.context import Shape
from adar_runtime.backends.tensorrt.cuda import Cuda
from adar_runtime.backends.tensorrt.device import bindings_problem, device_problem
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
from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar, outdated, sha256, sidecars
from adar_runtime.backends.tensorrt.engines.trusted_engines import built_here
from adar_runtime.backends.tensorrt.loaded_engines import LoadedEngines, LoadOptions, UnfitEngineError
from adar_runtime.backends.tensorrt.recurrence import TensorRtRecurrence
from adar_runtime.backends.tensorrt.session import Session
from adar_runtime.bundle.manifest import Manifest, Port
from adar_runtime.bundle.onnx_facts import encodes_by_row
from adar_runtime.bundle.signature import STATE, Ports
from adar_runtime.errors import BackendError, EngineError, MissingExtraError, ProfileError
from adar_runtime.graph.neighbour_tables import FIXED, LONGEST


class TensorRtBackend:
    """A bundle's engines on one device."""

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
        self._rebuild, self._trusted, self._device = settings.rebuild, settings.trusted, settings.device
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

    def _start(self, prepared: PreparedGraph, engines: LoadedEngines) -> TensorRtRecurrence:
        d, p = self._manifest.hidden, self._manifest.proxies
        n, c, structure = prepared.graph.nodes, prepared.targets, _structure(prepared)
        states = dict(zip(STATE, ((n, d), (c, d), (p, d), (p, d)), strict=True))
        shapes = _input_shapes(prepared, states, structure)
        tensor_limits.check(prepared, self._manifest, shapes, pairs=prepared.outputs)
        chosen = {name: engines.profile(name, shapes) for name in self._manifest.onnx_models}

        def prepare(session: Session) -> None:
            if session.fit(chosen["cell"], states, structure):
                engines.cache.save()  # kernels that the first run compiled
            session.head.fit(chosen["head"], shapes, prepared.pairs, (prepared.outputs, c))
            session.side = 0
            session.encoder.run(chosen["encoder"], prepared, session.sides[0])

        session = engines.sessions.run(shapes, prepare)
        recurrence = TensorRtRecurrence(self.name, session)
        finalize(recurrence, engines.sessions.give_back, shapes, session).atexit = False
        return recurrence

    def _find(self) -> LoadedEngines:
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
        options = BuildOptions(profiles=profiles, device=self._device)
        build_engines(self._bundle, self._manifest, self._onnx_models, options)

    def _load(self) -> LoadedEngines:
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
        cuda = Cuda(self._device)
        problems = []
        for target in dict.fromkeys(one.target for one in found):
            of_target = {one.onnx_model: one for one in found if one.target == target}
            package = _package(of_target)
            try:
                self._check(of_target, hashes, package)
                return LoadedEngines.load(
                    package, {name: of_target[name] for name in hashes}, self._bundle, cuda, self._options()
                )
            except UnfitEngineError as error:
                problems.append(str(error))
        raise BackendError(
            f"no TensorRT engine of {self._bundle} fits, {problems[0]}: "
            f"adar-deploy build {self._bundle}, or --rebuild, or --backend auto"
        )

    def _options(self) -> LoadOptions:
        return LoadOptions(self._manifest.hidden, trusted=self._trusted)

    def _check(
        self, found: Mapping[str, Sidecar], hashes: Mapping[str, str], package: TensorRtPackage
    ) -> None:
        """Raise an UnfitEngineError with the first reason why these engines cannot be used here."""
        for name, digest in hashes.items():
            if name not in found:
                raise UnfitEngineError(f"there is no engine of the {name}")
            why = found[name].incompatibility(digest, package.name, package.version)
            if why is None and not self._describes(found[name]):
                why = "its profiles are for other inputs"
            if why is None and not self._trusted and not built_here([found[name].engine_sha256]):
                why = "it was not built here and is a program: type --backend tensorrt to trust it"
            if why is not None:
                raise UnfitEngineError(f"{found[name].file}, since {why}")

    def _describes(self, sidecar: Sidecar) -> bool:
        """Whether its shapes are those that this version gives its profiles, for the inputs of its model."""
        shapes = model_shapes(self._manifest, sidecar.onnx_model, sidecar.profiles, by_row=self._by_row)
        return shapes == sidecar.shapes


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


def _ports(engines: LoadedEngines, name: str, manifest: Manifest) -> Ports:
    """The inputs and outputs of an engine; a dynamic dimension has its name from the manifest."""
    trt, engine, file = engines.package.trt, engines.engines[name], manifest.onnx_models[name]
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
