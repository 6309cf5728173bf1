"""A bundle's ONNX files -> TensorRT engines.

TensorRT never raises: what it cannot parse or build comes back as False or None, and the log says why. It
takes a profile of an input that is not there without a word. Both become errors here.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from adar_runtime.backends.tensorrt.cuda import Cuda, device_problem
from adar_runtime.backends.tensorrt.engines import FOLDER
from adar_runtime.backends.tensorrt.engines.clock import GRAPH as CLOCK
from adar_runtime.backends.tensorrt.engines.clock import clock_graph
from adar_runtime.backends.tensorrt.engines.flavours import RTX, TENSORRT, Flavour, flavour_of
from adar_runtime.backends.tensorrt.engines.profiles import PROFILES, Profile, Shapes
from adar_runtime.backends.tensorrt.engines.progress import Report, make_monitor
from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar, sha256, write_engines
from adar_runtime.backends.tensorrt.engines.trusted_engines import remember
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import BundleError, EngineError, UsageError, short
from adar_runtime.files import check_writable, read_own, write_file, writing
from adar_runtime.interrupts import deferred_signals
from adar_runtime.temporary_files import locked

MAX_TIMING = 2**28  # bytes of a timing cache
LEVELS = range(6)  # of the builder's effort
CAPABILITIES = (80, 86, 89, 120)  # that rtx can be told to build for; 75 has no float32 products


@dataclass(frozen=True)
class Wish:
    """How engines are to be."""

    flavour: str | None = None  # the one that can be had
    capabilities: tuple[int, ...] = ()  # of rtx: none in particular; of tensorrt: the GPU that is there
    profiles: tuple[Profile, ...] = tuple(PROFILES.values())
    level: int = 3  # TensorRT's own default
    workspace: int | None = None  # bytes
    timing_cache: Path | None = None  # in the bundle's folder of engines

    def check(self) -> None:
        """Refuse what cannot be before any work is done."""
        if not self.profiles:
            raise UsageError("an engine needs at least one profile")
        if self.level not in LEVELS:
            raise UsageError(f"the optimization level is {self.level}: choose 0 (soonest) to {LEVELS[-1]}")
        if self.workspace is not None and self.workspace < 1:
            raise UsageError("the workspace has to be above 0")


class _Target(NamedTuple):
    flavour: Flavour
    capabilities: tuple[int, ...]


def _ignore(_graph: str, _done: float, _phase: str) -> None:
    """Nobody is looking."""


def build_engines(
    bundle: Path,
    manifest: Manifest,
    onnx_models: Mapping[str, bytes],
    wish: Wish | None = None,
    on_progress: Report = _ignore,
) -> list[Sidecar]:
    """Build and write the engines of a bundle that has been read: all of them, or none."""
    wish = wish or Wish()
    wish.check()
    target = _target(wish)
    if (bundle / FOLDER).is_symlink():
        raise UsageError(f"{bundle / FOLDER} leads out of the bundle: remove it")
    sources = dict(onnx_models) | {CLOCK: clock_graph(manifest.hidden)}
    with _alone(bundle):
        check_writable(bundle / FOLDER / "probe")
        timing = _TimingCache.of(target, wish, bundle)
    built = {}
    for name, content in sources.items():
        ports = manifest.onnx_models[name].inputs if name in manifest.onnx_models else ()
        shapes = [profile.shapes(ports) for profile in wish.profiles]
        if not shapes[0]:
            shapes = []  # nothing to choose
        engine = build_engine(name, content, target, shapes, wish, timing, on_progress)
        sidecar = Sidecar(
            graph=name,
            onnx_sha256=sha256(content),
            engine_sha256=sha256(engine),
            bytes=len(engine),
            flavour=target.flavour.name,
            version=target.flavour.version,
            compute_capabilities=target.capabilities,
            precision=manifest.precision,
            profiles=wish.profiles if shapes else (),
            shapes=tuple(shapes),
            optimization_level=wish.level,
            workspace=wish.workspace,
            built_by=version("adar-deploy"),
        )
        built[name] = sidecar, engine
    with _alone(bundle):
        write_engines(bundle, built)
        timing.keep()
    remember(sidecar.engine_sha256 for sidecar, _ in built.values())
    return [sidecar for sidecar, _ in built.values()]


@contextmanager
def _alone(bundle: Path) -> Iterator[None]:
    """Others may build for the same bundle: what one writes is not to be mixed with another's, or lost."""
    with writing(bundle), locked(bundle):
        yield


def _target(wish: Wish) -> _Target:
    """What to build with and for."""
    flavour = flavour_of(wish.flavour)
    if flavour.name == RTX:
        unknown = sorted(set(wish.capabilities) - set(CAPABILITIES))
        if unknown:
            known = ", ".join(map(str, CAPABILITIES))
            raise UsageError(
                f"--sm has {unknown[0]}: TensorRT-RTX builds for {known}; leave it out for 80 and later"
            )
        return _Target(flavour, wish.capabilities)
    problem = device_problem()
    if problem is not None:
        raise EngineError(f"tensorrt builds on the GPU that it builds for, and {problem}: use --flavour rtx")
    here = Cuda().compute_capability()
    if set(wish.capabilities) - {here}:
        raise UsageError(
            f"tensorrt builds for the GPU that is there ({here}): leave --sm out, or use --flavour rtx"
        )
    return _Target(flavour, (here,))


