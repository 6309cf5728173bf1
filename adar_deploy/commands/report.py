"""The command `adar-deploy report`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.bundle_output import readable
from adar_deploy.console import Bar, print_facts, print_note
from adar_deploy.model_folders import find_folders
from adar_deploy.options import RunOption, parse_budgets
from adar_deploy.paths import bundle_first


def report(
    model: Annotated[Path, typer.Argument(help="Folder of a training run or of a bundle.")],
    graph: Annotated[
        Path | None,
        typer.Argument(help="Graph to measure on (.npz or .pt).", show_default="the graph of the run"),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write: one .html file.")] = Path(
        "report.html"
    ),
    budgets: Annotated[str, typer.Option(help="Step budgets, comma-separated.")] = "8,50,300",
    run: RunOption = None,
    bundle: Annotated[
        Path, typer.Option(help="Bundle that was exported from the run; ignored if its weights differ.")
    ] = Path("bundle"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the content of the page as one JSON object.")
    ] = False,
) -> None:
    """Write one HTML page about a model: training, accuracy, stop step, agreement with PyTorch, latency.

    The page is one file without scripts and needs no network. It has a light, a dark and a print style.
    Results of train and export are read from their files; accuracy, alignment and latency are measured on
    the graph.

    Example: adar-deploy report bundle graph.npz -o report.html

    Example: adar-deploy report runs/minesweeper --budgets 8,50
    """
    from adar_deploy.report.facts import collect
    from adar_deploy.report.measure import estimated_calls
    from adar_deploy.report.page import page
    from adar_runtime.errors import UsageError
    from adar_runtime.files import check_writable, write_file

    if output.suffix not in (".html", ".htm"):
        raise UsageError(f"{output}: a report is written as .html, not {output.suffix or 'nothing'!r}")
    check_writable(output)
    if graph is not None:
        model, (graph,) = bundle_first(model, [graph])
    sizes = sorted(set(parse_budgets("budgets", budgets)))
    folders = find_folders(model, run, bundle)
    with Bar("report", estimated_calls(folders, sizes), counted=False) as bar:
        done = 0

        def show(what: str, calls: int) -> None:
            nonlocal done
            done += calls
            bar.update(done, what)

        with readable(folders.model):
            facts = collect(folders, graph, sizes, show)
    with readable(folders.model):
        text = page(facts)
    write_file(output, text.encode())
    if as_json:
        typer.echo(json.dumps(facts | {"report": str(output)}))
        return
    found = {"run": folders.run, "bundle": folders.bundle, "graph": facts.get("graph", {}).get("file")}
    print_facts("report written", {name: value for name, value in found.items() if value} | {"page": output})
    for note in facts["notes"]:
        print_note(note)
