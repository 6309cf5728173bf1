"""The command `adar-deploy validate`."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy.bundle_output import show_checks
from adar_deploy.console import Bar, err, print_error, print_facts, print_note
from adar_deploy.environment import require
from adar_deploy.model_folders import check_not_replaced, name_of_run, weights_of
from adar_deploy.option_groups import with_groups
from adar_deploy.options import BundleArgument, Json, RunOption, parse_budgets
from adar_deploy.paths import bundle_first, graph_files, run_folders
from adar_deploy.signals import EXIT_GATE
from adar_deploy.table_options import TableOptions

if TYPE_CHECKING:
    from adar_runtime.errors import ExportError
    from adar_train import ModelConfig


@with_groups
def validate(
    *,
    bundle: BundleArgument = Path("bundle"),
    graphs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Graph files (.npz or .pt) to compare on, folders of them, or a table of nodes.",
            show_default="several small generated graphs",
            readable=False,
        ),
    ] = None,
    run: RunOption = None,
    steps: Annotated[str, typer.Option(help="Numbers of steps, comma-separated.")] = "1,10,100,300",
    tables: TableOptions,
    as_json: Json = False,
) -> None:
    """Compare a bundle with PyTorch on every available backend: names, shapes and values.

    The batched cell and the phases of a step are compared with the cell, on small generated graphs.

    Exit codes: 0 they agree; 3 they differ by more than rounding explains, and the message says where; 2 an
    error, such as a run that was not found.

    Example: adar-deploy validate bundle graph.npz --run runs/minesweeper
    """
    require("export")
    from adar_export.bf16_emulation import needs_emulation, opened
    from adar_export.samples import shapes_for
    from adar_export.validate import Check, check_ports, compare, refuse
    from adar_export.writer import adar_of
    from adar_runtime.backends import available
    from adar_runtime.bundle.reading import read_manifest
    from adar_runtime.errors import BackendError, BundleError, ExportError
    from adar_train.runs import find_run

    bundle, graphs = bundle_first(bundle, graphs or [])
    budgets, files = parse_budgets("steps", steps), graph_files(graphs)
    tables.check(files)
    manifest = read_manifest(bundle)
    weights = weights_of(manifest)
    if weights is None:
        raise BundleError(
            f"{bundle} does not record which weights it was exported from: export the run again"
        )
    model = adar_of(find_run(run_folders(bundle), weights, run, name_of_run(manifest)))
    check_ports(bundle)
    encoding, note = manifest.feature_encoding, partial(print_note, to=err)
    read = {str(path): tables.read_for_model(path, bundle, encoding, note) for path in files}
    compared = read or shapes_for(model.config)
    whole = len(compared) * len(budgets)
    reports, problems = [], dict[str, str]()
    for backend in available():
        try:
            with opened(bundle, backend) as side, Bar("compare with PyTorch", whole) as bar:
                checks: list[Check] = []

                def show(check: Check) -> None:
                    checks.append(check)  # noqa: B023
                    bar.update(len(checks), f"{check.steps} steps: difference {check.relative:.0e}")  # noqa: B023

                reports.append(compare(model, side, compared, budgets, show))
        except BackendError as error:  # a missing driver, or an unsupported precision or shape
            problems[backend] = str(error)
            continue
        if needs_emulation(manifest, backend):
            print_note(
                f"{backend} has no {manifest.precision} products: the bf16 emulation was compared", to=err
            )
        if not as_json:
            print_facts("", {"backend": backend})
            show_checks([vars(check) for check in reports[-1].checks])
    other = _other_models(bundle, model.config) if reports else None
    check_not_replaced(bundle, manifest)
    if not reports:
        raise BackendError("; ".join(problems.values()))
    if as_json:
        unchecked = [{"backend": name, "problem": why, "checks": []} for name, why in problems.items()]
        typer.echo(json.dumps([*(report.to_dict() for report in reports), *unchecked]))
    else:
        for name, why in problems.items():
            print_note(f"{name} was not compared: {why}")
    try:
        refuse(*reports)
        if other is not None:
            raise other
    except ExportError as error:
        print_error(str(error))
        raise typer.Exit(EXIT_GATE) from error
    if as_json:
        return
    needed = max(report.needed for report in reports)
    print_facts(
        "agrees with PyTorch",
        {
            "bundle": bundle,
            "allowed difference": f"{reports[0].tolerance:.0e}",
            "largest difference": f"{needed:.1e}",
        },
    )


def _other_models(bundle: Path, config: "ModelConfig") -> "ExportError | None":
    """Compare the batched cell and the phases of a step with the cell: how one of them differs, or None."""
    from adar_export.batch_proof import batch_samples, compare_batch
    from adar_export.bf16_emulation import opened
    from adar_export.phase_proof import compare_phases, phase_samples
    from adar_runtime.backends import CPU
    from adar_runtime.errors import ExportError

    with opened(bundle, CPU) as side:
        try:
            compare_batch(side, batch_samples(config))
            compare_phases(side, phase_samples(config))
        except ExportError as error:
            return error
    return None
