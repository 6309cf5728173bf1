"""The command `adar-deploy report`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.commands.inspect import readable
from adar_deploy.commands.train import RUNS
from adar_deploy.console import Bar, print_facts, print_note


def report(
    model: Annotated[Path, typer.Argument(help="Folder of a training run or of a bundle.")],
    graph: Annotated[
        Path | None,
        typer.Argument(help="Graph to measure on (.npz or .pt).", show_default="the run's own"),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The page: one .html file, nothing else needed.")
    ] = Path("report.html"),
    budgets: Annotated[str, typer.Option(help="Budgets to try, with commas between.")] = "8,50,300",
    run: Annotated[
        Path | None,
        typer.Option(help="The run that a bundle is from.", show_default="found in runs/ by its weights"),
    ] = None,
    bundle: Annotated[Path, typer.Option(help="The bundle that was exported from a run, if it was.")] = Path(
        "bundle"
    ),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what the page shows as one JSON object.")
    ] = False,
) -> None:
    """Write one page about a model: what it learned, when it stops, how fast and how true it is.

    The page is one file without scripts that needs no network: right in light, in dark and on paper. What
    was written down by train and export is read; accuracy, alignment and latency are measured on the graph.

    Example: adar-deploy report bundle graph.npz -o report.html

    Example: adar-deploy report runs/minesweeper --budgets 8,50
    """
    from adar_deploy.commands.evaluate import parse_budgets
    from adar_deploy.report.collect import collect
    from adar_deploy.report.measure import work
    from adar_deploy.report.page import page
    from adar_deploy.report.sources import find_sources
    from adar_runtime.errors import UsageError
    from adar_runtime.files import check_writable, write_file

    if output.suffix not in (".html", ".htm"):
        raise UsageError(f"{output}: a report is written as .html, not {output.suffix or 'nothing'!r}")
    check_writable(output)
    sizes = sorted(set(parse_budgets(budgets)))
    sources = find_sources(model, RUNS, run, bundle)
    with Bar("report", work(sources, sizes), counted=False) as bar:
        done = 0

        def show(what: str, calls: int) -> None:
            nonlocal done
            done += calls
            bar.update(done, what)

        facts = collect(sources, graph, sizes, show)
    with readable(sources.model):
        text = page(facts)
    write_file(output, text.encode())
    if as_json:
        typer.echo(json.dumps(facts | {"report": str(output)}))
        return
    found = {"run": sources.run, "bundle": sources.bundle, "graph": facts.get("graph", {}).get("file")}
    print_facts("reported", {name: value for name, value in found.items() if value} | {"page": output})
    for note in facts["notes"]:
        print_note(note)
