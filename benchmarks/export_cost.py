"""Time and peak memory of an export.

The run is a synthetic Minesweeper board (side 224: 50,176 nodes, 399,620 edges) and a model with non-zero
velocities. The model is not trained: training changes only the weights, not the cost of the export.

    python -m benchmarks.export_cost --side 224
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from adar_export import export_bundle
from adar_runtime.benchmarking.race import peak_bytes
from adar_runtime.graph.synthetic import minesweeper
from adar_train import ModelConfig
from adar_train.untrained import trial_run


def main() -> None:
    """Create the run, export it and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=224, help="cells along one side of the board")
    parser.add_argument("--hidden", type=int, default=64, help="hidden width d")
    parser.add_argument("--precision", default="fp32")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        graph = minesweeper(options.side)
        config = ModelConfig(graph.width, 2, options.hidden)
        run = trial_run(Path(folder) / "run", graph, config, "minesweeper")
        before = peak_bytes()
        began, worked = time.perf_counter(), time.process_time()
        export_bundle(run, Path(folder) / "bundle", precision=options.precision)
        seconds, work = time.perf_counter() - began, time.process_time() - worked
    print(f"python -m benchmarks.export_cost --side {options.side} --hidden {options.hidden}")
    size = f"{graph.nodes:,} nodes, {graph.edges:,} edges"
    print(f"\n{size}, {options.precision}, {torch.get_num_threads()} threads\n")
    print("| seconds | CPU seconds | peak memory, MB | peak memory before the export, MB |")
    print("|---|---|---|---|")
    print(f"| {seconds:.1f} | {work:.1f} | {peak_bytes() / 2**20:.0f} | {before / 2**20:.0f} |")


if __name__ == "__main__":
    main()
