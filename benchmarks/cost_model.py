"""What a step over shards costs, by sizes and machines: measured coefficients, then a simulation.

The CPU time of a step, per node and per edge is measured here, with a random model, in one process and one
thread. The figures of the network, the disk and Ray are assumptions, see `Machine`. `docs/scale.md` explains
the model; `benchmarks.exchange` compares it with steps on this machine.

    python -m benchmarks.cost_model --picture benchmarks/pictures/scale.png
"""

import argparse
import math
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from adar_runtime import Bundle, Euler, Final, Graph, Loop
from adar_runtime.graph.store import open_store, sources, write_store
from adar_runtime.phases.run_store import Plan, loop_over_store

FLOAT = 4  # bytes
FACTORS = 4  # small matrices that messages are made with
WORKERS = (16, 32, 64, 128, 256, 512, 1024)
FEATURES, CLASSES, PROXIES = 8, 16, 32  # of the measured models
TINY = 100  # nodes of the graph whose step shows what a step costs without nodes and edges
DEGREES, STEPS = (1, 11), 9  # of the two large measured graphs


@dataclass(frozen=True)
class Machine:
    """Coefficients of the model."""

    per_step: float  # CPU seconds of a step without nodes and edges
    per_node: float  # CPU seconds of a node in a step
    per_edge: float  # CPU seconds of an edge in a step
    cores: float = math.inf  # workers that run at the same time; further ones take turns
    bandwidth: float = 1.25e9  # bytes per second of a worker: 10 Gbit/s
    latency: float = 1e-3  # seconds of a message
    call: float = 3e-4  # seconds that the driver needs to start one call of an actor
    block: float = 2e-5  # seconds that the driver needs for one block of rows
    disk: float = 1e9  # bytes per second of a worker, for the states


class Sizes(NamedTuple):
    """A graph and a model."""

    nodes: int
    edges: int
    hidden: int
    proxies: int
    classes: int


class Exchange(NamedTuple):
    """What a worker receives from others in a step."""

    rows: float
    senders: int  # other workers that it receives from


class Cost(NamedTuple):
    """Seconds of a step."""

    compute: float
    rows: float
    small: float
    driver: float
    disk: float


def small_bytes(sizes: Sizes) -> int:
    """Bytes that the driver and one worker exchange in a step, beside rows."""
    _, _, d, p, c = sizes
    sums = (p + c) * (d + 2)  # of the softmax, from each worker
    factors = (p + c) * d + FACTORS * (p + c + d) * d + d * d + d  # to each worker
    return FLOAT * (sums + factors)


def step_cost(sizes: Sizes, workers: int, exchange: Exchange, machine: Machine) -> Cost:
    """The seconds of a step."""
    n, m, d, *_ = sizes
    at_once = min(workers, machine.cores)
    rows = exchange.rows * workers / at_once
    return Cost(
        compute=(machine.per_node * n + machine.per_edge * m) / at_once,
        rows=FLOAT * d * rows / machine.bandwidth + (machine.latency if rows else 0.0),
        small=small_bytes(sizes) * workers / machine.bandwidth + 2 * machine.latency,
        driver=machine.per_step + workers * (2 * machine.call + exchange.senders * machine.block),
        disk=2 * FLOAT * d * n / workers / machine.disk,
    )


def power_law(sizes: Sizes, workers: int) -> Exchange:
    """If degrees follow a power law (exponent 2.5) and nodes are placed at random, all workers exchange."""
    degrees = np.random.default_rng(0).pareto(1.5, 1_000_000) + 1
    degrees *= sizes.edges / sizes.nodes / degrees.mean()
    needed = 1 - (1 - 1 / workers) ** degrees  # a node is needed by a given worker
    return Exchange(float(sizes.nodes * (1 - 1 / workers) * needed.mean()), workers - 1)


def planar(sizes: Sizes, workers: int) -> Exchange:
    """If the nodes of a worker are a square of a planar graph, it receives the rows around the square."""
    return Exchange(4 * float(np.sqrt(sizes.nodes / workers)), min(8, workers - 1))


KINDS = {"power law, random placement": power_law, "planar, compact shards": planar}


