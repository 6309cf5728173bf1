"""Build the engine of one ONNX model.

TensorRT raises no exceptions: failed calls return False or None, and the log says why. TensorRT also accepts
profiles for inputs that do not exist. This module turns both into errors.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from adar_runtime.backends.tensorrt.engines.callbacks import Report, ignore_progress, make_monitor
from adar_runtime.backends.tensorrt.engines.options import BuildOptions, Target
from adar_runtime.backends.tensorrt.engines.packages import RTX, TensorRtPackage
from adar_runtime.backends.tensorrt.engines.profiles import Shapes
from adar_runtime.backends.tensorrt.engines.timing_cache import TimingCache
from adar_runtime.errors import EngineError, short
from adar_runtime.interrupts import deferred_signals


class Plan(NamedTuple):
    """An engine as bytes, and what the builder said about it."""

    content: bytes
    activation_bytes: tuple[int, ...]  # for the largest shapes of each profile; empty if TensorRT did not say
    user_allocation: bool  # built with REQUIRE_USER_ALLOCATION, which CUDA graphs of TensorRT-RTX need


def build_engine(
    name: str,
    content: bytes,
    target: Target,
    shapes: Sequence[Mapping[str, Shapes]],
    options: BuildOptions,
    timing: TimingCache | None = None,
    on_progress: Report = ignore_progress,
) -> Plan:
    """Build the engine of one ONNX model, for inputs of these shapes (one mapping per profile)."""
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
    return Plan(bytes(plan), tuple(package.log.messages.activation), _has_user_allocation(package, config))


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


def _configure(config: Any, target: Target, options: BuildOptions) -> None:
    trt = target.package.trt
    config.builder_optimization_level = options.level
    config.clear_flag(trt.BuilderFlag.TF32)  # fp32 means fp32: lower precisions are chosen at export
    if target.package.name == RTX:
        # A CUDA graph can capture an engine only if the engine allocates nothing itself. With this flag, a
        # build fails for shapes for which that is impossible.
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
    else:
        _configure_tensorrt(config, trt, options)
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


def _configure_tensorrt(config: Any, trt: Any, options: BuildOptions) -> None:
    """Settings that TensorRT-RTX does not have or does not need."""
    resize = getattr(trt.PreviewFeature, "RUNTIME_ACTIVATION_RESIZE_10_10", None)
    if resize is not None:  # scratch memory follows the shapes of the graph, not those of the profile
        config.set_preview_feature(resize, True)
    if options.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    levels = trt.HardwareCompatibilityLevel
    level = {"same-capability": "SAME_COMPUTE_CAPABILITY", "ampere-plus": "AMPERE_PLUS"}.get(options.hardware)
    if level is not None:
        if not hasattr(levels, level):
            raise EngineError(f"this version of TensorRT has no --hardware {options.hardware}: leave it out")
        config.hardware_compatibility_level = getattr(levels, level)


def _has_user_allocation(package: TensorRtPackage, config: Any) -> bool:
    flag = getattr(package.trt.BuilderFlag, "REQUIRE_USER_ALLOCATION", None)
    return flag is not None and bool(config.get_flag(flag))


def _build_failure(package: TensorRtPackage, name: str) -> str:
    why = package.log.messages.reason
    advice = "try a smaller --profile or another --optimization-level"
    if "OutOfMemory" in why or "workspace" in why:
        advice = "increase --workspace, or choose a smaller --profile: its largest shapes set the need"
    return f"TensorRT could not build an engine of {name}.onnx: {short(why, 200)}; {advice}"
