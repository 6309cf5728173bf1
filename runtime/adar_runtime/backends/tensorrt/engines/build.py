"""Build TensorRT engines from the ONNX models of a bundle, and write them beside the models."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from adar_runtime.backends.tensorrt.cuda import Cuda
from adar_runtime.backends.tensorrt.device import device_problem
from adar_runtime.backends.tensorrt.engines import FOLDER
from adar_runtime.backends.tensorrt.engines.callbacks import Report, ignore_progress
from adar_runtime.backends.tensorrt.engines.clock import CLOCK, clock_model
from adar_runtime.backends.tensorrt.engines.model_shapes import ENCODER, model_shapes, usable_profiles
from adar_runtime.backends.tensorrt.engines.options import BuildOptions, Target
from adar_runtime.backends.tensorrt.engines.packages import RTX, load_package
from adar_runtime.backends.tensorrt.engines.plan import Plan, build_engine
from adar_runtime.backends.tensorrt.engines.profiles import Profile
from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar, kept_files, sha256, write_engines
from adar_runtime.backends.tensorrt.engines.timing_cache import TimingCache
from adar_runtime.backends.tensorrt.engines.trusted_engines import remember
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.onnx_facts import encodes_by_row
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import EngineError, UsageError
from adar_runtime.files import check_writable, writing
from adar_runtime.temporary_files import clear, locked

CAPABILITIES = (80, 86, 89, 120, 121)  # targets of rtx; 75 has no float32 matrix products


def build_engines(
    bundle: Path,
    manifest: Manifest,
    onnx_models: Mapping[str, bytes],
    options: BuildOptions | None = None,
    on_progress: Report = ignore_progress,
) -> list[Sidecar]:
    """Build and write all engines of a bundle. If one fails, no file changes."""
    options = options or BuildOptions()
    options.check()
    target = _target(options)
    if (bundle / FOLDER).is_symlink():
        raise UsageError(f"{bundle / FOLDER} is a link that leads out of the bundle: remove it")
    by_row = encodes_by_row(onnx_models[ENCODER])
    profiles, _ = usable_profiles(manifest, options.profiles, by_row=by_row)
    sources = dict(onnx_models) | {CLOCK: clock_model(manifest.hidden)}
    with _exclusive(bundle):
        clear(bundle)  # what a build that was ended has left, before a file is made in another folder
        check_writable(bundle / FOLDER / "probe")
        kept_files(bundle)  # refused before the work
        timing = TimingCache.of(target, options, bundle)
    built = {}
    for name, content in sources.items():
        shapes = model_shapes(manifest, name, profiles, by_row=by_row)
        plan = build_engine(name, content, target, shapes, options, timing, on_progress)
        _check_activation(name, plan, profiles, options.activation_limit)
        sidecar = Sidecar(
            onnx_model=name,
            onnx_sha256=sha256(content),
            engine_sha256=sha256(plan.content),
            bytes=len(plan.content),
            package=target.package.name,
            version=target.package.version,
            version_compatible=options.version_compatible,
            compute_capabilities=target.capabilities,
            precision=manifest.precision,
            profiles=profiles if shapes else (),
            shapes=shapes,
            activation_bytes=plan.activation_bytes,
            user_allocation=plan.user_allocation,
            optimization_level=options.level,
            workspace=options.workspace,
            built_by=version("adar-deploy"),
        )
        built[name] = sidecar, plan.content
    with _exclusive(bundle):
        if read_manifest(bundle).onnx_models != manifest.onnx_models:
            raise EngineError(f"{bundle} was replaced while its engines were built: build them again")
        write_engines(bundle, built)
        timing.save()
    remember(sidecar.engine_sha256 for sidecar, _ in built.values())
    return [sidecar for sidecar, _ in built.values()]


def _check_activation(name: str, plan: Plan, profiles: tuple[Profile, ...], limit: int) -> None:
    """Refuse an engine that needs more scratch memory than the limit, before it is used on a GPU."""
    for index, needed in enumerate(plan.activation_bytes):
        if needed > limit:
            whose = profiles[index].name if index < len(profiles) else "of every graph"
            raise EngineError(
                f"the profile {whose} needs {needed / 1e9:.1f} GB of activation memory in the {name}, and "
                f"the limit is {limit / 1e9:.1f} GB: choose a smaller --profile, build for the shapes of a "
                "graph with --for GRAPH, or raise --activation-limit"
            )


@contextmanager
def _exclusive(bundle: Path) -> Iterator[None]:
    """Keep other processes that build for the same bundle from writing at the same time."""
    with writing(bundle), locked(bundle):
        yield


def _target(options: BuildOptions) -> Target:
    """The package to build with, and the GPUs to build for."""
    package = load_package(options.package)
    options.check_package(package.name)
    if package.name == RTX:
        unknown = sorted(set(options.capabilities) - set(CAPABILITIES))
        if unknown:
            known = ", ".join(map(str, CAPABILITIES))
            raise UsageError(
                f"--sm contains {unknown[0]}, but TensorRT-RTX builds for {known}: "
                "leave --sm out to build for 80 and later"
            )
        return Target(package, options.capabilities)
    problem = device_problem()
    if problem is not None:
        raise EngineError(
            f"tensorrt builds only for the GPU of this machine, but {problem}: use --flavour rtx"
        )
    here = Cuda(options.device).compute_capability()  # and the builder uses the current device
    if set(options.capabilities) - {here}:
        raise UsageError(
            f"tensorrt builds only for the GPU of this machine ({here}): leave --sm out, or use --flavour rtx"
        )
    return Target(package, () if options.hardware == "ampere-plus" else (here,))
