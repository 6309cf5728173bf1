"""Time of one step on several backends that run the same graph.

python -m benchmarks.backend_speed graph.npz onnxruntime-cpu:bundle openvino:bundle openvino:bundle-bf16

Each side is a backend and a bundle. Each has its own process, and the processes take turns. The ratio is the
time of the first side divided by the time of the other one in the same round: above 1, the other one is
faster. The table has the median and the quartiles of all rounds. On a busy machine, the seconds of the
processor say more than the seconds of the clock; the seconds of several threads include those that spin.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from adar_deploy.environment import environment
from adar_runtime import Final, load, read_graph
from adar_runtime.benchmarking.race import Turn, Worker, race, spread


def make_turn(side: str, graph: Path, threads: int, steps: int) -> Turn:
    """A turn: `steps` steps after one that is not timed. Its result: processor seconds, and the scores."""
    backend, _, bundle = side.partition(":")
    opened, read = load(bundle, backend, threads=threads), read_graph(graph)

    def turn() -> tuple[float, Any]:
        loop = opened.loop(read, steps + 1, Final(), "euler")
        next(loop)  # the untouched input
        next(loop)
        clock, processor = time.perf_counter(), time.process_time()
        for _ in loop:
            pass
        seconds, used = time.perf_counter() - clock, time.process_time() - processor
        return seconds, (used, loop.result().scores)

    return turn


def compare(options: argparse.Namespace, threads: int) -> None:
    """Print one row per side."""
    used: dict[str, list[float]] = {side: [] for side in options.sides}
    scores: dict[str, Any] = {}

    def keep(side: str, answer: Any) -> None:
        used[side].append(answer[0])
        scores[side] = answer[1]

    workers = {side: Worker(make_turn, side, options.graph, threads, options.steps) for side in options.sides}
    try:
        race(workers, 1)  # load and warm up
        seconds = race(workers, options.repeats, on_turn=keep)
    finally:
        for worker in workers.values():
            worker.end()
    first = options.sides[0]
    for side in options.sides:
        cells = [str(threads), side]
        for times in (seconds, used):
            ratios = np.array(times[first]) / np.array(times[side])
            cells += [spread(1e3 * np.array(times[side]) / options.steps, 1), spread(ratios, 2)]
        error = np.abs(scores[side] - scores[first]).max() / np.abs(scores[first]).max()
        print(f"| {' | '.join([*cells, f'{error:.0e}'])} |", flush=True)


def main() -> None:
    """Measure every number of threads and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graph", type=Path)
    parser.add_argument("sides", nargs="+", metavar="BACKEND:BUNDLE", help="the first one is the reference")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in environment().items()) + "\n")
    print("| threads | side | ms per step | ratio | processor ms per step | ratio | difference of scores |")
    print("|---|---|---|---|---|---|---|")
    for threads in map(int, options.threads.split(",")):
        compare(options, threads)


if __name__ == "__main__":
    main()
