"""The command `adar-deploy export`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.commands.train import RUNS
from adar_deploy.console import Bar, print_facts, print_next, print_rows
from adar_deploy.extras import require


def export(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a training run.", show_default="the newest in runs/")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the bundle.")] = Path("bundle"),
    opset: Annotated[int, typer.Option(help="ONNX opset of the graphs.")] = 17,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as one JSON object.")] = False,
) -> None:
    """Turn a training run into a bundle that runs without PyTorch.

    The bundle is compared with PyTorch over 1, 10 and 100 steps, and is written only if they agree.

    Example: adar-deploy export runs/minesweeper --opset 17 --out bundle
    """
    require("export")
    from adar_export import Check, export_bundle
    from adar_export.validate import STEPS
    from adar_train.runs import GRAPH, load_run, newest_run

    loaded = load_run(run or newest_run(RUNS))
    checks: list[Check] = []
    with Bar("compare with PyTorch", 2 * len(STEPS)) as bar:

        def show(check: Check) -> None:
            checks.append(check)
            bar.update(len(checks), f"{check.steps} steps: {check.relative:.0e}")

        manifest = export_bundle(loaded, out, opset, show)

    if as_json:
        typer.echo(json.dumps(manifest.to_dict()))
        return
    size = sum(file.bytes for file in manifest.graphs.values())
    facts = {"run": loaded.path, "bundle": out, "opset": manifest.opset, "size": f"{size / 1e6:.1f} MB"}
    print_facts("exported", facts)
    print_rows(
        ["compared with PyTorch on", "steps", "largest difference", "relative", "predictions that differ"],
        [(c.graph, c.steps, f"{c.absolute:.1e}", f"{c.relative:.1e}", c.predictions) for c in checks],
    )
    print_next(f"adar-deploy run {loaded.path / GRAPH} --bundle {out} --max-steps 300")
