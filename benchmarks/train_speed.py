"""Time and memory of a training epoch: our implementation compared with a plain one.

python -m benchmarks.train_speed --side 100 --steps 8 --hidden 64 --repeats 5 --threads 1

An epoch is a forward pass, the task loss, a backward pass and one step of Adam on the synthetic Minesweeper
board. All sides start from the same weights. Their results have to agree before the sides take turns. Memory
is the increase of the peak of a separate process by an epoch. Our side runs in single precision (the default)
and with `train --mixed-precision`. The plain side transforms messages once per node, and once per edge as in
PyG's MessagePassing.message.
"""

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from itertools import product

import numpy as np
import torch

from adar_export.plain_cell import PlainAdaR
from adar_runtime.benchmarking.race import peak_bytes, spread
from adar_runtime.graph.synthetic import minesweeper
from adar_runtime.loop.schedule import times
from adar_train import AdaR, GraphTensors, ModelConfig
from adar_train.losses import task_loss
from adar_train.untrained import random_model

OURS, MIXED, PLAIN, PER_EDGE = SIDES = ("ours", "ours-mixed", "plain", "plain-per-edge")
TOLERANCE = 1e-4


def main() -> None:
    """Measure and print a table."""
    options = parse()
    torch.set_num_threads(options.threads)
    memory = {} if options.memory_of else {side: memory_of(side) for side in SIDES}
    graph = GraphTensors.of(minesweeper(side=options.side))
    models = {side: build(side, options, graph) for side in SIDES}
    if options.memory_of:
        print(epoch_memory(epoch_of(options.memory_of, models[options.memory_of], graph, options.steps)))
        return
    difference = largest_difference(list(models.values()), graph, options.steps)
    if not difference < TOLERANCE:
        sys.exit(f"error: the sides differ by {difference:.1e}, so their times cannot be compared")
    seconds = race(models, graph, options)
    print_report(options, difference, seconds, memory)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--side", type=int, default=100, help="cells along one side of the board")
    parser.add_argument("--steps", type=int, default=8, help="recurrent steps, S")
    parser.add_argument("--hidden", type=int, default=64, help="hidden width d")
    parser.add_argument("--repeats", type=int, default=5, help="timed epochs per side")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    parser.add_argument("--memory-of", choices=SIDES, help=argparse.SUPPRESS)  # for the child process
    return parser.parse_args()


def build(side: str, options: argparse.Namespace, graph: GraphTensors) -> AdaR | PlainAdaR:
    """The model of this side; all sides have the same weights."""
    assert isinstance(graph.features, torch.Tensor)
    model = random_model(ModelConfig(graph.features.shape[1], targets=2, hidden=options.hidden))
    return model if side in (OURS, MIXED) else PlainAdaR(model, per_edge=side == PER_EDGE)


@torch.no_grad()
def largest_difference(models: list[AdaR | PlainAdaR], graph: GraphTensors, steps: int) -> float:
    """Largest difference of the final states between the first model and any other."""
    first, *others = (list(deepcopy(model).eval().trajectory(graph, times(steps)))[-1] for model in models)
    return max(float((a - b).abs().max()) for other in others for a, b in zip(first, other, strict=True))


def epoch_of(side: str, model: AdaR | PlainAdaR, graph: GraphTensors, steps: int) -> Callable[[], None]:
    """One epoch, as the trainer runs it."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-6)
    chosen = torch.arange(0, len(graph.share), 2)

    def epoch() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=side == MIXED):
            *_, last = model.trajectory(graph, times(steps))
            task_loss(model, last, graph, chosen).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return epoch


def race(
    models: dict[str, AdaR | PlainAdaR], graph: GraphTensors, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Seconds of each timed epoch. The sides take turns, after one warm-up epoch each."""
    epochs = {side: epoch_of(side, model, graph, options.steps) for side, model in models.items()}
    seconds: dict[str, list[float]] = {side: [] for side in models}
    for repeat in range(options.repeats + 1):
        for side, epoch in epochs.items():
            started = time.perf_counter()
            epoch()
            if repeat:
                seconds[side].append(time.perf_counter() - started)
    return seconds


def memory_of(side: str) -> float:
    """MB of an epoch, from a process that trains only this side."""
    command = [sys.executable, "-m", "benchmarks.train_speed", *sys.argv[1:], "--memory-of", side]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def epoch_memory(epoch: Callable[[], None]) -> float:
    """Increase of the peak memory of this process by two epochs, in MB; at least 1."""
    before = peak_bytes()
    epoch()
    epoch()  # the first epoch starts without Adam moments and gradients
    return max(1.0, (peak_bytes() - before) / 2**20)


def print_report(
    options: argparse.Namespace, difference: float, seconds: dict[str, list[float]], memory: dict[str, float]
) -> None:
    """Print the command, the versions and the table."""
    given = " ".join(f"--{name} {getattr(options, name)}" for name in ("side", "steps", "hidden", "repeats"))
    print(f"python -m benchmarks.train_speed {given} --threads {options.threads}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}")
    print(f"{platform.processor() or platform.machine()}, largest difference {difference:.1e}\n")
    print("| side | seconds per epoch, median [quartiles] | memory of an epoch, MB |")
    print("|---|---|---|")
    for side in SIDES:
        print(f"| {side} | {spread(seconds[side], 3)} | {memory[side]:.0f} |")
    for ours, side in product((OURS, MIXED), (PLAIN, PER_EDGE)):
        ratio = np.divide(seconds[side], seconds[ours])
        print(f"| {side} / {ours} | {spread(ratio, 2)} | {memory[side] / memory[ours]:.2f} |")


if __name__ == "__main__":
    main()
