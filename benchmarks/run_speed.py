"""How long the answer of 300 steps takes: the runtime against looping the obvious ways 300 times.

adar-deploy export RUN --out fused; adar-deploy export RUN --out plain --plain
python -m benchmarks.run_speed RUN GRAPH --fused fused --plain plain --calls 20 --threads 2

Sides, all on the same graph and from the same weights, taking turns:

* ab2: the runtime with Adams-Bashforth and a few calls of the exported cell
* euler: the runtime with a call for each of the 300 steps
* eager: the paper's formulas in PyTorch (scatter_add), 300 times
* eager per edge: the same with messages transformed along each edge, as PyG's MessagePassing.message has them
* plain onnx: what torch.onnx.export makes of them (`adar-deploy export --plain`), 300 times

A turn is a whole answer: features in, scores out. The first turn is not counted.
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
from adar_runtime.loop.solvers import AdamsBashforth2
from adar_train import AdaR, GraphTensors, load_run

AB2, EULER, EAGER, PER_EDGE, PLAIN = SIDES = ("ab2", "euler", "eager", "eager per edge", "plain onnx")
STEPS = 300


def main() -> None:
    """Compare, and print a table."""
    options = parse()
    sides = [side for side in SIDES if side not in options.without]
    workers = {side: Worker(take_turn, side, options) for side in sides}
    scores = {side: worker.turn()[1] for side, worker in workers.items()}
    seconds = race(workers, options.repeats)
    print_report(options, adar_runtime.read_graph(options.graph), scores, seconds)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--fused", type=Path, default=Path("fused"), help="the run's bundle")
    parser.add_argument(
        "--plain", type=Path, default=Path("plain"), help="the run's bundle, exported --plain"
    )
    parser.add_argument("--calls", type=int, default=20, help="of the cell, for ab2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without", nargs="*", default=[], choices=SIDES[2:], help="sides to leave out")
    return parser.parse_args()


def take_turn(side: str, options: argparse.Namespace) -> Turn:
    """A whole answer."""
    torch.set_num_threads(options.threads)
    answer = build(side, options, adar_runtime.read_graph(options.graph))

    def turn() -> tuple[float, Floats]:
        started = time.perf_counter()
        scores = answer()
        return time.perf_counter() - started, scores

    return turn


def build(side: str, options: argparse.Namespace, graph: Graph) -> Callable[[], Floats]:
    """One side's answer, ready to be called."""
    if side in (EAGER, PER_EDGE):
        model = load_run(options.run).model
        assert isinstance(model, AdaR)
        plain = PlainAdaR(model, per_edge=side == PER_EDGE).eval()
        return lambda: torch_answer(plain, graph)
    bundle = adar_runtime.load(options.plain if side == PLAIN else options.fused, threads=options.threads)
    solver = AdamsBashforth2(options.calls) if side == AB2 else "euler"
    return lambda: bundle.run(graph, STEPS, Final(), solver).scores


@torch.no_grad()
def torch_answer(model: PlainAdaR, graph: Graph) -> Floats:
    """300 steps in PyTorch, the graph's layout included, as it is for the others."""
    tensors = GraphTensors.of(graph)
    *_, last = model.trajectory(tensors, times(STEPS))
    return model.scores(last, tensors).numpy()


def print_report(
    options: argparse.Namespace, graph: Graph, scores: dict[str, Floats], seconds: dict[str, list[float]]
) -> None:
    """The table, and all that is needed to make it again."""
    name = metric_name(scores[EULER].shape[1])
    given = f"--calls {options.calls} --threads {options.threads} --repeats {options.repeats}"
    print(f"python -m benchmarks.run_speed RUN {options.graph.name} {given}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, onnxruntime {ort.__version__}")
    print(f"n = {graph.nodes:,}, m = {graph.edges:,}, {STEPS} steps\n")
    print(f"| side | seconds, median [quartiles] | over ab2 | over euler | test {name} | same as euler |")
    print("|---|---|---|---|---|---|")
    for side, values in seconds.items():
        ratios = (spread(np.divide(values, seconds[other]), 1) for other in (AB2, EULER))
        same = (scores[side].argmax(axis=1) == scores[EULER].argmax(axis=1)).mean()
        metric = split_metrics(graph, scores[side], parts=["test"]).get("test", float("nan"))
        row = (side, spread(values, 3), *ratios, f"{100 * metric:.3f}", f"{100 * same:.2f} %")
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