def build_engine(
    name: str,
    content: bytes,
    target: _Target,
    shapes: Sequence[Mapping[str, Shapes]],
    wish: Wish,
    timing: "_TimingCache | None" = None,
    on_progress: Report = _ignore,
) -> bytes:
    """The engine of one ONNX file, for inputs of these shapes."""
    flavour = target.flavour
    flavour.log.heard.clear()
    builder = flavour.trt.Builder(flavour.log)
    network = flavour.create_network(builder)  # the parser does not keep it alive: this name does
    _parse(flavour, network, name, content)
    config = builder.create_builder_config()
    for one in shapes:
        _check_names(network, name, one)
        if config.add_optimization_profile(_profile(builder, one)) < 0:
            raise EngineError(f"TensorRT refused a profile of {name}.onnx: {flavour.log.heard.reason}")
    _configure(config, target, wish)
    if timing is not None:
        timing.lend(config)
    with deferred_signals() as signals:
        monitor = make_monitor(
            flavour.trt, lambda done, phase: on_progress(name, done, phase), lambda: bool(signals.arrived)
        )
        config.progress_monitor = monitor
        plan = builder.build_serialized_network(network, config)
    if monitor.error is not None:
        raise monitor.error
    if plan is None:
        raise EngineError(_unbuilt(flavour, name))
    if timing is not None:
        timing.take(config)
    on_progress(name, 1.0, "")
    return bytes(plan)


def _parse(flavour: Flavour, network: Any, name: str, content: bytes) -> None:
    parser = flavour.trt.OnnxParser(network, flavour.log)
    with deferred_signals():  # the log is called from in there
        parsed = parser.parse(content)
    if parsed:
        return
    heard = flavour.log.heard
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    said = errors[-1] if errors else None
    # What the error itself says of the node is empty as often as not; the log has it.
    node = (said.node_name() if said else "") or heard.node
    operator = (said.node_operator() if said else "") or heard.operator
    why = (said.desc() if said else "") or heard.reason
    if not node:
        raise EngineError(f"TensorRT cannot read {name}.onnx: {short(why)}; export the run again")
    raise EngineError(
        f"TensorRT cannot take the node {short(node)!r} ({operator}) of {name}.onnx: {short(why)}; "
        f"{_advice(operator)}"
    )


def _advice(operator: str) -> str:
    if operator.startswith("Scatter"):
        return "it has no sum over scattered edges: export without --plain, which sums over tables"
    return "export the run again with this version, or run it with --backend onnxruntime-cuda"


def _check_names(network: Any, name: str, shapes: Mapping[str, Shapes]) -> None:
    """Every shape is of an input with a free side, and every such input has one: TensorRT would not say."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    free = {one.name for one in inputs if -1 in tuple(one.shape)}
    unknown, missing = sorted(set(shapes) - free), sorted(free - set(shapes))
    if unknown or missing:
        what = f"has a shape for {unknown[0]!r}" if unknown else f"has no shape for {missing[0]!r}"
        kind = "which is no input with a free side" if unknown else "which needs one"
        raise EngineError(
            f"the profile of {name}.onnx {what}, {kind}: export the run again with this version"
        )


def _profile(builder: Any, shapes: Mapping[str, Shapes]) -> Any:
    profile = builder.create_optimization_profile()
    for name, (least, likely, most) in shapes.items():
        profile.set_shape(name, least, likely, most)
    return profile


def _configure(config: Any, target: _Target, wish: Wish) -> None:
    trt = target.flavour.trt
    config.builder_optimization_level = wish.level
    config.clear_flag(trt.BuilderFlag.TF32)  # fp32 means fp32: who wants less says so when exporting
    if wish.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, wish.workspace)
    if target.flavour.name == RTX and target.capabilities:
        config.num_compute_capabilities = len(target.capabilities)
        for index, number in enumerate(target.capabilities):
            capability = getattr(trt.ComputeCapability, f"SM{number}", None)
            if capability is None or not config.set_compute_capability(capability, index):
                raise EngineError(f"this TensorRT-RTX does not build for SM {number}: leave it out of --sm")


def _unbuilt(flavour: Flavour, name: str) -> str:
    why = flavour.log.heard.reason
    advice = "try a smaller --profile or another --optimization-level"
    if "OutOfMemory" in why or "workspace" in why:
        advice = "allow more with --workspace, or ask for a smaller --profile: it counts the largest shapes"
    return f"TensorRT could not build an engine of {name}.onnx: {short(why, 200)}; {advice}"


class _TimingCache:
    """How long each of TensorRT's kernels took on this GPU: the next build need not measure it again.

    TensorRT-RTX measures nothing when it builds, and has none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._content = b""
        if path is not None:
            with suppress(OSError, BundleError):  # none, or none that is ours: it will be measured again
                self._content = read_own(path, MAX_TIMING)

    @classmethod
    def of(cls, target: _Target, wish: Wish, bundle: Path) -> "_TimingCache":
        if target.flavour.name != TENSORRT:
            return cls(None)
        path = wish.timing_cache or bundle / FOLDER / "timing.cache"
        check_writable(path)
        return cls(path)

    def lend(self, config: Any) -> None:
        """Let a build use it; one of another version or GPU is left out."""
        if self._path is None:
            return
        if not config.set_timing_cache(config.create_timing_cache(self._content), False):
            config.set_timing_cache(config.create_timing_cache(b""), False)

    def take(self, config: Any) -> None:
        """What it is after a build."""
        if self._path is not None:
            self._content = bytes(config.get_timing_cache().serialize())

    def keep(self) -> None:
        """For the next time."""
        if self._path is not None:
            write_file(self._path, self._content)
