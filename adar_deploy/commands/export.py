"""The command `adar-deploy export`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy.bundle_output import build_with_bar, export_with_bar, show_engines, show_parity
from adar_deploy.console import err, print_facts, print_next, print_note
from adar_deploy.environment import require
from adar_deploy.formatting import megabytes
from adar_deploy.options import Overwrite, PrecisionName
from adar_deploy.paths import RUNS

if TYPE_CHECKING:
    from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar


def export(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a training run.", show_default="the newest in runs/")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the bundle.")] = Path("bundle"),
    opset: Annotated[int, typer.Option(help="ONNX opset of the models.")] = 17,
    precision: Annotated[
        PrecisionName, typer.Option(help="Precision of the large matrix products; int8: weights only.")
    ] = PrecisionName.fp32,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Use PyTorch's ONNX exporter on the paper's formulas, as a reference."),
    ] = False,
    tensorrt: Annotated[
        bool,
        typer.Option("--tensorrt", help="Also build TensorRT engines, like adar-deploy build."),
    ] = False,
    triton: Annotated[
        Path | None,
        typer.Option(
            help="Also write a model repository for Triton into this folder, like adar-deploy triton."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model.", show_default="that of the run's folder")
    ] = None,
    version: Annotated[str, typer.Option("--version", help="Version of the model.")] = "1.0.0",
    description: Annotated[
        str | None, typer.Option(help="What the model is for.", show_default="one generated sentence")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as one JSON object.")] = False,
) -> None:
    """Turn a training run into a bundle that runs without PyTorch.

    The bundle is compared with PyTorch over 1, 10, 100 and 300 steps on graphs of several shapes, and is
    written only if both agree. The export also measures the fewest cell calls that reproduce the result of
    300 steps. A bundle of the same run is replaced; a bundle of another model only with --overwrite.

    The bundle's README.md is a model card in the format of the Hugging Face hub.

    Example: adar-deploy export runs/minesweeper --opset 17 --out bundle

    Example: adar-deploy export runs/minesweeper --triton models

    Example: adar-deploy export --name board-reader --version 2.1.0 --description "Finds mines."
    """
    require("export")
    from adar_runtime.bundle.run_files import GRAPH
    from adar_serve.models import named_by_folder
    from adar_serve.triton_repository import check_version, write_triton_model
    from adar_train.run_folders import newest_run
    from adar_train.runs import load_run

    if tensorrt:
        _check_engines(plain=plain)
    if triton is not None:
        check_version(named_by_folder(out), triton, overwrite=overwrite)
    loaded = load_run(run or newest_run(RUNS))
    manifest = export_with_bar(
        loaded,
        out,
        opset=opset,
        precision=precision.value,
        plain=plain,
        overwrite=overwrite,
        name=name,
        version=version,
        description=description,
    )
    engines, left_out = _build(out) if tensorrt else ([], {})
    _note_unknown(out)
    if triton is not None:
        write_triton_model(named_by_folder(out), triton, overwrite=overwrite)

    if as_json:
        typer.echo(json.dumps(manifest.to_dict()))
        return
    facts = {
        "run": loaded.path,
        "bundle": out,
        "name, version": f"{manifest.name}, {manifest.version}",
        "opset": manifest.opset,
        "precision": manifest.precision,
        "size": megabytes(manifest),
    }
    if triton is not None:
        facts["Triton repository"] = triton
    print_facts("exported", facts)
    show_parity(manifest)
    if engines:
        show_engines(out, engines, left_out)
    print_next("run", loaded.path / GRAPH, "--bundle", out, "--max-steps", 300)


def _note_unknown(bundle: Path) -> None:
    """Say if the bundle needs --allow-unknown-model: a plain export, or a new variant."""
    from adar_runtime.bundle import known_models
    from adar_runtime.bundle.reading import read_bundle

    if not known_models.are_known(*read_bundle(bundle, allow_unknown_model=True), allow_others=True):
        print_note(
            "run this bundle with --allow-unknown-model: the runtime does not know its models, because "
            "PyTorch wrote one (--plain) or the exporter has changed (make fingerprints)",
            to=err,
        )


def _check_engines(*, plain: bool) -> None:
    """Before any work, refuse a model that TensorRT cannot build and a missing TensorRT."""
    from adar_runtime.backends.tensorrt.engines.packages import load_package
    from adar_runtime.errors import UsageError

    if plain:
        raise UsageError(
            "TensorRT cannot build the --plain export (scatter sums): remove --plain or --tensorrt"
        )
    load_package()


def _build(bundle: Path) -> "tuple[list[Sidecar], dict[str, str]]":
    from adar_runtime.backends.tensorrt.engines.options import BuildOptions

    return build_with_bar(bundle, BuildOptions())