def measured(hidden: int, nodes: int) -> Machine:
    """CPU seconds of a step, per node and per edge: from a tiny graph, and from two large ones, in turns."""
    sizes = [(TINY, DEGREES[0]), *((nodes, degree) for degree in DEGREES)]
    with tempfile.TemporaryDirectory() as name:
        bundle = random_bundle(Path(name), hidden)
        bundle.threads = 1
        loops = []
        for number, (count, degree) in enumerate(sizes):
            folder, graph = Path(name) / str(number), random_graph(count, degree)
            write_store(folder, sources.GraphRows(graph), sources.edge_blocks(graph), 1)
            plan = Plan(Path(name) / f"work-{number}")
            loops.append(loop_over_store(bundle, open_store(folder), STEPS, Final(), Euler(), plan))
        turns = [[cpu_of_step(loop) for loop in loops] for _ in range(STEPS)]
    tiny, few, many = np.min(turns[2:], axis=0)  # the first turn is the input, the second warms up
    per_edge = (many - few) / nodes / (DEGREES[1] - DEGREES[0])
    return Machine(tiny, (few - tiny) / nodes - DEGREES[0] * per_edge, per_edge)


def measured_at_once(processes: int, hidden: int, nodes: int) -> Machine:
    """The mean of several processes that measure at the same time, and share caches and memory."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(measured, [hidden] * processes, [nodes] * processes))
    return Machine(*np.mean([(one.per_step, one.per_node, one.per_edge) for one in found], axis=0))


def random_bundle(folder: Path, hidden: int) -> Bundle:
    """A bundle with random weights."""
    from adar_export.writer import open_unmeasured
    from adar_train import ModelConfig
    from adar_train.untrained import trial_run

    (folder / "bundle").mkdir()
    config = ModelConfig(FEATURES, CLASSES, hidden=hidden, proxies=PROXIES)
    return open_unmeasured(trial_run(folder / "run", random_graph(TINY, 2), config), folder / "bundle")


def random_graph(nodes: int, degree: int) -> Graph:
    """A graph whose neighbours are random nodes."""
    random = np.random.default_rng(0)
    edges = random.integers(0, nodes, (2, degree * nodes))
    return Graph(random.standard_normal((nodes, FEATURES), np.float32), edges)


def described(machine: Machine) -> str:
    """The CPU times of a machine, for a reader."""
    per_node, per_edge = 1e9 * machine.per_node, 1e9 * machine.per_edge
    return f"{1e3 * machine.per_step:.1f} ms, and {per_node:.0f} ns per node and {per_edge:.0f} ns per edge"


def cpu_of_step(loop: Loop) -> float:
    """The CPU seconds of the next step."""
    started = time.process_time()
    next(loop)
    return time.process_time() - started


def main() -> None:
    """Measure, simulate, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100_000_000, help="of the simulated graph")
    parser.add_argument("--edges", type=int, default=1_000_000_000)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--proxies", type=int, default=32)
    parser.add_argument("--measured-nodes", type=int, default=500_000, help="larger than caches")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    print("python -m benchmarks.cost_model " + " ".join(sys.argv[1:]) + "\n")
    machine = measured(options.hidden, options.measured_nodes)
    print(f"CPU time of a step: {described(machine)}\n")
    sizes = Sizes(options.nodes, options.edges, options.hidden, options.proxies, CLASSES)
    seconds_of = " | ".join(f"{name}, s" for name in Cost._fields)
    print(f"| graph | workers | rows received, M | {seconds_of} | step, s |")
    print("|---|---|---|---|---|---|---|---|---|")
    found: dict[str, list[Cost]] = {}
    for kind, exchange_of in KINDS.items():
        for workers in WORKERS:
            exchange = exchange_of(sizes, workers)
            cost = step_cost(sizes, workers, exchange, machine)
            found.setdefault(kind, []).append(cost)
            cells = " | ".join(f"{seconds:.2f}" for seconds in (*cost, sum(cost)))
            print(f"| {kind} | {workers:,} | {exchange.rows / 1e6:.2f} | {cells} |")
    if options.picture:
        draw(found, options.picture)


def draw(found: dict[str, list[Cost]], path: Path) -> None:
    """Stacked seconds of a step by the number of workers, one panel per kind of graph."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True)
    places = np.arange(len(WORKERS))
    for panel, (kind, costs) in zip(panels, found.items(), strict=True):
        bottom = np.zeros(len(WORKERS))
        for name in Cost._fields:
            seconds = np.array([getattr(cost, name) for cost in costs])
            panel.bar(places, seconds, bottom=bottom, label=name)
            bottom += seconds
        panel.set_title(kind, fontsize=10)
        panel.set_xticks(places, [f"{one:,}" for one in WORKERS])
        panel.set_xlabel("workers")
        panel.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("seconds per step")
    panels[-1].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
