"""Many small graphs: in batches against one by one, for inference and for an epoch of training.

Both sides run in turns in one process. Each line has the median ratio and its range over the repeats.

    python -m benchmarks.small_graphs ../shared/data/more/reddit-threads.npz --graphs 600
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from adar_export import export_bundle
from adar_runtime import Graph, load
from adar_runtime.graph.formats import read_graphs
from adar_runtime.loop.solvers import AdamsBashforth2
from adar_runtime.loop.stopping import StopRule
from adar_train import AdaR, ModelConfig, TrainConfig
from adar_train.graph_batch import graph_tensors
from adar_train.objective import Objective, WholeGraphs
from adar_train.tensors import GraphTensors
from adar_train.untrained import trial_run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--graphs", type=int, default=600)
    parser.add_argument("--calls", type=int, default=32)
    parser.add_argument("--budget", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    graphs = read_graphs(options.file)[: options.graphs]
    classes = max(graph.targets for graph in graphs)
    config = ModelConfig(graphs[0].width, classes, level=graphs[0].level)
    print(f"{len(graphs)} graphs, {sum(g.nodes for g in graphs) / len(graphs):.1f} nodes on average")
    _inference(graphs, config, options)
    _training(graphs, config, options)


def _inference(graphs: list[Graph], config: ModelConfig, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = trial_run(Path(folder) / "run", graphs[0], config)
        export_bundle(run, Path(folder) / "bundle", steps=(1,))
        bundle = load(Path(folder) / "bundle", threads=options.threads)
        stop: StopRule = bundle.stop_rule()
        solver, budget = AdamsBashforth2(options.calls), options.budget
        _compare(
            f"run, {options.calls} calls",
            lambda: [bundle.run(graph, budget, stop, solver) for graph in graphs],
            lambda: list(bundle.run_many(graphs, budget, stop, solver)),
            len(graphs),
            options.repeats,
        )


def _training(graphs: list[Graph], config: ModelConfig, options: argparse.Namespace) -> None:
    model, clock = AdaR(config), [step / 8 for step in range(9)]
    objective = Objective(model, TrainConfig())
    alone = WholeGraphs(graphs, [GraphTensors.of(graph) for graph in graphs], 0)
    together = WholeGraphs(graphs, graph_tensors(model, graphs, 0), 0)

    def epoch(source: WholeGraphs) -> Callable[[], None]:
        def train() -> None:
            model.train()
            for graph, chosen in source.all:
                objective(graph, chosen, clock, 1).backward()

        return train

    count = sum(graph.labelled("train", 0) is not None for graph in graphs)
    _compare("training pass", epoch(alone), epoch(together), count, options.repeats)


def _compare(
    name: str, alone: Callable[[], object], together: Callable[[], object], count: int, repeats: int
) -> None:
    together()  # opens what is opened once
    seconds: list[tuple[float, float]] = []
    for _ in range(repeats):
        seconds.append((_seconds(alone), _seconds(together)))
    ratios = sorted(one / many for one, many in seconds)
    one, many = (statistics.median(column) / count * 1e3 for column in zip(*seconds, strict=True))
    print(
        f"{name}: {one:.2f} ms a graph one by one, {many:.2f} ms in batches, ratio "
        f"{statistics.median(ratios):.1f} [{ratios[0]:.1f}, {ratios[-1]:.1f}]"
    )


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
