"""One graph, learned classes.

Train, export and run from Python, like `adar-deploy train`, `export` and `run`. The graph is synthetic; read
your own with `read_graph("graph.npz")`.

    python examples/transductive.py --out build/transductive
"""

import argparse
from pathlib import Path

from adar_export import export_bundle
from adar_runtime import load
from adar_runtime.evaluation.metrics import split_metrics
from adar_runtime.graph.synthetic import minesweeper
from adar_train import ModelConfig, TrainConfig, fit, load_run, save_run


def main() -> None:
    """Train, export and run; the defaults take a few minutes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/transductive"))
    parser.add_argument("--side", type=int, default=40, help="side length of the board")
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args()

    graph = minesweeper(side=options.side)
    settings = TrainConfig(epochs=options.epochs, exit_budgets=(8, 50))
    fitted = fit([graph], ModelConfig(features=graph.width, targets=graph.targets, hidden=32), settings)
    save_run(options.out / "run", fitted, graph, ["minesweeper"], settings)

    export_bundle(load_run(options.out / "run"), options.out / "bundle")

    bundle = load(options.out / "bundle")
    for budget in (8, 50, 300):
        result = bundle.run(graph, budget)
        test = split_metrics(graph, result.scores)["test"]
        print(f"budget {budget:3}: test ROC-AUC {test:.3f}, result of step {result.best_step}")


if __name__ == "__main__":
    main()
