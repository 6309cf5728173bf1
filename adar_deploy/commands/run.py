"""The command `adar-deploy run`."""

import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adar_deploy.answers import Answer, Failure, Job, Saver, show_answers
from adar_deploy.console import Bar, err, print_error, print_note
from adar_deploy.live_status import Watch
from adar_deploy.options import Backend, MaxSteps, SolverName, Threads, is_typed
from adar_deploy.paths import graph_files
from adar_deploy.signals import EXIT_USER_ERROR

if TYPE_CHECKING:
    from adar_runtime import AdarError, Graph


class Exit(StrEnum):
    peak = "peak"
    time = "time"
    converged = "converged"
    final = "final"


def run(
    ctx: typer.Context,
    graphs: Annotated[
        list[Path], typer.Argument(help="Graph files (.npz or .pt), or folders of them.", readable=False)
    ],
    bundle: Annotated[Path, typer.Option(help="Folder of an exported bundle.", readable=False)] = Path(
        "bundle"
    ),
    max_steps: MaxSteps = 300,
    exit: Annotated[
        Exit | None,
        typer.Option(help="When to stop, and which state to answer from.", show_default="the bundle's"),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Steps without a new peak before stopping.", show_default="the bundle's, or 10"),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(help="What may be left of the nodes' way (exit converged).", show_default="0.001"),
    ] = None,
    solver: Annotated[
        SolverName, typer.Option(help="ab2 and adaptive come to euler's answer with fewer calls.")
    ] = SolverName.euler,
    calls: Annotated[
        int | None,
        typer.Option(help="Cell calls for the whole time (ab2).", show_default="as the bundle was measured"),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Error of a step (adaptive).", show_default="as the bundle was measured"),
    ] = None,
    backend: Annotated[Backend, typer.Option(help="What to run on.")] = Backend.auto,
    threads: Threads = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build TensorRT engines again where they do not fit.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write predictions: .npz, .csv, .json or .parquet; {name} is a graph's."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the alignment against t: .png or .svg, {name} as above.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, a list for several graphs.")
    ] = False,
) -> None:
    """Run a bundle on graphs for at most a budget of steps.

    A graph among several that cannot be answered is reported, and the others are answered all the same.

    Exit codes: 0 all answered; 2 a mistake, or a graph without an answer; 130 Ctrl-C; 143 SIGTERM.

    Example: adar-deploy run graph.npz --max-steps 300 --output predictions.csv

    Example: adar-deploy run graphs/ --solver ab2 --output answers/{name}.csv
    """
    from adar_runtime import load
    from adar_runtime.errors import AdarError, UsageError

    if within is not None and exit is not Exit.converged:
        raise UsageError("--within says when the nodes have come to rest: it goes with --exit converged")
    files, several = graph_files(graphs), len(graphs) > 1 or graphs[0].is_dir()
    save = Saver.of(files, output, plot, several=several)
    trusted = backend is Backend.tensorrt and is_typed(ctx, "backend")
    opened = load(bundle, backend.value, threads, rebuild=rebuild, trust_engines=trusted)
    waiting = _given(patience=patience, tolerance=within)
    rule = opened.stop_rule(exit.value if exit else None, **waiting)
    job = Job(
        bundle=opened,
        budget=max_steps,
        rule=rule,
        solver=opened.solver(solver.value, **_given(calls=calls, tolerance=tolerance)),
    )
    if calls is not None and calls > max_steps and not quiet:
        steps = f"the budget of {max_steps:,} steps"
        print_note(f"--calls {calls:,} is above {steps}, which is the most that ab2 takes", to=err)
    answers: list[Answer | Failure] = []
    with Bar("run", len(files), counted=several, shown=not quiet) as bar:
        for index, (path, read) in enumerate(zip(files, _read_ahead(files), strict=True)):
            try:
                watch = Watch(bar, index, path.name if several else "", job.whole)
                answer = job.answer(path, read, watch)
                answers.append(save(index, answer))
            except AdarError as error:
                if not several:
                    raise
                answers.append(Failure(path, str(error)))
    _show(answers, several=several, quiet=quiet, as_json=as_json)
    if any(isinstance(one, Failure) for one in answers):
        raise typer.Exit(EXIT_USER_ERROR)


def _given(**settings: Any) -> dict[str, Any]:
    """What the user said; what was left out is the bundle's to say."""
    return {name: value for name, value in settings.items() if value is not None}


def _read_ahead(files: "list[Path]") -> "Iterator[Graph | AdarError]":
    """Each graph, or what is wrong with it, read while the one before is worked on."""
    from adar_runtime import AdarError, read_graph
    from adar_runtime.loop.prefetch import prefetch

    def read(path: Path) -> "Graph | AdarError":
        try:
            return read_graph(path)
        except AdarError as error:
            return error

    return prefetch(map(read, files))


def _show(answers: "list[Answer | Failure]", *, several: bool, quiet: bool, as_json: bool) -> None:
    for one in answers:
        if isinstance(one, Failure):
            print_error(one.message)
    if as_json:
        summaries = [one.summary() for one in answers]
        typer.echo(json.dumps(summaries if several else summaries[0]))
    elif not quiet:
        show_answers(answers, several=several)
