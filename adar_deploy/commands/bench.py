"""The command `adar-deploy bench`."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy import speed
from adar_deploy.commands.export import ABOUT
from adar_deploy.commands.train import RUNS
from adar_deploy.console import WIDE, Bar, err, print_facts, print_note
from adar_deploy.numbers import parse_numbers
from adar_deploy.options import Backend, Json, MaxSteps, PrecisionName, SolverName, is_typed

if TYPE_CHECKING:
    from adar_runtime.benchmarking.sides import Case, Side, Timing


def bench(
    ctx: typer.Context,
    bundle: Annotated[
        Path | None,
        typer.Argument(help="Folder of an exported bundle.", show_default="a small one of random weights"),
    ] = None,
    graph: Annotated[
        Path | None, typer.Argument(help="Graph file (.npz or .pt).", show_default="generated ones")
    ] = None,
    nodes: Annotated[str, typer.Option(help="Sizes of generated graphs, with commas between.")] = "1000,4000",
    degree: Annotated[str, typer.Option(help="And their mean neighbours.")] = "4,16",
    max_steps: MaxSteps = 50,
    backend: Annotated[
        list[Backend] | None, typer.Option(help="What to run on (repeatable).", show_default="all that work")
    ] = None,
    solver: Annotated[
        list[SolverName] | None,
        typer.Option(help="Which solver (repeatable).", show_default="those measured for the bundle"),
    ] = None,
    precision: Annotated[
        list[PrecisionName] | None,
        typer.Option(help="Exported anew from the run (repeatable).", show_default="the bundle's"),
    ] = None,
    threads: Annotated[
        str | None, typer.Option(help="Numbers of threads, with commas between.", show_default="all cores")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="The run that it was exported from.", show_default="found in runs/ by its weights"),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each side, after one to warm up.")] = 5,
    plot: Annotated[
        Path | None, typer.Option(help="Draw time against nodes and edges: .png or .svg.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how long a step and a whole run take, beside PyTorch where it is there.

    Every backend, solver, precision and number of threads is a side with a process of its own; sides take
    turns, so that what else the machine does hits them all. 'PyTorch / it' is how many times as long the
    trained model takes in PyTorch on as many threads: median and quartiles over turns.

    Example: adar-deploy bench bundle graph.npz --threads 1,2 --plot speed.png

    Example: adar-deploy bench --nodes 1000,10000,100000 --precision fp32 --precision fp16
    """
    from adar_runtime.backends import available
    from adar_runtime.bundle.bundle import read_manifest
    from adar_runtime.evaluation.plots import check_drawable

    if plot:
        check_drawable(plot)
    sizes, degrees = parse_numbers("nodes", nodes, 1), parse_numbers("degree", degree, 1)
    counts = parse_numbers("threads", threads, 1) if threads else [speed.all_cores()]
    notes: list[str] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        with Bar("prepare", ABOUT * (1 + len(precision or []))) as bar:
            done = 0

            def show(_: object) -> None:
                nonlocal done
                done += 1
                bar.update(done, "exporting")

            if bundle is None:
                bundle, run = speed.make_bundle(folder, show)
            manifest = read_manifest(bundle)
            found = speed.find_run(RUNS, manifest, run, notes)
            bundles = speed.in_precisions(bundle, manifest.precision, precision or [], found, folder, show)
        sides = speed.sides(
            bundles,
            found,
            backend or available(),
            solver or speed.solvers_of(manifest),
            counts,
            trusted=is_typed(ctx, "backend"),
        )
        if graph is None:
            cases = speed.generated_cases(manifest, sizes, degrees, folder)
        else:
            cases = [speed.case_of(graph)]
        speed.note_if_busy(notes)
        timings = _measure(cases, sides, max_steps, repeats)
    if plot:
        from adar_runtime.evaluation.plots import plot_speed

        plot_speed([one for one in timings if not one.problem], plot)
    if as_json:
        typer.echo(
            json.dumps(speed.environment() | {"notes": notes, "measured": [one.to_dict() for one in timings]})
        )
        return
    print_facts("measured", {"budget": f"{max_steps} steps, {repeats} turns a side", **speed.environment()})
    speed.show(timings)
    for note in notes:
        print_note(note)
    if plot:
        print_facts("", {"plot": plot})


def _measure(cases: "list[Case]", sides: "list[Side]", budget: int, repeats: int) -> "list[Timing]":
    """With a bar that knows that a large graph takes longer."""
    from adar_runtime.benchmarking.sides import measure

    total = sum(case.nodes + case.edges for case in cases) * len(sides) * (repeats + 1)
    done = 0
    with Bar("bench", total, counted=False) as bar:

        def show(case: "Case", side: "Side") -> None:
            nonlocal done
            done += case.nodes + case.edges
            name = side.label if err.width >= WIDE else f"{side.backend} {side.solver}"
            bar.update(done, f"{case.nodes:,} nodes  {name}")

        return measure(cases, sides, budget, repeats, show)
