"""Many small graphs: in batches against one by one, for inference and for a training pass.

The model of the first sides has the sizes that were the default before there were batches (d = 64, p = 32).
"Default model" has the sizes that `adar-deploy train` chooses for these graphs. All sides run in turns in one
process; those that run graphs one by one take every tenth graph. Each line has the median processor time of a
graph and its ratio to the first line, with the range over the repeats.

    python -m benchmarks.small_graphs ../shared/data/more/reddit-threads.npz --graphs 600
"""

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from adar_export import export_bundle
from adar_runtime import Bundle, Graph, load
from adar_runtime.graph.formats import read_graphs
from adar_runtime.loop.solvers import AdamsBashforth2, Euler
from adar_runtime.loop.stopping import Final
from adar_train import AdaR, ModelConfig, TrainConfig
from adar_train.graph_batch import graph_tensors
from adar_train.objective import Objective, WholeGraphs
from adar_train.prepare import default_sizes, model_config
from adar_train.tensors import GraphTensors
from adar_train.untrained import trial_run

ALONE = 10  # every tenth graph is enough for the sides that run graphs one by one
BUDGET = 300
CLOCK = [step / 8 for step in range(9)]

Side = tuple[Callable[[], object], int]
"""What to do, and for how many graphs."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--graphs", type=int, default=600)
    parser.add_argument("--calls", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    graphs = read_graphs(options.file)[: options.graphs]
    configs = [model_config(graphs, **default_sizes(graphs, small=small)) for small in (False, True)]
    print(f"{len(graphs)} graphs, {sum(g.nodes for g in graphs) / len(graphs):.1f} nodes on average")
    for config, name in zip(configs, ("model", "default model"), strict=True):
        print(f"{name}: d = {config.hidden}, p = {config.proxies}")
    with tempfile.TemporaryDirectory() as folder:
        bundles = [
            _bundle(Path(folder) / str(i), graphs[0], one, options.threads) for i, one in enumerate(configs)
        ]
        compare(_inference(bundles, graphs, options.calls), options.repeats)
    compare(_training(configs, graphs), options.repeats)


def _bundle(folder: Path, graph: Graph, config: ModelConfig, threads: int) -> Bundle:
    run = trial_run(folder / "run", graph, config)
    export_bundle(run, folder / "bundle", steps=(1,))
    return load(folder / "bundle", threads=threads)


def _inference(bundles: Sequence[Bundle], graphs: Sequence[Graph], calls: int) -> dict[str, Side]:
    """Every run goes to t = 1, so that all calls are made."""
    bundle, small = bundles
    few, fast = graphs[::ALONE], AdamsBashforth2(calls)
    return {
        f"inference, one by one, {BUDGET} Euler steps": (
            lambda: [bundle.run(graph, BUDGET, Final(), Euler()) for graph in few],
            len(few),
        ),
        f"inference, one by one, ab2 with {calls} calls": (
            lambda: [bundle.run(graph, BUDGET, Final(), fast) for graph in few],
            len(few),
        ),
        f"inference, in batches, ab2 with {calls} calls": (
            lambda: list(bundle.run_many(graphs, BUDGET, Final(), fast)),
            len(graphs),
        ),
        f"inference, in batches, ab2 with {calls} calls, default model": (
            lambda: list(small.run_many(graphs, BUDGET, Final(), fast)),
            len(graphs),
        ),
    }


def _training(configs: Sequence[ModelConfig], graphs: Sequence[Graph]) -> dict[str, Side]:
    """Forward and backward pass of 8 steps over the training graphs."""
    model, small = (AdaR(config) for config in configs)
    few = [graph for graph in graphs if graph.labelled("train", 0) is not None][::ALONE]
    count = sum(graph.labelled("train", 0) is not None for graph in graphs)
    alone = WholeGraphs(few, [GraphTensors.of(graph) for graph in few], 0)
    together = WholeGraphs(graphs, graph_tensors(model, graphs, 0), 0)
    return {
        "training pass, one by one": (_epoch(model, alone), len(few)),
        "training pass, in batches": (_epoch(model, together), count),
        "training pass, in batches, default model": (_epoch(small, together), count),
    }


def _epoch(model: AdaR, source: WholeGraphs) -> Callable[[], None]:
    objective = Objective(model, TrainConfig())

    def train() -> None:
        model.train()
        for graph, chosen in source.all:
            objective(graph, chosen, CLOCK, 1).backward()

    return train


def compare(sides: Mapping[str, Side], repeats: int) -> None:
    """Run the sides in turns, and print the time of each and its ratio to the first."""
    for action, _ in sides.values():
        action()  # opens what is opened once
    rounds = [[_seconds(action) / count for action, count in sides.values()] for _ in range(repeats)]
    for column, name in enumerate(sides):
        ratios = sorted(one[0] / one[column] for one in rounds)
        middle = statistics.median(one[column] for one in rounds) * 1e3
        print(
            f"{name}: {middle:.3f} ms a graph, ratio {statistics.median(ratios):.1f} "
            f"[{ratios[0]:.1f}, {ratios[-1]:.1f}]"
        )


def _seconds(action: Callable[[], object]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


if __name__ == "__main__":
    main()
