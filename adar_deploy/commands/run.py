"""The command `adar-deploy run`."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from adar_deploy.console import Bar, percent, print_facts


class Exit(StrEnum):
    peak = "peak"
    time = "time"
    final = "final"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def run(
    graph: Annotated[Path, typer.Argument(help="A .npz or .pt graph file.")],
    bundle: Annotated[Path, typer.Option(help="Folder of an exported bundle.")] = Path("bundle"),
    max_steps: Annotated[int, typer.Option(help="Budget: the most steps to take.")] = 300,
    exit: Annotated[
        Exit | None,
        typer.Option(help="Stop at the alignment's peak, or at the end.", show_default="the bundle's"),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Steps without a new peak before stopping.", show_default="the bundle's"),
    ] = None,
    device: Annotated[Device, typer.Option(help="What to run on.")] = Device.auto,
    output: Annotated[Path | None, typer.Option(help="Write predictions: .npz, .csv or .json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Run a bundle on a graph for at most a budget of steps.

    Example: adar-deploy run graph.npz --max-steps 300 --output predictions.csv
    """
    from adar_runtime import load, read_graph
    from adar_runtime.errors import UsageError
    from adar_runtime.files import check_writable, write_file
    from adar_runtime.formats import prediction_writer
    from adar_runtime.metrics import metric_name, split_metrics

    write = prediction_writer(output) if output else None
    if output:
        check_writable(output)
    opened = load(bundle, device.value)
    loaded = read_graph(graph)
    if output and output.exists() and output.samefile(graph):
        raise UsageError(f"{output} is the graph itself: choose another --output")
    settings = {} if patience is None else {"patience": patience}
    rule = opened.stop_rule(exit.value if exit else None, **settings)
    loop = opened.loop(loaded, max_steps, rule)
    with Bar("run", max_steps) as bar:
        for step in loop:
            bar.update(step.index, f"t {step.time:.2f}  alignment {step.alignment:.4g}")
    result = loop.result()
    if output and write:
        write_file(output, write(result.predictions, result.probabilities))

    name = metric_name(result.scores.shape[1], regression=result.regression)
    metrics = split_metrics(loaded, result.scores, opened.split_for(loaded))
    if as_json:
        summary: dict[str, Any] = {
            "nodes": loaded.nodes,
            "classes": result.scores.shape[1],
            "max_steps": result.budget,
            "steps": result.steps,
            "cell_calls": result.cell_calls,
            "best_step": result.best_step,
            "stop_reason": result.stop_reason.name.lower(),
            "backend": result.backend,
            "seconds": result.seconds,
            "alignment": result.alignment,
            "metrics": {"metric": name, **metrics} if metrics else {},
        }
        typer.echo(json.dumps(summary))
        return
    facts = {
        "nodes, edges": f"{loaded.nodes:,}, {loaded.edges:,}",
        "steps": f"{result.steps} of {result.budget}",
        "stopped because": result.stop_reason.value,
        "best step": f"{result.best_step} (t = {result.best_step / result.budget:.2f})",
        "backend": result.backend,
        "time": f"{result.seconds:.2f} s",
        **{f"{part} {name}": percent(value) for part, value in metrics.items()},
    }
    if output:
        facts["predictions"] = str(output)
    print_facts("answered", facts)
