"""Time per edge and peak memory of large graphs, compared with a small graph.

python -m benchmarks.scale bundle --nodes 10000,1000000 --degree 10 --steps 5 --threads 2

Two kinds of graph have the same mean degree. In "near", neighbours have close ids, as in a mesh. In "random",
every neighbour is a random memory access. Each size runs in its own process, so that its peak memory is its
own. The sizes take turns. The largest graph has to fit into free memory.
"""

import argparse
import json
import platform
import subprocess
import sys
import time

import numpy as np
import onnxruntime

from adar_runtime import Final, load
from adar_runtime.benchmarking.graphs import graph_for, near_edges
from adar_runtime.benchmarking.race import peak_bytes
from adar_runtime.bundle.memory import needed_bytes

KINDS = ("near", "random")


def main() -> None:
    """Measure every size of every kind and print a table."""
    options = parse()
    if options.one:
        print(json.dumps(one(options)))
        return
    sizes = [int(nodes) for nodes in options.nodes.split(",")]
    print(
        f"python -m benchmarks.scale {options.bundle} --nodes {options.nodes} --degree {options.degree} "
        f"--steps {options.steps} --repeats {options.repeats} --threads {options.threads}"
    )
    print(
        f"Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}, {platform.machine()}\n"
    )
    print(
        "| graph | nodes | edges | preparation, s | ns per edge and step | relative to the first size "
        "| peak memory, GB | estimated memory, GB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for kind in KINDS:
        found = [[child(options, kind, nodes) for nodes in sizes] for _ in range(options.repeats)]
        for index, nodes in enumerate(sizes):
            runs = [turn[index] for turn in found]
            ratio = [turn[index]["nanoseconds"] / turn[0]["nanoseconds"] for turn in found]
            print(
                f"| {kind} | {nodes:,} | {int(runs[0]['edges']):,} | {median(runs, 'prepare'):.2f} "
                f"| {median(runs, 'nanoseconds'):.0f} | {np.median(ratio):.2f} "
                f"| {max(run['peak'] for run in runs):.2f} | {runs[0]['estimated']:.2f} |"
            )


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("bundle", help="folder of an exported bundle")
    parser.add_argument("--nodes", default="10000,1000000", help="numbers of nodes, comma-separated")
    parser.add_argument("--degree", type=int, default=10, help="mean number of neighbours")
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--repeats", type=int, default=1, help="turns of each size")
    parser.add_argument("--threads", type=int, default=2, help="threads of ONNX Runtime")
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)  # for the child process
    return parser.parse_args()


def child(options: argparse.Namespace, kind: str, nodes: int) -> dict[str, float]:
    """Measure one graph in its own process."""
    settings = {"degree": options.degree, "steps": options.steps, "threads": options.threads, "nodes": nodes}
    words = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "benchmarks.scale", options.bundle, *words, "--one", kind]
    return dict(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))


def one(options: argparse.Namespace) -> dict[str, float]:
    """Time and memory of one graph, after one warm-up step."""
    bundle = load(options.bundle, "onnxruntime-cpu", options.threads)
    manifest, nodes = bundle.manifest, int(options.nodes)
    graph = graph_for(manifest, nodes, edges(options.one, nodes, options.degree))
    before = peak_bytes()
    loop = bundle.loop(graph, options.steps + 1, Final(), "euler")
    next(loop), next(loop)
    started = time.perf_counter()
    for _ in loop:
        pass
    seconds = time.perf_counter() - started
    result = loop.result()
    assert np.isfinite(result.scores).all()
    return {
        "edges": graph.edges,
        "prepare": result.timings["prepare"],
        "nanoseconds": 1e9 * seconds / options.steps / graph.edges,
        "peak": peak_bytes() / 1e9,
        "estimated": (before + needed_bytes(graph, manifest)) / 1e9,
    }


def edges(kind: str, nodes: int, degree: int) -> np.ndarray:
    """Random edges of this kind and mean degree."""
    if kind == "near":
        return near_edges(nodes, degree)
    return np.random.default_rng(1).integers(0, nodes, (2, nodes * degree))


def median(runs: list[dict[str, float]], name: str) -> float:
    """Median of one figure over all turns."""
    return float(np.median([run[name] for run in runs]))


if __name__ == "__main__":
    main()
