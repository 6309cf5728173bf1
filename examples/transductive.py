"""One graph, learned classes.

Train, export and run from Python: what `adar-deploy train`, `export` and `run` do. The graph is generated;
put your own in its place with `read_graph("graph.npz")`.

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
    """Everything, in a few minutes with the defaults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/transductive"))
    parser.add_argument("--side", type=int, default=40, help="of the board")
    parser.add_argument("--epochs", type=int, default=100)
    given = parser.parse_args()

    graph = minesweeper(side=given.side)
    settings = TrainConfig(epochs=given.epochs, exit_budgets=(8, 50))
    fitted = fit([graph], ModelConfig(features=graph.width, targets=graph.targets, hidden=32), settings)
    save_run(given.out / "run", fitted, graph, ["minesweeper"], settings)

    export_bundle(load_run(given.out / "run"), given.out / "bundle")

    bundle = load(given.out / "bundle")
    for budget in (8, 50, 300):
        result = bundle.run(graph, budget)
        test = split_metrics(graph, result.scores)["test"]
        print(f"budget {budget:3}: test ROC-AUC {test:.3f}, answered from step {result.best_step}")


if __name__ == "__main__":
    main()
