"""The command `adar-deploy export`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy.commands.inspect import show_parity
from adar_deploy.commands.train import RUNS
from adar_deploy.console import Bar, megabytes, print_facts, print_next
from adar_deploy.extras import require
from adar_deploy.options import PrecisionName

if TYPE_CHECKING:
    from adar_export import Check, Trial

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
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as one JSON object.")] = False,
) -> None:
    """Turn a training run into a bundle that runs without PyTorch.

    The bundle is compared with PyTorch over 1, 10, 100 and 300 steps on graphs of several shapes, and is
    written only if they agree. Then it is measured how few calls of the cell give the answer of 300 steps.

    Example: adar-deploy export runs/minesweeper --opset 17 --out bundle
    """
    require("export")
    from adar_export import export_bundle
    from adar_train.runs import GRAPH, load_run, newest_run

    loaded = load_run(run or newest_run(RUNS))
    with Bar("compare with PyTorch", ABOUT) as bar:
        done = 0

        def show(found: "Check | Trial") -> None:
            nonlocal done
            done += 1
            bar.update(done, _status(found))

        manifest = export_bundle(loaded, out, opset, precision.value, plain, on_progress=show)

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
    print_next(f"adar-deploy run {loaded.path / GRAPH} --bundle {out} --max-steps 300")


def _status(found: "Check | Trial") -> str:
    from adar_export import Check

    if isinstance(found, Check):
        return f"{found.steps} steps: {found.relative:.0e}"
    return f"{found.solver}, {found.calls} calls: {found.change:.0e}"
