"""What an export of a large run costs: seconds, and the most memory that the process ever had.

The run is a generated Minesweeper board (side 224: 50,176 nodes, 399,620 edges) and a model with velocities
that are not zero. Training it would change the weights and nothing else that an export does.

    python -m benchmarks.export_cost --side 224
"""

import argparse
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from adar_export import export_bundle
from adar_runtime.generated.minesweeper import minesweeper
from adar_train import AdaR, Fitted, ModelConfig, TrainConfig, load_run, save_run


def main() -> None:
    """Make the run, export it, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--precision", default="fp32")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        nodes, edges = _make_run(run, options.side, options.hidden)
        before = _peak()
        began, worked = time.perf_counter(), time.process_time()
        export_bundle(load_run(run), Path(folder) / "bundle", precision=options.precision)
        seconds, work = time.perf_counter() - began, time.process_time() - worked
    print(f"python -m benchmarks.export_cost --side {options.side} --hidden {options.hidden}")
    print(f"\n{nodes:,} nodes, {edges:,} edges, {options.precision}, {torch.get_num_threads()} threads\n")
    print("| seconds | of processor time | peak memory, MB | before the export, MB |")
    print("|---|---|---|---|")
    print(f"| {seconds:.1f} | {work:.1f} | {_peak():.0f} | {before:.0f} |")


def _make_run(path: Path, side: int, hidden: int) -> tuple[int, int]:
    graph = minesweeper(side)
    torch.manual_seed(0)
    model = AdaR(ModelConfig(graph.width, 2, hidden))
    for name, weight in model.named_parameters():
        if name.endswith("out.weight"):
            torch.nn.init.normal_(weight, std=0.3)
    save_run(path, Fitted(model, {"metric": "roc_auc"}, []), graph, ["minesweeper"], TrainConfig())
    return graph.nodes, graph.edges


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
