"""What `adar-deploy bench` measures: which sides, on which graphs, and how it is told."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_deploy.console import percent, print_note, print_rows
from adar_deploy.extras import present, require

if TYPE_CHECKING:
    from adar_runtime.benchmarking.sides import Case, Side, Timing
    from adar_runtime.bundle.manifest import Manifest

# In this order, since a narrow window has the first five in one line and the others in the next.
COLUMNS = ("calls", "same", "step ms p50", "p90", "p99", "run s p50", "p90", "PyTorch / it", "MB")
Progress = Callable[[Any], None]
BYTES_AN_EDGE, BYTES_A_FEATURE = 16, 8  # while a graph is drawn
SIDE = 8  # of the board that a bundle is made for where none is given: proving it is quick on a small one


def make_bundle(folder: Path, on_progress: Progress = lambda _: None) -> tuple[Path, Path]:
    """A bundle of random weights, and its run: what a step costs does not depend on what was learned."""
    require("export")
    from adar_export import export_bundle
    from adar_runtime.graph.synthetic import minesweeper
    from adar_train import ModelConfig
    from adar_train.untrained import trial_run

    graph = minesweeper(side=SIDE)
    run = trial_run(folder / "run", graph, ModelConfig(graph.width, targets=2), "minesweeper")
    export_bundle(run, folder / "bundle", steps=(1, 10), on_progress=on_progress)
    return folder / "bundle", run.path


def find_run(runs: Path, manifest: "Manifest", given: Path | None, notes: list[str]) -> Path | None:
    """The run that PyTorch's side needs; None, with a note, where there is none."""
    if not present("train"):
        notes.append("PyTorch is not installed, so that there is nothing to compare with")
        return None
    from adar_runtime.errors import RunFolderError
    from adar_train import runs as training_runs

    weights = manifest.training.get("weights")
    try:
        return training_runs.find_run(runs, weights if isinstance(weights, str) else None, given).path
    except RunFolderError as error:
        if given is not None:
            raise
        notes.append(f"PyTorch is left out: {error}")
        return None


def in_precisions(
    bundle: Path,
    own: str,
    wanted: Sequence[str],
    run: Path | None,
    folder: Path,
    on_progress: Progress = lambda _: None,
) -> dict[str, Path]:
    """A bundle for each precision: the given one, and others exported from its run."""
    from adar_runtime.errors import UsageError

    found = {}
    for precision in wanted or [own]:
        if precision == own:
            found[precision] = bundle
            continue
        if run is None:
            raise UsageError(f"the bundle is {own}: to measure {precision} too, name its run with --run")
        require("export")
        from adar_export import export_bundle
        from adar_train.runs import load_run

        export_bundle(
            load_run(run), folder / precision, precision=precision, steps=(1, 10), on_progress=on_progress
        )
        found[precision] = folder / precision
    return found


def sides(
    bundles: dict[str, Path],
    run: Path | None,
    backends: Sequence[str],
    solvers: Sequence[str],
    threads: list[int],
    *,
    trusted: bool = False,
) -> "list[Side]":
    """Every combination; PyTorch's side has neither solver nor precision to choose."""
    from adar_runtime.backends import TENSORRT
    from adar_runtime.benchmarking.sides import PYTORCH, Side, runtime_turn

    found = [
        Side(runtime_turn, bundle, backend, solver, count, precision, trusted and backend == TENSORRT)
        for precision, bundle in bundles.items()
        for backend in backends
        for solver in solvers
        for count in threads
    ]
    if run is not None:
        from adar_train.benchmark import torch_turn

        found += [Side(torch_turn, run, PYTORCH, "euler", count, "fp32") for count in threads]
    return found


def solvers_of(manifest: "Manifest") -> list[str]:
    """Those that come to the answer of many steps with this bundle."""
    from adar_runtime.bundle.bundle import usable_solvers

    return usable_solvers(manifest)


def generated_cases(manifest: "Manifest", nodes: list[int], degrees: list[int], folder: Path) -> "list[Case]":
    """Graphs of every size, that the bundle takes."""
    from adar_runtime import write_graph
    from adar_runtime.benchmarking.graphs import graph_for, near_edges
    from adar_runtime.benchmarking.sides import Case
    from adar_runtime.errors import UsageError
    from adar_runtime.graph.limits import max_bytes

    cases = []
    for count in nodes:
        for degree in degrees:
            needed = count * (degree * BYTES_AN_EDGE + manifest.features * BYTES_A_FEATURE)
            if needed > max_bytes():
                raise UsageError(
                    f"{count:,} nodes would take {needed:,} bytes: choose fewer, or set ADAR_MAX_BYTES"
                )
            path = folder / f"{count}-{degree}.npz"
            graph = graph_for(manifest, count, near_edges(count, degree))
            write_graph(path, graph)
            cases.append(Case("generated", path, graph.nodes, graph.edges))
    return cases


def case_of(path: Path) -> "Case":
    """A graph of one's own."""
    from adar_runtime import read_graph
    from adar_runtime.benchmarking.sides import Case

    graph = read_graph(path)
    return Case(path.name, path.absolute(), graph.nodes, graph.edges)


def environment() -> dict[str, Any]:
    """What a time cannot be compared without."""
    import platform
    from importlib.metadata import version

    import onnxruntime

    found: dict[str, Any] = {"cores": all_cores(), "python": platform.python_version()}
    found["onnxruntime"] = onnxruntime.__version__
    if present("train"):
        found["torch"] = version("torch")
    return found


def note_if_busy(notes: list[str]) -> None:
    """Threads that wait for a core tell of others' work: more so PyTorch's, which wait for each other."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > all_cores():
        notes.append(f"others keep this machine busy (load {load:.0f}): --threads 1 compares most fairly")


def all_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def show(timings: "Sequence[Timing]") -> None:
    """A table a graph."""
    for case in dict.fromkeys(one.case for one in timings):
        mine = [one for one in timings if one.case == case]
        rows = [_row(one) for one in mine if not one.problem]
        title = f"{case.name}: {case.nodes:,} nodes, {case.edges:,} edges"
        print_rows([title, *COLUMNS], rows)
    for label, problem in dict.fromkeys((one.side.label, one.problem) for one in timings if one.problem):
        print_note(f"{label} was not measured: {problem}")


def _row(one: "Timing") -> tuple[Any, ...]:
    from adar_runtime.benchmarking.race import spread
    from adar_runtime.benchmarking.sides import quantiles

    steps = [f"{1e3 * value:.2f}" for value in quantiles(one.steps).values()]
    runs = [f"{value:.3f}" for value in quantiles(one.runs).values()][:2]  # the 99th of a few is the worst
    speedup = "" if one.speedup is None else spread(one.speedup, 1)
    peak = f"{one.peak / 1e6:.0f}"
    return (one.side.label, one.calls, percent(one.same or 0.0), *steps, *runs, speedup, peak)
