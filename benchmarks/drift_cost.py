"""The time that the comparison with the training data takes, beside the time of one cell call.

python -m benchmarks.drift_cost BUNDLE GRAPH
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from adar_runtime import load, read_graph
from adar_runtime.evaluation.drift import compare

REPEATS = 7


def seconds(work: Callable[[], object]) -> float:
    """The time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Print the median of each, measured in turns, and their ratio."""
    bundle, graph = load(Path(sys.argv[1])), read_graph(Path(sys.argv[2]))
    calls = 10
    rows = [
        (
            seconds(lambda: compare(bundle.manifest, graph)),
            seconds(lambda: bundle.run(graph, calls, bundle.stop_rule("final"))) / calls,
        )
        for _ in range(REPEATS)
    ]
    drift, call = (statistics.median(row[i] for row in rows) for i in (0, 1))
    print(f"{graph.nodes:,} nodes, {graph.width:,} features, {graph.edges:,} edges")
    print(f"drift {1e3 * drift:.1f} ms, cell call {1e3 * call:.1f} ms, ratio {drift / call:.2f}")


if __name__ == "__main__":
    main()
