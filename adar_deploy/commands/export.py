"""The command `adar-deploy export`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy.commands.build import build_with_bar, show_engines
from adar_deploy.commands.inspect import show_parity
from adar_deploy.commands.train import RUNS
from adar_deploy.console import Bar, megabytes, print_facts, print_next
from adar_deploy.extras import require
from adar_deploy.options import PrecisionName

if TYPE_CHECKING:
    from adar_export import Check, Trial
    from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar

ABOUT = 50  # comparisons and trials of an export, more or less: how many trials it takes is what it finds out


def export(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a training run.", show_default="the newest in runs/")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the bundle.")] = Path("bundle"),
    opset: Annotated[int, typer.Option(help="ONNX opset of the graphs.")] = 17,
    precision: Annotated[
        PrecisionName, typer.Option(help="Of the cell's large products; int8 is of their weights alone.")
    ] = PrecisionName.fp32,
    plain: Annotated[
        bool, typer.Option("--plain", help="PyTorch's own export of the paper's formulas, to compare with.")
    ] = False,
    tensorrt: Annotated[
        bool,
        typer.Option("--tensorrt", help="Build TensorRT engines too, as adar-deploy build does by itself."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as one JSON object.")] = False,
) -> None:
    """Turn a training run into a bundle that runs without PyTorch.

    The bundle is compared with PyTorch over 1, 10, 100 and 300 steps on graphs of several shapes, and is
    written only if they agree. Then it is measured how few calls of the cell give the answer of 300 steps.

    Example: adar-deploy export runs/minesweeper --opset 17 --out bundle
    """
    require("export")
    from adar_export import export_bundle
    from adar_runtime.run_files import GRAPH
    from adar_train.runs import load_run, newest_run

    if tensorrt:
        _check_engines(plain=plain)
    loaded = load_run(run or newest_run(RUNS))
    with Bar("compare with PyTorch", ABOUT) as bar:
        done = 0

        def show(found: "Check | Trial") -> None:
            nonlocal done
            done += 1
            bar.update(done, _status(found))

        manifest = export_bundle(loaded, out, opset, precision.value, plain, on_progress=show)
    engines = _build(out) if tensorrt else []

    if as_json:
        typer.echo(json.dumps(manifest.to_dict()))
        return
    facts = {
        "run": loaded.path,
        "bundle": out,
        "opset": manifest.opset,
        "precision": manifest.precision,
        "size": megabytes(manifest),
    }
    print_facts("exported", facts)
    show_parity(manifest)
    if engines:
        show_engines(out, engines)
    print_next("run", loaded.path / GRAPH, "--bundle", out, "--max-steps", 300)


def _check_engines(*, plain: bool) -> None:
    """Refuse before any work is done what no engine could be built of, or with."""
    from adar_runtime.backends.tensorrt.engines.packages import load_package
    from adar_runtime.errors import UsageError

    if plain:
        raise UsageError("TensorRT has no sum over scattered edges: leave --plain or --tensorrt out")
    load_package()


def _build(bundle: Path) -> "list[Sidecar]":
    from adar_runtime.backends.tensorrt.engines.build import BuildOptions

    return build_with_bar(bundle, BuildOptions())


def _status(found: "Check | Trial") -> str:
    from adar_export import Check

    if isinstance(found, Check):
        return f"{found.steps} steps: {found.relative:.0e}"
    return f"{found.solver}, {found.calls} calls: {found.change:.0e}"
