"""The work of `adar-deploy bench`: which configurations are measured on which graphs, and the tables."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_deploy import model_folders
from adar_deploy.console import print_note, print_rows
from adar_deploy.environment import available_cores, require
from adar_deploy.formatting import percent

if TYPE_CHECKING:
    from adar_runtime.benchmarking.sides import Case, Side, Timing
    from adar_runtime.bundle.manifest import Manifest
    from adar_runtime.graph import Graph

# The order matters: a narrow terminal shows the first five in one line and the others in the next.
COLUMNS = (
    "cell calls",
    "same predictions",
    "ms per step p50",
    "p90",
    "p99",
    "s per run p50",
    "p90",
    "speed-up over PyTorch",
    "MB",
)
OnProgress = Callable[[Any], None]
BYTES_PER_EDGE, BYTES_PER_FEATURE = 16, 8  # while a graph is generated
BOARD_SIDE = 8  # of the minesweeper board behind the default bundle: small, so that the export is quick
EXPORT_STEPS = (1, 10)  # steps over which a bundle made for the benchmark is compared with PyTorch


def make_bundle(folder: Path, on_progress: OnProgress = lambda _: None) -> tuple[Path, Path]:
    """A bundle with random weights, and its run. The time of a step does not depend on the weights."""
    require("export")
    from adar_export import export_bundle
    from adar_runtime.graph.synthetic import minesweeper
    from adar_train import ModelConfig
    from adar_train.untrained import trial_run

    graph = minesweeper(side=BOARD_SIDE)
    run = trial_run(folder / "run", graph, ModelConfig(graph.width, targets=2), "minesweeper")
    export_bundle(run, folder / "bundle", steps=EXPORT_STEPS, on_progress=on_progress)
    return folder / "bundle", run.path


def bundles_by_precision(
    bundle: Path,
    own: str,
    requested: Sequence[str],
    run: Path | None,
    folder: Path,
    on_progress: OnProgress = lambda _: None,
) -> dict[str, Path]:
    """A bundle for each precision: the given one, and others that are exported from its run."""
    from adar_runtime.errors import UsageError

    bundles = {}
    for precision in requested or [own]:
        if precision == own:
            bundles[precision] = bundle
            continue
        if run is None:
            raise UsageError(f"the bundle is {own}: to measure {precision} too, name its run with --run")
        require("export")
        from adar_export import export_bundle
        from adar_train.runs import load_run

        bundles[precision] = folder / precision
        export_bundle(
            load_run(run),
            bundles[precision],
            precision=precision,
            steps=EXPORT_STEPS,
            on_progress=on_progress,
        )
    return bundles


def default_solvers(manifest: "Manifest") -> list[str]:
    """The solvers to compare: the reference first, "auto" if a solver was proven, and the measured ones."""
    from adar_runtime.bundle.measured_solvers import usable_solvers
    from adar_runtime.loop.solvers import DEFAULT_SOLVER

    reference, *others = usable_solvers(manifest)
    return [reference, *([DEFAULT_SOLVER] if manifest.proof else []), *others]


def configurations(
    bundles: dict[str, Path],
    run: Path | None,
    backends: Sequence[str],
    solvers: Sequence[str],
    threads: list[int],
    *,
    trusted: bool = False,
    device: int = 0,
) -> "list[Side]":
    """Every combination of the choices. PyTorch has neither solver nor precision to choose."""
    from adar_runtime.backends import TENSORRT
    from adar_runtime.benchmarking.sides import PYTORCH, Side, runtime_turn

    found = [
        Side(runtime_turn, bundle, backend, solver, count, precision, trusted and backend == TENSORRT, device)
        for precision, bundle in bundles.items()
        for backend in backends
        for solver in solvers
        for count in threads
    ]
    if run is not None:
        from adar_train.benchmark import torch_turn

        found += [Side(torch_turn, run, PYTORCH, "euler", count, "fp32") for count in threads]
    return found


def check_sides_not_replaced(bundle: Path, manifest: "Manifest", sides: "Sequence[Side]") -> None:
    """Refuse a bundle or run that was replaced: each side opens it in its first turn, so they may differ."""
    from adar_runtime.benchmarking.sides import PYTORCH
    from adar_runtime.bundle.run_files import has_weights

    model_folders.check_not_replaced(bundle, manifest)
    weights = model_folders.weights_of(manifest)
    run = next((side.folder for side in sides if side.backend == PYTORCH), None)
    if run is not None and weights is not None and not has_weights(run, weights):
        raise model_folders.replaced(run)


def generated_cases(manifest: "Manifest", nodes: list[int], degrees: list[int], folder: Path) -> "list[Case]":
    """Random graphs of every size and degree, with the number of features that the bundle takes."""
    return [_generate(manifest, count, degree, folder) for count in nodes for degree in degrees]


def _generate(manifest: "Manifest", nodes: int, degree: int, folder: Path) -> "Case":
    from adar_runtime import write_graph
    from adar_runtime.benchmarking.graphs import graph_for, near_edges
    from adar_runtime.benchmarking.sides import Case
    from adar_runtime.errors import UsageError
    from adar_runtime.graph.limits import max_bytes

    needed = nodes * (degree * BYTES_PER_EDGE + manifest.features * BYTES_PER_FEATURE)
    if needed > max_bytes():
        raise UsageError(f"{nodes:,} nodes would take {needed:,} bytes: choose fewer, or set ADAR_MAX_BYTES")
    path = folder / f"{nodes}-{degree}.npz"
    graph = graph_for(manifest, nodes, near_edges(nodes, degree))
    write_graph(path, graph)
    return Case("generated", path, graph.nodes, graph.edges)


def case_of(path: Path, graph: "Graph", folder: Path) -> "Case":
    """A graph of the user. The processes of the benchmark read graph files, so that of a table is written."""
    from adar_runtime import write_graph
    from adar_runtime.benchmarking.sides import Case
    from adar_runtime.graph.formats import FORMATS

    file = path.absolute()
    if path.suffix not in FORMATS:
        file = folder / "tables.npz"
        write_graph(file, graph)
    return Case(path.name, file, graph.nodes, graph.edges)


def note_if_busy(notes: list[str]) -> None:
    """Add a note on a busy machine, which slows PyTorch more: its threads wait for each other."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > available_cores():
        notes.append(f"this machine is busy (load {load:.0f}): --threads 1 gives the fairest comparison")


