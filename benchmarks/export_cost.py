"""What an export of a large run costs: seconds, and the most memory that the process ever had.

The run is a generated Minesweeper board (side 224: 50,176 nodes, 399,620 edges) and a model with velocities
that are not zero. Training it would change the weights and nothing else that an export does.

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
    """Make the run, export it, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--hidden", type=int, default=64)
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
    print("| seconds | of processor time | peak memory, MB | before the export, MB |")
    print("|---|---|---|---|")
    print(f"| {seconds:.1f} | {work:.1f} | {peak_bytes() / 2**20:.0f} | {before / 2**20:.0f} |")


if __name__ == "__main__":
    main()
