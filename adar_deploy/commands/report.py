"""The command `adar-deploy report`."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.console import err, print_facts, print_note
from adar_deploy.model_folders import find_folders
from adar_deploy.option_groups import with_groups
from adar_deploy.options import RunOption, parse_budgets
from adar_deploy.paths import bundle_first, graph_files, named_bundle
from adar_deploy.table_options import TableOptions


@with_groups
def report(
    *,
    model: Annotated[Path, typer.Argument(help="Folder of a training run or of a bundle, or pretrained.")],
    graphs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Graph to measure on (.npz or .pt), a table of nodes, or many graphs with one label each.",
            show_default="the graph of the run",
            readable=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page to write: one .html file.", show_default="report.html"),
    ] = None,
    budgets: Annotated[str, typer.Option(help="Step budgets, comma-separated.")] = "8,50,300",
    run: RunOption = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            help="Bundle that was exported from the run; not used if its weights differ.",
            show_default="bundle",
        ),
    ] = None,
    tables: TableOptions,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the content of the page as one JSON object.")
    ] = False,
) -> None:
    """Write one HTML page about a model: training, accuracy, stop step, agreement with PyTorch, latency.

    The page is one file without scripts and needs no network. It has a light, a dark and a print style.
    Results of train and export are read from their files; accuracy, alignment and latency are measured on
    the graph.

    Example: adar-deploy report bundle graph.npz -o report.html

    Example: adar-deploy report bundle nodes.csv --edges edges.csv

    Example: adar-deploy report runs/minesweeper --budgets 8,50
    """
    from adar_deploy.report.writing import measured_together, page_to_write, write_report

    page = page_to_write(output)
    sizes = parse_budgets("budgets", budgets)
    model, graphs = bundle_first(named_bundle(model), graphs or [])
    folders, files = find_folders(model, run, bundle), graph_files(graphs)
    tables.check(files)
    measured = None
    if files:
        encoding, note = folders.feature_encoding(), partial(print_note, to=err)
        read = {str(one): tables.read_all_for_model(one, folders.model, encoding, note) for one in files}
        measured = measured_together(read, title=", ".join(map(str, graphs)))
    facts = write_report(output, folders, measured, sizes)
    if as_json:
        typer.echo(json.dumps(facts | {"report": str(page)}))
        return
    found = {"run": folders.run, "bundle": folders.bundle, "graph": facts.get("graph", {}).get("file")}
    print_facts("report written", {name: value for name, value in found.items() if value} | {"page": page})
    for note in facts["notes"]:
        print_note(note)
