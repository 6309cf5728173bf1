"""Time of an inference with 300 steps: the runtime compared with other implementations.

adar-deploy export RUN --out fused; adar-deploy export RUN --out plain --plain
python -m benchmarks.run_speed RUN GRAPH --fused fused --plain plain --threads 2

All sides have the same graph and the same weights, and take turns:

* default: the runtime as it runs without options, with the solver that `export` proved (`--solver auto`)
* euler: the runtime with one cell call for each of the 300 steps
* eager: the paper's formulas in PyTorch (scatter_add), 300 steps
* eager per edge: the same, with messages transformed per edge as in PyG's MessagePassing.message
* plain onnx: the formulas through torch.onnx.export (`adar-deploy export --plain`), 300 steps

A turn is a whole inference, from features to scores. The first turn is a warm-up.
"""

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch

import adar_runtime
from adar_export.plain_cell import PlainAdaR
from adar_runtime import Final, Graph
from adar_runtime.benchmarking.race import Turn, Worker, race, spread
from adar_runtime.evaluation.metrics import metric_name, split_metrics
from adar_runtime.graph import Floats
from adar_runtime.loop.schedule import times
from adar_runtime.loop.solvers import DEFAULT_SOLVER
from adar_train import AdaR, GraphTensors, load_run

DEFAULT, EULER, EAGER, PER_EDGE, PLAIN = SIDES = ("default", "euler", "eager", "eager per edge", "plain onnx")
STEPS = 300


def main() -> None:
    """Measure and print a table."""
    options = parse()
    sides = [side for side in SIDES if side not in options.without]
    workers = {side: Worker(take_turn, side, options) for side in sides}
    scores = {side: worker.turn()[1] for side, worker in workers.items()}
    seconds = race(workers, options.repeats)
    print_report(options, adar_runtime.read_graph(options.graph), scores, seconds)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("run", type=Path, help="folder of a training run")
    parser.add_argument("graph", type=Path, help="graph file")
    parser.add_argument("--fused", type=Path, default=Path("fused"), help="bundle of the run")
    parser.add_argument(
        "--plain", type=Path, default=Path("plain"), help="bundle of the run, exported with --plain"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without", nargs="*", default=[], choices=SIDES[2:], help="sides to leave out")
    return parser.parse_args()


def take_turn(side: str, options: argparse.Namespace) -> Turn:
    """A turn of one inference."""
    torch.set_num_threads(options.threads)
    infer = build(side, options, adar_runtime.read_graph(options.graph))

    def turn() -> tuple[float, Floats]:
        started = time.perf_counter()
        scores = infer()
        return time.perf_counter() - started, scores

    return turn


def build(side: str, options: argparse.Namespace, graph: Graph) -> Callable[[], Floats]:
    """The inference of one side."""
    if side in (EAGER, PER_EDGE):
        model = load_run(options.run).model
        assert isinstance(model, AdaR)
        plain = PlainAdaR(model, per_edge=side == PER_EDGE).eval()
        return lambda: torch_scores(plain, graph)
    # `made_here`: a plain export is an unknown model, which would run in a child process.
    folder = options.plain if side == PLAIN else options.fused
    bundle = adar_runtime.Bundle(folder, threads=options.threads, made_here=True)
    solver = DEFAULT_SOLVER if side == DEFAULT else "euler"
    return lambda: bundle.run(graph, STEPS, Final(), solver).scores


@torch.no_grad()
def torch_scores(model: PlainAdaR, graph: Graph) -> Floats:
    """Scores after 300 steps in PyTorch, including the preparation of the graph."""
    tensors = GraphTensors.of(graph)
    *_, last = model.trajectory(tensors, times(STEPS))
    return model.scores(last, tensors).numpy()


def print_report(
    options: argparse.Namespace, graph: Graph, scores: dict[str, Floats], seconds: dict[str, list[float]]
) -> None:
    """Print the command, the versions and the table."""
    name = metric_name(scores[EULER].shape[1])
    given = f"--threads {options.threads} --repeats {options.repeats}"
    print(f"python -m benchmarks.run_speed RUN {options.graph.name} {given}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, onnxruntime {ort.__version__}")
    print(f"n = {graph.nodes:,}, m = {graph.edges:,}, {STEPS} steps\n")
    print(
        "| side | seconds, median [quartiles] | time relative to default | time relative to euler "
        f"| test {name} | changed predictions (vs euler) |"
    )
    print("|---|---|---|---|---|---|")
    for side, values in seconds.items():
        ratios = (spread(np.divide(values, seconds[other]), 1) for other in (DEFAULT, EULER))
        changed = (scores[side].argmax(axis=1) != scores[EULER].argmax(axis=1)).mean()
        metric = split_metrics(graph, scores[side], parts=["test"]).get("test", float("nan"))
        row = (side, spread(values, 3), *ratios, f"{100 * metric:.3f}", f"{100 * changed:.2f} %")
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
