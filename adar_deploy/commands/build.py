"""The command `adar-deploy build`."""

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.bundle_output import build_with_bar, show_engines
from adar_deploy.console import print_next
from adar_deploy.options import BundleArgument, Json, PrecisionName

GIB = 2**30


class FlavourName(StrEnum):
    rtx = "rtx"
    tensorrt = "tensorrt"


def build(
    bundle: BundleArgument = Path("bundle"),
    flavour: Annotated[
        FlavourName | None,
        typer.Option(
            help="rtx: for several GPU types, and no GPU is needed; tensorrt: for the GPU of this machine.",
            show_default="the one that is installed",
        ),
    ] = None,
    sm: Annotated[
        str | None,
        typer.Option(
            help="Compute capabilities to build for (rtx), of 80, 86, 89, 120.", show_default="80 and later"
        ),
    ] = None,
    precision: Annotated[
        PrecisionName | None,
        typer.Option(
            help="Required precision of the bundle; another one is an error.", show_default="the bundle's"
        ),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            help="Graph sizes (repeatable): small, medium, large, or n=1:10000:1000000,m=…,c=… as "
            "minimum:typical:maximum.",
            show_default="all three",
        ),
    ] = None,
    optimization_level: Annotated[
        int,
        typer.Option(min=0, max=5, help="Effort to find faster kernels; higher levels take longer to build."),
    ] = 3,
    workspace: Annotated[
        float | None, typer.Option(help="Scratch memory of an engine, in GiB.", show_default="no limit")
    ] = None,
    timing_cache: Annotated[
        Path | None,
        typer.Option(
            help="File with kernel timings, reused by later builds (tensorrt).", show_default="in the bundle"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Build TensorRT engines from a bundle. They run the whole loop on the GPU.

    The engines are written to the folder `engines` in the bundle, each with a JSON file that describes it.

    Example: adar-deploy build bundle --profile medium

    Example: adar-deploy build bundle --flavour rtx --sm 86,89 --profile n=1:10000:1000000,m=1:80000:8000000
    """
    from adar_runtime.backends.tensorrt.engines.build import BuildOptions
    from adar_runtime.backends.tensorrt.engines.profiles import PROFILES, Profile
    from adar_runtime.backends.tensorrt.engines.sidecar import summary
    from adar_runtime.bundle.reading import read_bundle
    from adar_runtime.errors import UsageError

    if workspace is not None and not math.isfinite(workspace):
        raise UsageError(f"--workspace is {workspace}: give a number of GiB")
    manifest, _ = read_bundle(bundle)
    if precision is not None and precision.value != manifest.precision:
        raise UsageError(
            f"{bundle} is {manifest.precision}, and TensorRT uses the types of the ONNX file: "
            f"adar-deploy export --precision {precision.value} --tensorrt"
        )
    options = BuildOptions(
        package=flavour.value if flavour else None,
        capabilities=_capabilities(sm),
        profiles=tuple(map(Profile.parse, profile or PROFILES)),
        level=optimization_level,
        workspace=None if workspace is None else int(workspace * GIB),
        timing_cache=timing_cache,
    )
    built = build_with_bar(bundle, options)
    if as_json:
        typer.echo(json.dumps({"bundle": str(bundle), "engines": [summary(one) for one in built]}))
        return
    show_engines(bundle, built)
    print_next("run", "GRAPH", "--bundle", bundle, "--backend", "tensorrt")


def _capabilities(text: str | None) -> tuple[int, ...]:
    from adar_runtime.errors import UsageError

    try:
        return tuple(sorted({int(part) for part in text.split(",")})) if text else ()
    except ValueError as error:
        raise UsageError(f"--sm is {text!r}: give numbers such as 80,86,89,120") from error
