"""The command `adar-deploy build`."""

import json
import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy.console import Bar, print_facts, print_next, print_rows
from adar_deploy.options import BundleArgument, Json, PrecisionName

if TYPE_CHECKING:
    from adar_runtime.backends.tensorrt.engines.build import BuildOptions
    from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar

GIB = 2**30
ENGINES = 4  # encoder, cell, head, and the clock that the loop on a GPU runs by


class FlavourName(StrEnum):
    rtx = "rtx"
    tensorrt = "tensorrt"


def build(
    bundle: BundleArgument = Path("bundle"),
    flavour: Annotated[
        FlavourName | None,
        typer.Option(help="rtx builds without a GPU, for any; tensorrt for the one that is there."),
    ] = None,
    sm: Annotated[
        str | None,
        typer.Option(help="GPUs to build for (rtx): of 80, 86, 89, 120.", show_default="80 and later"),
    ] = None,
    precision: Annotated[
        PrecisionName | None,
        typer.Option(help="That the bundle has to have.", show_default="the bundle's"),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            help="Sizes of graphs: small, medium, large or n=1:10000:1000000,m=…,c=… as least:likely:most. "
            "May be given several times.",
            show_default="all three",
        ),
    ] = None,
    optimization_level: Annotated[
        int, typer.Option(min=0, max=5, help="How long the builder looks for faster kernels.")
    ] = 3,
    workspace: Annotated[
        float | None, typer.Option(help="Scratch memory of an engine, in GiB.", show_default="no limit")
    ] = None,
    timing_cache: Annotated[
        Path | None,
        typer.Option(
            help="File that keeps measured times for later builds (tensorrt).", show_default="in the bundle"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Build TensorRT engines of a bundle, which run its whole loop on a GPU.

    They are put into its folder `engines`, each with a JSON beside it that says what it is for.

    Example: adar-deploy build bundle --profile medium

    Example: adar-deploy build bundle --flavour rtx --sm 86,89 --profile n=1:10000:1000000,m=1:80000:8000000
    """
    from adar_runtime.backends.tensorrt.engines.build import BuildOptions
    from adar_runtime.backends.tensorrt.engines.profiles import PROFILES, Profile
    from adar_runtime.backends.tensorrt.engines.sidecar import summary
    from adar_runtime.bundle.bundle import read_bundle
    from adar_runtime.errors import UsageError

    if workspace is not None and not math.isfinite(workspace):
        raise UsageError(f"--workspace is {workspace}: it is a number of GiB")
    manifest, _ = read_bundle(bundle)
    if precision is not None and precision.value != manifest.precision:
        raise UsageError(
            f"{bundle} is {manifest.precision}, and TensorRT takes the types of the ONNX file: "
            f"adar-deploy export --precision {precision.value} --tensorrt"
        )
    wish = BuildOptions(
        package=flavour.value if flavour else None,
        capabilities=_numbers(sm),
        profiles=tuple(map(Profile.parse, profile or PROFILES)),
        level=optimization_level,
        workspace=None if workspace is None else int(workspace * GIB),
        timing_cache=timing_cache,
    )
    built = build_with_bar(bundle, wish)
    if as_json:
        typer.echo(json.dumps({"bundle": str(bundle), "engines": [summary(one) for one in built]}))
        return
    show_engines(bundle, built)
    print_next("run", "GRAPH", "--bundle", bundle, "--backend", "tensorrt")


def build_with_bar(bundle: Path, wish: "BuildOptions") -> "list[Sidecar]":
    """Build, while a bar shows what TensorRT says it is doing."""
    from adar_runtime.backends.tensorrt.engines.build import build_engines
    from adar_runtime.bundle.bundle import read_bundle

    manifest, graphs = read_bundle(bundle)
    finished: list[str] = []
    with Bar("build engines", ENGINES, counted=False) as bar:

        def show(graph: str, done: float, phase: str) -> None:
            if graph not in finished:
                finished.append(graph)
            bar.update(len(finished) - 1 + done, f"{graph}  {phase}")

        return build_engines(bundle, manifest, graphs, wish, show)


def show_engines(bundle: Path, engines: "Sequence[Sidecar]") -> None:
    """What there is now, and which graphs it takes."""
    from adar_runtime.backends.tensorrt.engines import FOLDER

    first = engines[0]
    print_facts(
        "built",
        {
            "folder": bundle / FOLDER,
            "by": f"{first.builder} {first.version}",
            "for": first.gpus,
            "precision": first.precision,
        },
    )
    print_rows(["engine", "MB"], [(one.file, f"{one.bytes / 1e6:.1f}") for one in engines])
    sizes = {f"profile {index}": one.in_words for index, one in enumerate(first.profiles)}
    print_facts("takes graphs of", sizes)


def _numbers(text: str | None) -> tuple[int, ...]:
    from adar_runtime.errors import UsageError

    try:
        return tuple(sorted({int(part) for part in text.split(",")})) if text else ()
    except ValueError as error:
        raise UsageError(f"--sm is {text!r}: give numbers such as 80,86,89,120") from error
