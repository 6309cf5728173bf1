"""The command `adar-deploy bench`."""

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy import benchmark
from adar_deploy.bundle_output import EXPORT_CHECKS
from adar_deploy.console import WIDE, Bar, err, print_facts, print_note
from adar_deploy.environment import available_cores, check_plot, environment, import_early, import_matplotlib
from adar_deploy.model_folders import find_run
from adar_deploy.option_groups import OptionGroup, with_groups
from adar_deploy.options import (
    Backend,
    CudaDevice,
    Json,
    MaxSteps,
    PrecisionName,
    RunOption,
    SolverName,
    is_typed,
    parse_numbers,
)
from adar_deploy.paths import bundle_first, check_output, named_bundle
from adar_deploy.table_options import TableOptions

if TYPE_CHECKING:
    from adar_runtime.benchmarking.sides import Case, Side, Timing
    from adar_runtime.bundle.manifest import Manifest


@dataclass(frozen=True)
class GeneratedOptions(OptionGroup):
    """The graphs that are generated if no graph is given."""

    nodes: Annotated[str, typer.Option(help="Numbers of nodes of the generated graphs, comma-separated.")] = (
        "1000,4000"
    )
    degree: Annotated[str, typer.Option(help="Average degrees of the generated graphs, comma-separated.")] = (
        "4,16"
    )

    def sizes(self) -> tuple[list[int], list[int]]:
        """The numbers of nodes, and the average degrees."""
        return parse_numbers("nodes", self.nodes, 1), parse_numbers("degree", self.degree, 1)


@dataclass(frozen=True)
class SideOptions(OptionGroup):
    """The configurations that are compared."""

    backend: Annotated[
        list[Backend] | None,
        typer.Option(help="Backend (repeatable).", show_default="all that work on this machine"),
    ] = None
    solver: Annotated[
        list[SolverName] | None,
        typer.Option(help="Solver (repeatable).", show_default="euler, auto and those that export measured"),
    ] = None
    precision: Annotated[
        list[PrecisionName] | None,
        typer.Option(
            help="Precision (repeatable); others than the bundle's are exported from the run.",
            show_default="the bundle's",
        ),
    ] = None
    threads: Annotated[
        str | None, typer.Option(help="Numbers of threads, comma-separated.", show_default="one per core")
    ] = None
    device: CudaDevice = 0
    run: RunOption = None

    def thread_counts(self) -> list[int]:
        """The numbers of threads; by default one for each core."""
        return parse_numbers("threads", self.threads, 1) if self.threads else [available_cores()]


@with_groups
def bench(
    *,
    ctx: typer.Context,
    bundle: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of an exported bundle, or pretrained.",
            show_default="a small bundle with random weights",
        ),
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Argument(
            help="Graph file (.npz or .pt), or a table of nodes.", show_default="generated graphs"
        ),
    ] = None,
    tables: TableOptions,
    generated: GeneratedOptions,
    max_steps: MaxSteps = 50,
    compared: SideOptions,
    repeats: Annotated[
        int, typer.Option(min=1, help="Runs of each configuration, after one warm-up run.")
    ] = 5,
    plot: Annotated[
        Path | None, typer.Option(help="Plot time against nodes and edges: .png or .svg.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the time of a step and of a whole run, and compare with PyTorch if it is installed.

    Each combination of backend, solver, precision and number of threads runs in its own process. They take
    turns, so that other load on the machine affects all of them. 'speed-up over PyTorch' is the time of the
    PyTorch model with the same number of threads, divided by the time of the row: median and quartiles.

    Example: adar-deploy bench bundle graph.npz --threads 1,2 --plot speed.png

    Example: adar-deploy bench --nodes 1000,10000,100000 --precision fp32 --precision fp16
    """
    if plot:
        check_plot(plot)
        check_output(plot)
    if bundle is None:
        import_matplotlib()  # for the learning curve of its run
    if bundle is not None and graph is not None:
        bundle, (graph,) = bundle_first(bundle, [graph])
    if bundle is not None:
        bundle = named_bundle(bundle)
    tables.check([] if graph is None else [graph])
    sizes, degrees = generated.sizes()
    counts = compared.thread_counts()
    notes: list[str] = []
    if graph is not None and generated.changed():
        notes.append(f"no effect with a graph: {', '.join(f'--{name}' for name in generated.changed())}")
    if bundle is None:
        import_early("export", "torch_geometric.data")  # for the graph of its run
    else:
        import_early("export" if compared.precision else "train")
    with TemporaryDirectory() as name:
        folder = Path(name)
        bundle, manifest, sides = _prepare(
            bundle, compared, counts, folder, notes, trusted=is_typed(ctx, "backend")
        )
        if graph is None:
            cases = benchmark.generated_cases(manifest, sizes, degrees, folder)
        else:
            given = tables.read_for_model(graph, bundle, manifest.feature_encoding, notes.append)
            cases = [benchmark.case_of(graph, given, folder)]
        benchmark.note_if_busy(notes)
        timings = _measure(cases, sides, max_steps, repeats)
        benchmark.check_sides_not_replaced(bundle, manifest, sides)
    if plot:
        from adar_runtime.evaluation.plots import plot_speed

        plot_speed([one for one in timings if not one.problem], plot)
    if as_json:
        measured = {"notes": notes, "measured": [one.to_dict() for one in timings]}
        typer.echo(json.dumps(environment() | measured))
        return
    settings = {"step budget": max_steps, "runs": f"{repeats} per configuration"}
    print_facts("measured", settings | environment())
    benchmark.show(timings)
    for note in notes:
        print_note(note)
    if plot:
        print_facts("", {"plot": plot})


def _prepare(
    bundle: Path | None,
    options: SideOptions,
    counts: list[int],
    folder: Path,
    notes: list[str],
    *,
    trusted: bool,
) -> "tuple[Path, Manifest, list[Side]]":
    """The bundle, which is made if none is given, its manifest, and the configurations to compare."""
    from adar_runtime.backends import available
    from adar_runtime.bundle.reading import read_manifest

    run, precisions = options.run, options.precision or []
    with Bar("prepare", EXPORT_CHECKS * (1 + len(precisions))) as bar:
        done = 0

        def show(_: object) -> None:
            nonlocal done
            done += 1
            bar.update(done, "exporting")

        if bundle is None:
            bundle, run = benchmark.make_bundle(folder, show)
        manifest = read_manifest(bundle)
        found = find_run(bundle, manifest, run, notes)
        bundles = benchmark.bundles_by_precision(bundle, manifest.precision, precisions, found, folder, show)
    sides = benchmark.configurations(
        bundles,
        found,
        [str(name) for name in options.backend or available()],
        [str(name) for name in options.solver or benchmark.default_solvers(manifest)],
        counts,
        trusted=trusted,
        device=options.device,
    )
    return bundle, manifest, sides


def _measure(cases: "list[Case]", sides: "list[Side]", budget: int, repeats: int) -> "list[Timing]":
    """Measure, with a bar that counts a large graph as more work."""
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
