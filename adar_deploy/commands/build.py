"""The command `adar-deploy build`."""

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy.bundle_output import build_with_bar, show_engines
from adar_deploy.console import print_next
from adar_deploy.option_groups import OptionGroup, with_groups
from adar_deploy.options import BundleArgument, CudaDevice, Json, PrecisionName
from adar_deploy.paths import PACKAGED

if TYPE_CHECKING:
    from adar_runtime.backends.tensorrt.engines.options import BuildOptions
    from adar_runtime.backends.tensorrt.engines.profiles import Profile
    from adar_runtime.bundle.manifest import Manifest

GIB = 2**30


class FlavourName(StrEnum):
    rtx = "rtx"
    tensorrt = "tensorrt"


class HardwareName(StrEnum):
    same = "same"
    same_capability = "same-capability"
    ampere_plus = "ampere-plus"


@dataclass(frozen=True)
class TargetOptions(OptionGroup):
    """Which package builds the engines, and for which GPUs."""

    flavour: Annotated[
        FlavourName | None,
        typer.Option(
            help="rtx: for several GPU types, and no GPU is needed; tensorrt: for the GPU of this machine.",
            show_default="the one that is installed",
        ),
    ] = None
    sm: Annotated[
        str | None,
        typer.Option(
            help="Compute capabilities to build for (rtx), of 80, 86, 89, 120, 121.",
            show_default="80 and later",
        ),
    ] = None


@dataclass(frozen=True)
class EngineOptions(OptionGroup):
    """The sizes that engines are built for, and how they are built."""

    profile: Annotated[
        list[str] | None,
        typer.Option(
            help="Graph sizes (repeatable): small, medium, large, or n=1:10000:1000000,m=…,c=… as "
            "minimum:typical:maximum.",
            show_default="all three",
        ),
    ] = None
    for_graph: Annotated[
        list[Path] | None,
        typer.Option(
            "--for",
            help="Graph to build for (repeatable): its shapes and a quarter more, with the least memory.",
            show_default="no graph",
        ),
    ] = None
    optimization_level: Annotated[
        int,
        typer.Option(min=0, max=5, help="Effort to find faster kernels; higher levels take longer to build."),
    ] = 3
    workspace: Annotated[
        float | None, typer.Option(help="Scratch memory of an engine, in GiB.", show_default="no limit")
    ] = None
    activation_limit: Annotated[
        float,
        typer.Option(help="Refuse a profile whose largest graph needs more memory for activations, in GiB."),
    ] = 16.0
    hardware: Annotated[
        HardwareName,
        typer.Option(
            help="GPUs that can run the engines (tensorrt): the same model, the same compute capability, or "
            "8.0 and later."
        ),
    ] = HardwareName.same
    version_compatible: Annotated[
        bool,
        typer.Option(
            "--version-compatible", help="Engines that later minor versions can load too (tensorrt)."
        ),
    ] = False
    device: CudaDevice = 0
    timing_cache: Annotated[
        Path | None,
        typer.Option(
            help="File with kernel timings, reused by later builds (tensorrt).", show_default="in the bundle"
        ),
    ] = None

    def options_for(self, target: TargetOptions, manifest: "Manifest") -> "BuildOptions":
        """As options of the builder, for a bundle with this manifest."""
        from adar_runtime.backends.tensorrt.engines.options import BuildOptions

        return BuildOptions(
            package=target.flavour.value if target.flavour else None,
            capabilities=_capabilities(target.sm),
            profiles=_profiles(self.profile or [], self.for_graph or [], manifest),
            level=self.optimization_level,
            workspace=None if self.workspace is None else _bytes("--workspace", self.workspace),
            activation_limit=_bytes("--activation-limit", self.activation_limit),
            timing_cache=self.timing_cache,
            hardware=self.hardware.value,
            version_compatible=self.version_compatible,
            device=self.device,
        )


@with_groups
def build(
    *,
    bundle: BundleArgument = Path("bundle"),
    target: TargetOptions,
    precision: Annotated[
        PrecisionName | None,
        typer.Option(
            help="Required precision of the bundle; another one is an error.", show_default="the bundle's"
        ),
    ] = None,
    engines: EngineOptions,
    as_json: Json = False,
) -> None:
    """Build TensorRT engines from a bundle. They run the whole loop on the GPU.

    The engines are written to the folder `engines` in the bundle, each with a JSON file that describes it.

    Example: adar-deploy build bundle --profile medium

    Example: adar-deploy build bundle --for graph.npz

    Example: adar-deploy build bundle --flavour rtx --sm 86,89 --profile n=1:10000:1000000,m=1:80000:8000000
    """
    from adar_runtime.backends.tensorrt.engines.sidecar import summary
    from adar_runtime.bundle.reading import read_bundle
    from adar_runtime.errors import UsageError

    if bundle.resolve() == PACKAGED:
        raise UsageError(f"engines are not written into this package: copy {bundle} and build the copy")
    manifest, _ = read_bundle(bundle)
    if precision is not None and precision.value != manifest.precision:
        raise UsageError(
            f"{bundle} is {manifest.precision}, and TensorRT uses the types of the ONNX file: "
            f"adar-deploy export --precision {precision.value} --tensorrt"
        )
    built, left_out = build_with_bar(bundle, engines.options_for(target, manifest))
    if as_json:
        summaries = [summary(one) for one in built]
        typer.echo(json.dumps({"bundle": str(bundle), "engines": summaries, "left_out": left_out}))
        return
    show_engines(bundle, built, left_out)
    print_next("run", "GRAPH", "--bundle", bundle, "--backend", "tensorrt")


def _profiles(names: list[str], graphs: list[Path], manifest: "Manifest") -> "tuple[Profile, ...] | None":
    """The named profiles, then one for each graph; None for the default ones."""
    from adar_runtime import read_graph
    from adar_runtime.backends.tensorrt.engines.profiles import Profile
    from adar_runtime.bundle.fit import check_fits
    from adar_runtime.errors import GraphError

    found = [Profile.parse(name) for name in names]
    for path in graphs:
        graph = read_graph(path)
        try:
            check_fits(graph, manifest)
            profile = Profile.around(graph)
        except GraphError as error:
            raise GraphError(f"{path}: {error}") from error
        if profile not in found:
            found.append(profile)
    return tuple(found) or None


def _bytes(option: str, gib: float) -> int:
    from adar_runtime.errors import UsageError

    if not math.isfinite(gib * GIB):
        raise UsageError(f"{option} is {gib}: give a number of GiB")
    return int(gib * GIB)


def _capabilities(text: str | None) -> tuple[int, ...]:
    from adar_runtime.errors import UsageError

    try:
        return tuple(sorted({int(part) for part in text.split(",")})) if text else ()
    except ValueError as error:
        raise UsageError(f"--sm is {text!r}: give numbers such as 80,86,89,120") from error