def show(timings: "Sequence[Timing]") -> None:
    """Print a table for each graph."""
    for case in dict.fromkeys(one.case for one in timings):
        rows = [_row(one) for one in timings if one.case == case and not one.problem]
        print_rows([f"{case.name}: {case.nodes:,} nodes, {case.edges:,} edges", *COLUMNS], rows)
    captures = dict.fromkeys((one.side.label, str(one.capture)) for one in timings if one.capture is not None)
    for label, used in dict.fromkeys((one.side.label, one.gpu_bytes) for one in timings if one.gpu_bytes):
        print_note(f"{label}: {used / 1e6:,.0f} MB of GPU memory in use")
    for label, captured in captures:
        print_note(f"{label}: captured: {captured}")
    for label, problem in dict.fromkeys((one.side.label, one.problem) for one in timings if one.problem):
        print_note(f"{label} was not measured: {problem}")


def _row(one: "Timing") -> tuple[Any, ...]:
    from adar_runtime.benchmarking.race import spread
    from adar_runtime.benchmarking.sides import quantiles

    steps = [f"{1e3 * value:.2f}" for value in quantiles(one.steps).values()]
    runs = [f"{value:.3f}" for value in quantiles(one.runs).values()][:2]  # p99 of a few runs is the slowest
    speedup = "" if one.speedup is None else spread(one.speedup, 1)
    peak = f"{one.peak / 1e6:.0f}"
    return (one.side.label, one.calls, percent(one.same or 0.0), *steps, *runs, speedup, peak)
