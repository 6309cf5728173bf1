"""The command `adar-deploy run`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adar_deploy.console import Bar, err, print_error, print_note, printable
from adar_deploy.inference import Failure, Inference, OutputFiles, Success, show_results
from adar_deploy.live_status import LiveStatus
from adar_deploy.options import (
    RULE_OPTIONS,
    SOLVER_OPTIONS,
    AllowUnknownModel,
    Backend,
    CudaDevice,
    ExitRule,
    MaxSteps,
    SolverName,
    Threads,
    is_typed,
    with_settings,
)
from adar_deploy.paths import graph_files, is_model
from adar_deploy.signals import EXIT_USER_ERROR
from adar_deploy.table_options import NO_TABLES, TableOptions, with_tables

if TYPE_CHECKING:
    from adar_runtime import AdarError, Graph

SOLVER, BACKEND = SolverName("auto"), Backend("auto")


@with_settings(RULE_OPTIONS, SOLVER_OPTIONS)
@with_tables
def run(
    ctx: typer.Context,
    graphs: Annotated[
        list[Path],
        typer.Argument(
            help="Graph files (.npz or .pt), folders of them, or a table of nodes. A bundle may come first.",
            readable=False,
        ),
    ],
    bundle: Annotated[
        Path,
        typer.Option(
            help="Folder of an exported bundle, a file of adar-deploy pack, or hf://OWNER/NAME.",
            readable=False,
        ),
    ] = Path("bundle"),
    max_steps: MaxSteps = 300,
    exit: Annotated[
        ExitRule | None,
        typer.Option(
            help="Stop rule: when to stop, and which step to predict from.", show_default="the bundle's"
        ),
    ] = None,
    solver: Annotated[
        SolverName,
        typer.Option(
            help="Solver. auto: the one with the fewest cell calls that export proved to give the "
            "predictions of 300 Euler steps, or euler. euler: the reference, one cell call per step."
        ),
    ] = SOLVER,
    backend: Annotated[Backend, typer.Option(help="Backend to run on.")] = BACKEND,
    threads: Threads = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Rebuild TensorRT engines that do not fit the graph or the GPU.")
    ] = False,
    allow_unknown_model: AllowUnknownModel = False,
    device: CudaDevice = 0,
    allow_tf32: Annotated[
        bool,
        typer.Option("--allow-tf32", help="Faster, less precise float32 products in ONNX Runtime on a GPU."),
    ] = False,
    cuda_graph: Annotated[
        bool,
        typer.Option(
            "--cuda-graph", help="Let ONNX Runtime capture the cell as a CUDA graph. Not yet tested on a GPU."
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write predictions: .npz, .csv, .json or .parquet. {name} stands for the graph's name.",
        ),
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option(
            help="Write these nodes only: a file with one node id per line, or row numbers if the graph has "
            "no ids.",
            readable=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Plot the alignment against t: .png or .svg. {name} as in --output."),
    ] = None,
    tables: TableOptions = NO_TABLES,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, or a list for several graphs.")
    ] = False,
    **settings: Any,
) -> None:
    """Run a bundle on graphs, with at most the given number of steps.

    With several graphs, a graph that fails is reported and the others are still processed.

    Exit codes: 0 success; 2 an error, or a graph that failed; 130 Ctrl-C; 143 SIGTERM; 129 SIGHUP.

    Example: adar-deploy run bundle graph.npz --max-steps 300 --output predictions.csv

    Example: adar-deploy run nodes.csv --edges edges.csv --output predictions.csv

    Example: adar-deploy run graphs/ --solver euler --output answers/{name}.csv
    """
    from adar_runtime import load
    from adar_runtime.backends import TENSORRT
    from adar_runtime.errors import AdarError, UsageError
    from adar_runtime.graph.formats.node_list import NodeList

    if nodes is not None and output is None:
        raise UsageError("--nodes chooses the rows of the file of predictions: add --output")
    chosen = None if nodes is None else NodeList.read(nodes)
    for_solver = SOLVER_OPTIONS.settings(str(solver), settings)
    bundle, graphs = _bundle_and_graphs(ctx, bundle, graphs)
    files, several = graph_files(graphs), len(graphs) > 1 or graphs[0].is_dir()
    tables.check(files)
    outputs = OutputFiles.plan(files, output, plot, several=several)
    trusted = backend == TENSORRT and is_typed(ctx, "backend")
    opened = load(
        bundle,
        str(backend),
        threads,
        rebuild=rebuild,
        trust_engines=trusted,
        allow_unknown_model=allow_unknown_model and is_typed(ctx, "allow_unknown_model"),
        device=device,
        allow_tf32=allow_tf32,
        cuda_graph=cuda_graph,
    )
    rule = opened.manifest.exit.get("rule") if exit is None else str(exit)
    inference = Inference(
        bundle=opened,
        budget=max_steps,
        rule=opened.stop_rule(rule, **RULE_OPTIONS.settings(rule, settings)),
        solver=opened.solver(str(solver), max_steps, **for_solver),
        nodes=chosen,
    )

    def read(path: Path) -> "Graph":
        encoding = opened.manifest.feature_encoding
        return tables.read_for_model(path, bundle, encoding, notes.append)

    calls = for_solver.get("calls", 0)
    if calls > max_steps >= 1 and not quiet:
        print_note(f"--calls {calls:,} exceeds --max-steps: at most {max_steps:,} calls are made", to=err)
    results: list[Success | Failure] = []
    notes: list[str] = []
    with Bar("run", len(files), counted=several, shown=not quiet) as bar:
        answers = inference.together(_prefetch(files, read))
        for index, (path, (graph, found)) in enumerate(zip(files, answers, strict=True)):
            try:
                if found is None:
                    status = LiveStatus(bar, index, path.name if several else "", inference.end_time)
                    done = inference.run(path, graph, status)
                else:
                    done = inference.answered(path, graph, found)
                    bar.update(index + 1, printable(path.name))
                results.append(outputs.save(index, done))
            except AdarError as error:
                if not several:
                    raise
                results.append(Failure(path, str(error)))
    for text in [] if quiet else notes:
        print_note(text, to=err)
    _show(results, several=several, quiet=quiet, as_json=as_json)
    if any(isinstance(one, Failure) for one in results):
        raise typer.Exit(EXIT_USER_ERROR)


def _bundle_and_graphs(ctx: typer.Context, bundle: Path, graphs: list[Path]) -> tuple[Path, list[Path]]:
    """The bundle and the graphs: a bundle among the graphs counts if no other is named."""
    from adar_runtime.errors import UsageError

    models = [path for path in graphs if is_model(path)]
    if not models:
        return bundle, graphs
    if len(models) > 1 or is_typed(ctx, "bundle"):
        raise UsageError(f"{models[-1]} is a model, not a graph: name one bundle, and then graphs")
    rest = [path for path in graphs if path != models[0]]
    if not rest:
        raise UsageError(f"{models[0]} is a model: name a graph to run it on")
    return models[0], rest


def _prefetch(files: "list[Path]", read: "Callable[[Path], Graph]") -> "Iterator[Graph | AdarError]":
    """Each graph, or its error, read while the graph before is processed."""
    from adar_runtime import AdarError
    from adar_runtime.loop.prefetch import prefetch

    def attempt(path: Path) -> "Graph | AdarError":
        try:
            return read(path)
        except AdarError as error:
            return error

    return prefetch(map(attempt, files))


def _show(results: "list[Success | Failure]", *, several: bool, quiet: bool, as_json: bool) -> None:
    for one in results:
        if isinstance(one, Failure):
            print_error(one.message)
    if as_json:
        summaries = [one.summary() for one in results]
        typer.echo(json.dumps(summaries if several else summaries[0]))
    elif not quiet:
        show_results(results, several=several)
