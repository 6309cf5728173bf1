"""The command `adar-deploy drift`."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adar_deploy.console import err, print_facts, print_note, print_rows, print_warning
from adar_deploy.option_groups import with_groups
from adar_deploy.options import AllowUnknownModel, BundleArgument, Json, MaxSteps
from adar_deploy.paths import bundle_first, graph_files
from adar_deploy.signals import EXIT_GATE
from adar_deploy.table_options import TableOptions

if TYPE_CHECKING:
    from adar_runtime.evaluation.drift import Drift

SHOWN = 12  # rows of the table; --json has all of them


@with_groups
def drift(
    *,
    bundle: BundleArgument,
    graphs: Annotated[
        list[Path],
        typer.Argument(
            help="Graph files (.npz or .pt), folders of them, or a table of nodes.", readable=False
        ),
    ],
    threshold: Annotated[
        float, typer.Option(min=0, help="PSI above which a graph is unlike the training data.")
    ] = 0.25,
    max_steps: MaxSteps = 50,
    tables: TableOptions,
    allow_unknown_model: AllowUnknownModel = False,
    as_json: Json = False,
) -> None:
    """Compare graphs with the training data of a bundle: features, degrees, predictions, alignment.

    The measure is the population stability index (PSI) of each column: 0 for equal populations, above 0.25
    for a large change. What chance explains in a small graph is subtracted. Labels are not needed.

    Exit codes: 0 all graphs are like the training data; 3 a PSI is above --threshold, or the alignment is
    lower than on the training data; 2 an error.

    Example: adar-deploy drift bundle today.npz --threshold 0.2

    Example: adar-deploy drift bundle nodes.csv --edges edges.csv
    """
    from adar_runtime import load
    from adar_runtime.errors import BundleError

    bundle, graphs = bundle_first(bundle, graphs)
    files = graph_files(graphs)
    tables.check(files)
    opened = load(bundle, allow_unknown_model=allow_unknown_model)
    encoding, note = opened.manifest.feature_encoding, partial(print_note, to=err)
    reports: list[dict[str, Any]] = []
    for path in files:
        found = opened.run(tables.read_for_model(path, bundle, encoding, note), max_steps).drift
        if found is None:
            raise BundleError(
                f"{bundle} has no statistics of the training data: export the run with this version"
            )
        unlike = found.is_unlike(threshold)
        reports.append({"graph": str(path), "unlike": unlike, "threshold": threshold} | found.to_dict())
        if not as_json:
            _show(path, found, threshold)
    if as_json:
        typer.echo(json.dumps(reports[0] if len(reports) == 1 else reports))
    if any(report["unlike"] for report in reports):
        raise typer.Exit(EXIT_GATE)


def _show(path: Path, found: "Drift", threshold: float) -> None:
    facts: dict[str, Any] = {"graph": path, "largest PSI": f"{found.score:.3f} (threshold {threshold:g})"}
    if found.alignment is not None:
        facts["alignment"] = f"{found.alignment:.3g} (lowest expected {found.lowest_alignment:.3g})"
    print_facts("compared with the training data", facts)
    rows = [
        (
            change.name,
            f"{change.psi:.3f}",
            "" if change.mean is None else f"{change.mean:.4g}",
            "" if change.trained_mean is None else f"{change.trained_mean:.4g}",
            f"{100 * change.outside:.1f} %",
        )
        for change in found.changes[:SHOWN]
    ]
    print_rows(["largest changes", "PSI", "mean", "mean in training", "outside the range"], rows)
    if len(found.changes) > SHOWN:
        print_note(f"{len(found.changes) - SHOWN} more columns: see --json")
    for warning in found.warnings(threshold):
        print_warning(warning)
