"""Time and memory of a step for small and large graphs, and the estimate of the memory.

python -m benchmarks.growth bundle --picture benchmarks/pictures/growth.png

Two kinds of graph have the same mean degree. In "near", neighbours have close ids, as in a mesh. In "random",
every neighbour is a random memory access. Each graph runs in its own process, so that its peak memory is its
own. The graphs take turns. The largest graph has to fit into free memory.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import onnxruntime

from adar_runtime import Final, load
from adar_runtime.benchmarking.graphs import graph_for, near_edges
from adar_runtime.benchmarking.race import peak_bytes
from adar_runtime.bundle.memory import needed_bytes

KINDS = ("near", "random")
Found = dict[tuple[str, int, int], list[dict[str, float]]]
"""The figures of all turns, by kind, number of nodes and mean degree."""


def main() -> None:
    """Measure every size of every kind and print a table."""
    options = parse()
    if options.one:
        print(json.dumps(one(options)))
        return
    sizes = list(product(KINDS, numbers(options.nodes), numbers(options.degree)))
    sizes = [size for size in sizes if size[1] * size[2] <= options.most_edges]
    found: Found = {size: [] for size in sizes}
    for _ in range(options.repeats):
        for size in sizes:
            found[size].append(child(options, *size))
    print_table(options, found)
    if options.picture:
        draw(found, options.picture)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("bundle", help="folder of an exported bundle")
    parser.add_argument("--nodes", default="10000,100000,1000000", help="numbers of nodes, comma-separated")
    parser.add_argument("--degree", default="1,10,100", help="mean numbers of neighbours, comma-separated")
    parser.add_argument("--most-edges", type=int, default=10_000_000, help="leave out larger graphs")
    parser.add_argument("--steps", type=int, default=3, help="timed steps")
    parser.add_argument("--repeats", type=int, default=2, help="turns of each size")
    parser.add_argument("--threads", type=int, default=1, help="threads of ONNX Runtime")
    parser.add_argument("--picture", type=Path, help="file for a picture (.png)")
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)  # for the child process
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    """Numbers of a comma-separated list."""
    return [int(number) for number in text.split(",")]


def child(options: argparse.Namespace, kind: str, nodes: int, degree: int) -> dict[str, float]:
    """Measure one graph in its own process."""
    settings = {"degree": degree, "steps": options.steps, "threads": options.threads, "nodes": nodes}
    words = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "benchmarks.growth", options.bundle, *words, "--one", kind]
    return dict(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))


def one(options: argparse.Namespace) -> dict[str, float]:
    """Time and memory of one graph, after one warm-up step. Processor time is that of all threads."""
    bundle = load(options.bundle, "onnxruntime-cpu", options.threads)
    manifest, nodes = bundle.manifest, int(options.nodes)
    graph = graph_for(manifest, nodes, edges(options.one, nodes, int(options.degree)))
    before = resident_bytes()
    loop = bundle.loop(graph, options.steps + 1, Final(), "euler")
    next(loop), next(loop)
    started, processor = time.perf_counter(), time.process_time()
    for _ in loop:
        pass
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    result = loop.result()
    assert np.isfinite(result.scores).all()
    return {
        "edges": graph.edges,
        "prepare": result.timings["prepare"],
        "step": seconds / options.steps,
        "processor": processor / options.steps,
        "peak": peak_bytes() / 1e9,
        "estimated": (before + needed_bytes(graph, manifest)) / 1e9,
    }


def resident_bytes() -> int:
    """The memory of this process now. It has the graph, which the estimate does not count."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def edges(kind: str, nodes: int, degree: int) -> np.ndarray:
    """Random edges of this kind and mean degree."""
    if kind == "near":
        return near_edges(nodes, degree)
    return np.random.default_rng(1).integers(0, nodes, (2, nodes * degree))


def median(runs: list[dict[str, float]], name: str) -> float:
    """Median of one figure over all turns."""
    return float(np.median([run[name] for run in runs]))


def print_table(options: argparse.Namespace, found: Found) -> None:
    """Print the command, the versions and the table."""
    print(
        f"python -m benchmarks.growth {options.bundle} --nodes {options.nodes} --degree {options.degree} "
        f"--steps {options.steps} --repeats {options.repeats} --threads {options.threads}"
    )
    print(f"Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}, {platform.machine()}")
    print(
        "\n| graph | nodes | edges | preparation, s | step, s | CPU time of a step, s "
        "| the same, µs per node and edge | peak memory, GB | estimate, GB | estimate / peak |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (kind, nodes, _), runs in found.items():
        edge_count, processor = int(runs[0]["edges"]), median(runs, "processor")
        peak, estimate = max(run["peak"] for run in runs), runs[0]["estimated"]
        print(
            f"| {kind} | {nodes:,} | {edge_count:,} | {median(runs, 'prepare'):.2f} "
            f"| {median(runs, 'step'):.3f} | {processor:.3f} | {1e6 * processor / (nodes + edge_count):.2f} "
            f"| {peak:.2f} | {estimate:.2f} | {estimate / peak:.2f} |"
        )


def draw(found: Found, path: Path) -> None:
    """Two panels: time and memory against the number of edges, one line for each number of nodes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for nodes in dict.fromkeys(size[1] for size in found):
        runs = [turns for (kind, count, _), turns in found.items() if kind == "random" and count == nodes]
        sizes = [one[0]["edges"] for one in runs]
        label = f"{nodes:,} nodes"
        left.plot(sizes, [median(one, "processor") for one in runs], "o-", label=label)
        line = right.plot(sizes, [max(run["peak"] for run in one) for one in runs], "o-", label=label)
        right.plot(sizes, [one[0]["estimated"] for one in runs], "x--", color=line[0].get_color())
    right.plot([], [], "x--", color="grey", label="estimate")
    for panel, text in ((left, "CPU seconds per step"), (right, "peak memory, GB")):
        panel.set(xscale="log", yscale="log", xlabel="edges", ylabel=text)
        panel.grid(alpha=0.3)
        panel.legend(frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
