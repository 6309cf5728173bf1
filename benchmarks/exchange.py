"""The exchange between Ray actors on this machine, against the cost model of `benchmarks.cost_model`.

The coefficients of the model are measured first, without shards: how fast a block of rows goes from one actor
to another, how long an empty call takes, and how long the driver needs to start a call. Then a graph with
random edges runs with 1, 2 and 4 actors. Each actor measures its own work, and the driver the time that it
waits; the difference is the exchange: sums and rows that travel, and the calls of the driver. All figures are
the least of several steps, because other processes of the machine only add to them.

    python -m benchmarks.exchange --nodes 400000 --degree 10 --steps 12
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime import Bundle, Euler, Final
from adar_runtime.distributed import ray_shards
from adar_runtime.distributed.cluster import connected, import_ray
from adar_runtime.graph import Floats
from adar_runtime.graph.store import GraphStore, open_store, sources, write_store
from adar_runtime.phases.run_store import Plan, loop_over_store
from adar_runtime.phases.sharded_recurrence import Message
from benchmarks.cost_model import CLASSES, FEATURES, Exchange, Machine, Sizes, random_graph, step_cost

PROXIES = 32
BLOCK = 2**25  # bytes of the block that is sent to measure the bandwidth


class MeasuredActor(ray_shards.ShardActor):
    """A shard that records the wall time and the CPU time of its own work."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._sending = self._receiving = self._cpu = 0.0

    def send(self, message: Message, receivers: list[int]) -> tuple[Floats | None, ...]:
        """Send as any shard does, and record the time."""
        started, cpu = time.perf_counter(), time.process_time()
        found = super().send(message, receivers)
        self._sending, self._cpu = time.perf_counter() - started, time.process_time() - cpu
        return found

    def receive(self, message: Message, _sent: None, *blocks: Floats) -> Any:
        """Receive as any shard does, and record the time."""
        started, cpu = time.perf_counter(), time.process_time()
        found = super().receive(message, _sent, *blocks)
        self._receiving, self._cpu = time.perf_counter() - started, self._cpu + time.process_time() - cpu
        return found

    def times(self) -> tuple[float, float, float]:
        """Seconds of the last step: sending, receiving, and CPU time of both."""
        return self._sending, self._receiving, self._cpu


class MeasuredShards(ray_shards.RayShards):
    """Records how long the driver waits for an exchange, from its first call to the last result."""

    waited = 0.0

    def exchange(self, send: Message, receive: Message) -> list[Any]:
        """Exchange as always, and record the time."""
        started = time.perf_counter()
        found = super().exchange(send, receive)
        self.waited = time.perf_counter() - started
        return found


class Echo:
    """An actor that gives and takes blocks."""

    def give(self, size: int) -> Floats:
        """A block of this many bytes."""
        return np.ones(size // 4, np.float32)

    def take(self, *blocks: Floats) -> float:
        """Read the blocks."""
        return sum(float(block[::1024].sum()) for block in blocks)


def coefficients(repeats: int) -> Machine:
    """What Ray takes on this machine, with one block of rows at a time."""
    ray = import_ray()
    giver, taker = (ray.remote(Echo).options(num_cpus=0.5).remote() for _ in range(2))

    def seconds(size: int) -> float:
        ray.get(giver.give.remote(4))
        started = time.perf_counter()
        ray.get(taker.take.remote(giver.give.remote(size)))
        return time.perf_counter() - started

    def starting() -> float:
        started = time.perf_counter()
        calls = [giver.give.remote(4) for _ in range(200)]
        spent = time.perf_counter() - started
        ray.get(calls)
        return spent / len(calls)

    seconds(BLOCK)
    small, large = (min(seconds(size) for _ in range(repeats)) for size in (4, BLOCK))
    call = min(starting() for _ in range(repeats))
    return Machine(0, 0, bandwidth=BLOCK / (large - small), latency=small / 2, call=call, block=call / 10)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=400_000)
    parser.add_argument("--degree", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    print("python -m benchmarks.exchange " + " ".join(sys.argv[1:]))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with connected("auto"), tempfile.TemporaryDirectory() as name:
        ray_shards.ShardActor = MeasuredActor  # type: ignore[misc]
        machine = coefficients(repeats=15)
        print(
            f"between two actors {machine.bandwidth / 1e9:.2f} GB/s, latency {1e3 * machine.latency:.2f} ms, "
            f"start of a call {1e3 * machine.call:.2f} ms\n"
        )
        print(
            "| actors | rows received by an actor | step, ms | work of the slowest, ms | CPU of all, ms | "
            "driver's work, ms | exchange, ms | model, ms | exchange / model |\n" + "|---" * 9 + "|"
        )
        bundle = random_bundle(Path(name), options.hidden)
        for actors in options.actors:
            measure(bundle, Path(name) / str(actors), actors, machine, options)


def random_bundle(folder: Path, hidden: int) -> Bundle:
    """A bundle with random weights."""
    from adar_export.writer import open_unmeasured
    from adar_train import ModelConfig
    from adar_train.untrained import trial_run

    (folder / "bundle").mkdir()
    config = ModelConfig(FEATURES, CLASSES, hidden=hidden, proxies=PROXIES)
    return open_unmeasured(trial_run(folder / "run", random_graph(100, 2), config), folder / "bundle")


def measure(bundle: Bundle, folder: Path, actors: int, machine: Machine, options: argparse.Namespace) -> None:
    """Run some steps with this many actors, and print a row."""
    folder.mkdir()
    graph = random_graph(options.nodes, options.degree)
    write_store(folder / "store", sources.GraphRows(graph), sources.edge_blocks(graph), actors)
    store, ray = open_store(folder / "store"), import_ray()
    running: list[MeasuredShards] = []

    def start(*given: Any) -> MeasuredShards:
        running.append(MeasuredShards(os.cpu_count() or 1, *given))
        return running[0]

    plan = Plan(folder / "work", start=start)
    loop = loop_over_store(bundle, store, options.steps, Final(), Euler(), plan)
    next(loop), next(loop)  # the input, and a step that warms up
    found = []
    for _ in range(options.steps - 1):
        started = time.perf_counter()
        next(loop)
        seconds = time.perf_counter() - started
        each = np.array(ray.get([actor.times.remote() for actor in running[0].actors]))
        work = each[:, 0].max() + each[:, 1].max()
        waited = running[0].waited
        found.append((seconds, work, each[:, 2].sum(), seconds - waited, waited - work))
    step, work, cpu, driver, exchange = 1e3 * np.min(found, axis=0)
    rows, senders = received(store)
    sizes = Sizes(options.nodes, graph.edges, options.hidden, PROXIES, CLASSES)
    shared = min(1.0, (os.cpu_count() or 1) / actors)  # actors copy their rows, and share the cores
    machine = replace(machine, bandwidth=shared * machine.bandwidth)
    cost = step_cost(sizes, actors, Exchange(rows, senders), machine)
    modelled = 1e3 * (cost.rows + cost.small + cost.driver)
    print(
        f"| {actors} | {rows:,} | {step:.0f} | {work:.0f} | {cpu:.0f} | {driver:.1f} | {exchange:.1f} | "
        f"{modelled:.1f} | {exchange / modelled:.2f} |",
        flush=True,
    )
    for actor in running[0].actors:
        ray.kill(actor)


def received(store: GraphStore) -> tuple[int, int]:
    """The most rows that a part receives from others, and the most parts that it receives from."""
    parts = [store.part(number) for number in range(store.parts)]
    return max(len(part.outside) for part in parts), max(len(part.senders()) for part in parts)


if __name__ == "__main__":
    main()
