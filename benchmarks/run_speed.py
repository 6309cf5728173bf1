"""Time of an inference with 300 steps: the runtime compared with other implementations.

adar-deploy export RUN --out fused; adar-deploy export RUN --out plain --plain
python -m benchmarks.run_speed RUN GRAPH --fused fused --plain plain --threads 2

All sides have the same graph and the same weights, and take turns:

* default: the runtime as it runs without options, with the solver that `export` proved (`--solver auto`)
* euler: the runtime with one cell call for each of the 300 steps
* eager: the paper's formulas in PyTorch (scatter_add), 300 steps
* eager per edge: the same, with messages transformed per edge as in PyG's MessagePassing.message
* plain onnx: the formulas through torch.onnx.export (`adar-deploy export --plain`), 300 steps
* other checkout: like default, with the runtime of another checkout of this repository (`--against FOLDER`)
* openvino bf16: like default, with a bundle in bf16 on OpenVINO (`--bf16 BUNDLE`)

A turn is a whole inference, from features to scores. The first turn is a warm-up. On a busy machine, the
seconds of the processor say more than those of the clock.
"""

import argparse
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch

import adar_runtime
from adar_export.plain_cell import PlainAdaR
from adar_runtime import Final, Graph
from adar_runtime.backends import AUTO, OPENVINO
from adar_runtime.benchmarking.race import Turn, Worker, race, spread
from adar_runtime.evaluation.metrics import metric_name, split_metrics
from adar_runtime.graph import Floats
from adar_runtime.loop.schedule import times
from adar_runtime.loop.solvers import DEFAULT_SOLVER
from adar_train import AdaR, GraphTensors, load_run

DEFAULT, EULER, EAGER, PER_EDGE, PLAIN = SIDES = ("default", "euler", "eager", "eager per edge", "plain onnx")
OTHER, BF16 = EXTRA = ("other checkout", "openvino bf16")
STEPS = 300


def main() -> None:
    """Measure and print a table."""
    options = parse()
    given = [side for side, value in zip(EXTRA, (options.against, options.bf16), strict=True) if value]
    sides = [DEFAULT, *given, *(side for side in SIDES[1:] if side not in options.without)]
    workers = {side: start(side, options) for side in sides}
    scores = {side: worker.turn()[1][1] for side, worker in workers.items()}
    used: dict[str, list[float]] = {side: [] for side in sides}
    seconds = race(workers, options.repeats, on_turn=lambda side, answer: used[side].append(answer[0]))
    print_report(options, adar_runtime.read_graph(options.graph), scores, seconds, used)


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
    parser.add_argument("--without", nargs="*", default=[], choices=SIDES[1:], help="sides to leave out")
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    parser.add_argument("--bf16", type=Path, help="bundle of the run, exported with --precision bf16")
    return parser.parse_args()


def start(side: str, options: argparse.Namespace) -> Worker:
    """The process of a side, which imports from the paths that this process has at its start."""
    before = list(sys.path)
    if side == OTHER:
        sys.path.insert(1, str(options.against.absolute() / "runtime"))
    try:
        return Worker(take_turn, side, options)
    finally:
        sys.path[:] = before


def take_turn(side: str, options: argparse.Namespace) -> Turn:
    """A turn of one inference."""
    torch.set_num_threads(options.threads)
    infer = build(side, options, adar_runtime.read_graph(options.graph))

    def turn() -> tuple[float, tuple[float, Floats]]:
        clock, processor = time.perf_counter(), time.process_time()
        scores = infer()
        seconds, used = time.perf_counter() - clock, time.process_time() - processor
        return seconds, (used, scores)

    return turn


def build(side: str, options: argparse.Namespace, graph: Graph) -> Callable[[], Floats]:
    """The inference of one side."""
    if side in (EAGER, PER_EDGE):
        model = load_run(options.run).model
        assert isinstance(model, AdaR)
        plain = PlainAdaR(model, per_edge=side == PER_EDGE).eval()
        return lambda: torch_scores(plain, graph)
    # `made_here`: a plain export is an unknown model, which would run in a child process.
    folder = {PLAIN: options.plain, BF16: options.bf16}.get(side, options.fused)
    backend = OPENVINO if side == BF16 else AUTO
    bundle = adar_runtime.Bundle(folder, backend, threads=options.threads, made_here=True)
    solver = DEFAULT_SOLVER if side in (DEFAULT, *EXTRA) else "euler"
    return lambda: bundle.run(graph, STEPS, Final(), solver).scores


@torch.no_grad()
def torch_scores(model: PlainAdaR, graph: Graph) -> Floats:
    """Scores after 300 steps in PyTorch, including the preparation of the graph."""
    tensors = GraphTensors.of(graph)
    *_, last = model.trajectory(tensors, times(STEPS))
    return model.scores(last, tensors).numpy()


def print_report(
    options: argparse.Namespace,
    graph: Graph,
    scores: dict[str, Floats],
    seconds: dict[str, list[float]],
    used: dict[str, list[float]],
) -> None:
    """Print the command, the versions and the table."""
    reference = EULER if EULER in scores else DEFAULT
    name = metric_name(scores[reference].shape[1])
    given = f"--threads {options.threads} --repeats {options.repeats}"
    print(f"python -m benchmarks.run_speed RUN {options.graph.name} {given}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, onnxruntime {ort.__version__}")
    print(f"n = {graph.nodes:,}, m = {graph.edges:,}, {STEPS} steps\n")
    print(
        "| side | seconds, median [quartiles] | relative to default | processor seconds "
        f"| relative to default | test {name} | changed predictions (vs {reference}) |"
    )
    print("|---|---|---|---|---|---|---|")
    for side in seconds:
        times = (
            cell
            for values in (seconds, used)
            for cell in (spread(values[side], 3), spread(np.divide(values[side], values[DEFAULT]), 2))
        )
        changed = (scores[side].argmax(axis=1) != scores[reference].argmax(axis=1)).mean()
        metric = split_metrics(graph, scores[side], parts=["test"]).get("test", float("nan"))
        row = (side, *times, f"{100 * metric:.3f}", f"{100 * changed:.2f} %")
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
