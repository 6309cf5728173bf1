"""Build TensorRT engines from the ONNX models of a bundle.

TensorRT raises no exceptions: failed calls return False or None, and the log says why. TensorRT also accepts
profiles for inputs that do not exist. This module turns both into errors.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from adar_runtime.backends.tensorrt.cuda import Cuda, device_problem
from adar_runtime.backends.tensorrt.engines import FOLDER
from adar_runtime.backends.tensorrt.engines.callbacks import Report, make_monitor
from adar_runtime.backends.tensorrt.engines.clock import CLOCK, clock_model
from adar_runtime.backends.tensorrt.engines.packages import RTX, TENSORRT, TensorRtPackage, load_package
from adar_runtime.backends.tensorrt.engines.profiles import PROFILES, Profile, Shapes
from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar, sha256, write_engines
from adar_runtime.backends.tensorrt.engines.trusted_engines import remember
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import BundleError, EngineError, UsageError, short
from adar_runtime.files import check_writable, read_bundle_file, write_file, writing
from adar_runtime.interrupts import deferred_signals
from adar_runtime.temporary_files import locked

MAX_TIMING_BYTES = 2**28  # largest timing cache that is read
LEVELS = range(6)  # optimization levels of the builder
CAPABILITIES = (80, 86, 89, 120)  # targets of rtx; 75 has no float32 matrix products


@dataclass(frozen=True)
class BuildOptions:
    """How to build engines."""

    package: str | None = None  # "tensorrt" or "rtx"; None: the best one installed
    capabilities: tuple[int, ...] = ()  # empty: 8.0 and later (rtx), or this machine's GPU (tensorrt)
    profiles: tuple[Profile, ...] = tuple(PROFILES.values())
    level: int = 3  # TensorRT's default
    workspace: int | None = None  # limit in bytes
    timing_cache: Path | None = None  # None: a file in the bundle's folder of engines

    def check(self) -> None:
        """Raise UsageError for invalid options, before any work is done."""
        if not self.profiles:
            raise UsageError("an engine needs at least one profile")
        if self.level not in LEVELS:
            raise UsageError(f"the optimization level is {self.level}: choose 0 (fastest) to {LEVELS[-1]}")
        if self.workspace is not None and self.workspace < 1:
            raise UsageError("the workspace has to be above 0")


class _Target(NamedTuple):
    package: TensorRtPackage
    capabilities: tuple[int, ...]


def _ignore(_onnx_model: str, _done: float, _phase: str) -> None:
    """Report progress to nobody."""


def build_engines(
    bundle: Path,
    manifest: Manifest,
    onnx_models: Mapping[str, bytes],
    options: BuildOptions | None = None,
    on_progress: Report = _ignore,
) -> list[Sidecar]:
    """Build and write all engines of a bundle. If one fails, no file changes."""
    options = options or BuildOptions()
    options.check()
    target = _target(options)
    if (bundle / FOLDER).is_symlink():
        raise UsageError(f"{bundle / FOLDER} is a link that leads out of the bundle: remove it")
    sources = dict(onnx_models) | {CLOCK: clock_model(manifest.hidden)}
    with _exclusive(bundle):
        check_writable(bundle / FOLDER / "probe")
        timing = _TimingCache.of(target, options, bundle)
    built = {}
    for name, content in sources.items():
        ports = manifest.onnx_models[name].inputs if name in manifest.onnx_models else ()
        shapes = [profile.shapes(ports) for profile in options.profiles]
        if not shapes[0]:
            shapes = []  # without a dynamic dimension there is no profile
        engine = build_engine(name, content, target, shapes, options, timing, on_progress)
        sidecar = Sidecar(
            onnx_model=name,
            onnx_sha256=sha256(content),
            engine_sha256=sha256(engine),
            bytes=len(engine),
            package=target.package.name,
            version=target.package.version,
            compute_capabilities=target.capabilities,
            precision=manifest.precision,
            profiles=options.profiles if shapes else (),
            shapes=tuple(shapes),
            optimization_level=options.level,
            workspace=options.workspace,
            built_by=version("adar-deploy"),
        )
        built[name] = sidecar, engine
    with _exclusive(bundle):
        write_engines(bundle, built)
        timing.save()
    remember(sidecar.engine_sha256 for sidecar, _ in built.values())
    return [sidecar for sidecar, _ in built.values()]


@contextmanager
def _exclusive(bundle: Path) -> Iterator[None]:
    """Keep other processes that build for the same bundle from writing at the same time."""
    with writing(bundle), locked(bundle):
        yield


def _target(options: BuildOptions) -> _Target:
    """The package to build with, and the GPUs to build for."""
    package = load_package(options.package)
    if package.name == RTX:
        unknown = sorted(set(options.capabilities) - set(CAPABILITIES))
        if unknown:
            known = ", ".join(map(str, CAPABILITIES))
            raise UsageError(
                f"--sm contains {unknown[0]}, but TensorRT-RTX builds for {known}: "
                "leave --sm out to build for 80 and later"
            )
        return _Target(package, options.capabilities)
    problem = device_problem()
    if problem is not None:
        raise EngineError(
            f"tensorrt builds only for the GPU of this machine, but {problem}: use --flavour rtx"
        )
    here = Cuda().compute_capability()
    if set(options.capabilities) - {here}:
        raise UsageError(
            f"tensorrt builds only for the GPU of this machine ({here}): leave --sm out, or use --flavour rtx"
        )
    return _Target(package, (here,))


def build_engine(
    name: str,
    content: bytes,
    target: _Target,
    shapes: Sequence[Mapping[str, Shapes]],
    options: BuildOptions,
    timing: "_TimingCache | None" = None,
    on_progress: Report = _ignore,
) -> bytes:
    """Build the engine of one ONNX model, for inputs of these shapes."""
    package = target.package
    package.log.messages.clear()
    builder = package.trt.Builder(package.log)
    network = package.create_network(builder)  # this reference keeps the network alive; the parser does not
    _parse(package, network, name, content)
    config = builder.create_builder_config()
    for one in shapes:
        _check_names(network, name, one)
        if config.add_optimization_profile(_profile(builder, one)) < 0:
            raise EngineError(f"TensorRT refused a profile of {name}.onnx: {package.log.messages.reason}")
    _configure(config, target, options)
    if timing is not None:
        timing.attach(config)
    with deferred_signals() as signals:
        monitor = make_monitor(
            package.trt, lambda done, phase: on_progress(name, done, phase), lambda: bool(signals.arrived)
        )
        config.progress_monitor = monitor
        plan = builder.build_serialized_network(network, config)
    if monitor.error is not None:
        raise monitor.error
    if plan is None:
        raise EngineError(_build_failure(package, name))
    if timing is not None:
        timing.update(config)
    on_progress(name, 1.0, "")
    return bytes(plan)


def _parse(package: TensorRtPackage, network: Any, name: str, content: bytes) -> None:
    parser = package.trt.OnnxParser(network, package.log)
    with deferred_signals():  # the parser calls the Python logger
        parsed = parser.parse(content)
    if parsed:
        return
    messages = package.log.messages
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    error = errors[-1] if errors else None
    # The node in the error itself is often empty; the log has it.
    node = (error.node_name() if error else "") or messages.node
    operator = (error.node_operator() if error else "") or messages.operator
    why = (error.desc() if error else "") or messages.reason
    if not node:
        raise EngineError(f"TensorRT cannot read {name}.onnx: {short(why)}; export the run again")
    raise EngineError(
        f"TensorRT does not support the node {short(node)!r} ({operator}) of {name}.onnx: {short(why)}; "
        f"{_advice(operator)}"
    )


def _advice(operator: str) -> str:
    if operator.startswith("Scatter"):
        return "TensorRT has no scatter-add: export without --plain, to sum over neighbour tables"
    return "export the run again with this version, or run it with --backend onnxruntime-cuda"


def _check_names(network: Any, name: str, shapes: Mapping[str, Shapes]) -> None:
    """Check that the profile has exactly the inputs with a dynamic dimension. TensorRT does not check."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    dynamic = {one.name for one in inputs if -1 in tuple(one.shape)}
    unknown, missing = sorted(set(shapes) - dynamic), sorted(dynamic - set(shapes))
    if unknown or missing:
        what = f"has a shape for {unknown[0]!r}" if unknown else f"has no shape for {missing[0]!r}"
        why = "which is not an input with a dynamic dimension" if unknown else "which needs one"
        raise EngineError(f"the profile of {name}.onnx {what}, {why}: export the run again with this version")


