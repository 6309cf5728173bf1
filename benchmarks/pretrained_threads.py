"""The closed-form start of the pretrained model with one thread of numpy's BLAS against several.

    python -m benchmarks.pretrained_threads more/acm.npz coauthor-cs.npz --busy 2

Five labels of each class are known. The two sides take turns. Each line has the median seconds and processor
seconds of a side, and their ratio to one thread with the range over the repeats. --busy starts processes that
compute at the same time, as other containers of a machine do.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
from threadpoolctl import ThreadpoolController

from adar_runtime import Graph, read_graph
from adar_runtime.in_context.start import start
from benchmarks.pretrained import few_labels

COLUMNS, LABELS = 64, 5
LIMIT = ThreadpoolController.limit


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("graphs", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the other side")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--busy", type=int, default=0, help="processes that compute at the same time")
    given = parser.parse_args()
    with _busy(given.busy):
        for path in given.graphs:
            graph = few_labels(read_graph(path), LABELS, 0)
            sides = 1, given.threads
            turns = [[_seconds(graph, side) for side in sides] for _ in range(given.repeats)]
            found = np.array(turns)  # [repeats, sides, (seconds, processor seconds)]
            for number, side in enumerate(sides):
                wall, cpu = np.median(found[:, number], axis=0)
                ratio = found[:, number] / found[:, 0]
                spans = [f"{np.median(one):.1f} [{one.min():.1f}, {one.max():.1f}]" for one in ratio.T]
                print(
                    f"{path.stem}, {graph.nodes:,} nodes, {side} threads: {wall:.2f} s ({spans[0]}), "
                    f"{cpu:.2f} processor s ({spans[1]})"
                )


def _seconds(graph: Graph, threads: int) -> tuple[float, float]:
    limits = {"limits": threads, "user_api": "blas"}
    with patch.object(ThreadpoolController, "limit", lambda self, **_: LIMIT(self, **limits)):
        began = time.perf_counter(), time.process_time()
        start(graph, COLUMNS)
        return time.perf_counter() - began[0], time.process_time() - began[1]


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Keep so many processes busy."""
    others = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.terminate()
            other.join()


def _compute() -> None:
    while True:
        sum(range(10_000))


if __name__ == "__main__":
    main()
