"""Overhead of the loop: bundle.loop compared with a bare loop over ONNX Runtime's call of the cell.

python -m benchmarks.loop_overhead bundle --sides 10,100 --steps 100 --repeats 7 --threads 1

The graph is a square grid with eight neighbours per node and random features. The bare side only calls the
cell, with the bindings of the loop. The sides take turns. Their difference is small compared with noise on
a shared machine, so a stopwatch around each cell call also measures the time outside the cell directly.
"""

import argparse
import platform
import time
from itertools import cycle, islice
from typing import Any

import numpy as np
import onnxruntime

from adar_runtime import Bundle, Final, Graph, Loop, load
from adar_runtime.backends.onnxruntime.recurrence import OnnxRecurrence
from adar_runtime.benchmarking.graphs import graph_for
from adar_runtime.graph.synthetic import grid_edges


class Stopwatch:
    """A session that records the time of each call."""

    def __init__(self, session: Any) -> None:
        self.session: Any = session
        self.seconds: list[float] = []

    def run_with_iobinding(self, binding: Any) -> None:
        """Call the session and record the time."""
        started = time.perf_counter()
        self.session.run_with_iobinding(binding)
        self.seconds.append(time.perf_counter() - started)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


def main() -> None:
    """Measure every size and print a table."""
    options = parse()
    bundle = load(options.bundle, "onnxruntime-cpu", options.threads)
    print(
        f"python -m benchmarks.loop_overhead {options.bundle} --sides {options.sides} "
        f"--steps {options.steps} --repeats {options.repeats} --threads {options.threads}"
    )
    print(
        f"Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}, {platform.machine()}\n"
    )
    print(
        "| nodes | bare, µs per step | loop, µs per step | loop / bare | outside the cell, µs per step "
        "| share of the step |"
    )
    print("|---|---|---|---|---|---|")
    for side in map(int, options.sides.split(",")):
        graph = graph_for(bundle.manifest, side**2, grid_edges(side))
        print_row(graph.nodes, race(bundle, graph, options.steps, options.repeats))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("bundle", help="folder of an exported bundle")
    parser.add_argument("--sides", default="10,100", help="nodes along one side of the grid, comma-separated")
    parser.add_argument("--steps", type=int, default=100, help="steps per turn")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each side")
    parser.add_argument("--threads", type=int, default=1, help="threads of ONNX Runtime")
    return parser.parse_args()


def race(bundle: Bundle, graph: Graph, steps: int, repeats: int) -> dict[str, list[float]]:
    """Median seconds per step of each turn, after one warm-up turn."""
    seconds: dict[str, list[float]] = {"bare": [], "loop": [], "outside": []}
    for repeat in range(repeats + 1):
        loop = bundle.loop(graph, steps, Final(), "euler")
        next(loop)  # the input state takes no cell call
        looped, outside = time_loop(loop)
        bare = time_bare(loop, steps)
        if repeat:
            for name, value in (("bare", bare), ("loop", looped), ("outside", outside)):
                seconds[name].append(value)
    return seconds


def time_loop(loop: Loop) -> tuple[float, float]:
    """Median seconds per step: in total, and outside the cell."""
    recurrence = loop.recurrence
    assert isinstance(recurrence, OnnxRecurrence)
    watch = recurrence._cell = Stopwatch(recurrence._cell)
    steps, started = [], time.perf_counter()
    for _ in loop:
        steps.append(time.perf_counter() - started)
        started = time.perf_counter()
    return float(np.median(steps)), float(np.median(np.subtract(steps, watch.seconds)))


def time_bare(loop: Loop, steps: int) -> float:
    """Median seconds per step of the bare loop, with the bindings of the loop."""
    recurrence = loop.recurrence
    assert isinstance(recurrence, OnnxRecurrence)
    watch = Stopwatch(recurrence._cell.session)
    for binding in islice(cycle(recurrence._bindings.values()), steps):
        watch.run_with_iobinding(binding)
    return float(np.median(watch.seconds))


def print_row(nodes: int, seconds: dict[str, list[float]]) -> None:
    """Print medians, and quartiles of the ratio."""
    bare, loop, outside = (np.array(seconds[name]) for name in ("bare", "loop", "outside"))
    low, middle, high = np.quantile(loop / bare, [0.25, 0.5, 0.75])
    print(
        f"| {nodes:,} | {1e6 * np.median(bare):,.0f} | {1e6 * np.median(loop):,.0f} "
        f"| {middle:.3f} [{low:.3f}, {high:.3f}] | {1e6 * np.median(outside):.0f} "
        f"| {100 * np.median(outside / loop):.2f} % |"
    )


if __name__ == "__main__":
    main()