def _profile(builder: Any, shapes: Mapping[str, Shapes]) -> Any:
    profile = builder.create_optimization_profile()
    for name, (least, likely, most) in shapes.items():
        profile.set_shape(name, least, likely, most)
    return profile


def _configure(config: Any, target: _Target, options: BuildOptions) -> None:
    trt = target.package.trt
    config.builder_optimization_level = options.level
    config.clear_flag(trt.BuilderFlag.TF32)  # fp32 means fp32: lower precisions are chosen at export
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
    if target.package.name == RTX and target.capabilities:
        config.num_compute_capabilities = len(target.capabilities)
        for index, number in enumerate(target.capabilities):
            capability = getattr(trt.ComputeCapability, f"SM{number}", None)
            if capability is None or not config.set_compute_capability(capability, index):
                raise EngineError(
                    f"this version of TensorRT-RTX does not build for SM {number}: remove it from --sm"
                )


def _build_failure(package: TensorRtPackage, name: str) -> str:
    why = package.log.messages.reason
    advice = "try a smaller --profile or another --optimization-level"
    if "OutOfMemory" in why or "workspace" in why:
        advice = "increase --workspace, or choose a smaller --profile: its largest shapes set the need"
    return f"TensorRT could not build an engine of {name}.onnx: {short(why, 200)}; {advice}"


class _TimingCache:
    """Measured times of TensorRT's kernels on this GPU, so that the next build does not measure again.

    TensorRT-RTX measures nothing during a build and has no timing cache.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._content = b""
        if path is not None:
            with suppress(OSError, BundleError):  # no usable file: TensorRT measures again
                self._content = read_bundle_file(path, MAX_TIMING_BYTES)

    @classmethod
    def of(cls, target: _Target, options: BuildOptions, bundle: Path) -> "_TimingCache":
        if target.package.name != TENSORRT:
            return cls(None)
        path = options.timing_cache or bundle / FOLDER / "timing.cache"
        check_writable(path)
        return cls(path)

    def attach(self, config: Any) -> None:
        """Let a build use the cache. TensorRT rejects a cache of another version or GPU: use an empty one."""
        if self._path is None:
            return
        if not config.set_timing_cache(config.create_timing_cache(self._content), False):
            config.set_timing_cache(config.create_timing_cache(b""), False)

    def update(self, config: Any) -> None:
        """Read the cache back after a build."""
        if self._path is not None:
            self._content = bytes(config.get_timing_cache().serialize())

    def save(self) -> None:
        if self._path is not None:
            write_file(self._path, self._content)
