"""Steps with Ray actors on this machine, against the cost model of `benchmarks.cost_model`.

The coefficients of the model are measured first, without shards: the CPU time of a step, per node and per
edge, in one process and in one on every core; how fast rows go from one actor to another; and how long the
calls of a step take with actors that compute nothing. Then a graph with random edges runs with 1, 2 and 4
actors, and the measured seconds of a step are divided by those of the model.

Each actor measures its own work, and the driver the time that it waits; the difference is the exchange: rows
that are gathered and travel, sums, and the calls of the driver. All figures are the least of several steps,
because other processes of the machine only add to them: run it on an idle machine.

    python -m benchmarks.exchange --nodes 400000 --degree 10 --steps 20
"""

import argparse
import math
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adar_runtime import Bundle, Euler, Final
from adar_runtime.distributed import ray_shards
from adar_runtime.distributed.cluster import connected, import_ray
from adar_runtime.graph import Floats
from adar_runtime.graph.store import GraphStore, open_store, sources, write_store
from adar_runtime.phases.run_store import Plan, loop_over_store
from adar_runtime.phases.workers import Message
from benchmarks.cost_model import (
    CLASSES,
    FLOAT,
    PROXIES,
    Exchange,
    Machine,
    Sizes,
    described,
    measured_at_once,
    random_bundle,
    random_graph,
    small_bytes,
    step_cost,
)

ROWS = 2**18  # that are sent to measure the bandwidth


class MeasuredActor(ray_shards.ShardActor):
    """A shard that records the wall time and the CPU time of its own work."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._spent: dict[str, tuple[float, float]] = {}

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the shard, and record the time."""
        started, cpu = time.perf_counter(), time.process_time()
        found = super().call(method, *arguments)
        self._spent[method] = time.perf_counter() - started, time.process_time() - cpu
        return found

    def times(self) -> tuple[float, float, float]:
        """Seconds of the last step: before and after the rows travel, and CPU time of both."""
        before, after = self._spent["message"], self._spent["update"]
        return before[0], after[0], before[1] + after[1]


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
    """An actor that gives and takes rows, as a shard does."""

    def __init__(self, width: int) -> None:
        self._array = np.ones((2 * ROWS, width), np.float32)

    def give(self, _message: Floats, rows: int) -> Floats:
        """Every second row, until these are so many."""
        found: Floats = self._array[np.arange(rows) * 2]
        return found

    def take(self, _message: Floats, block: Floats) -> int:
        """Copy the rows, as a shard does to put them behind its own."""
        return len(np.concatenate([block]))


class Calls(NamedTuple):
    """What Ray takes on this machine."""

    bandwidth: float  # bytes of rows per second: gathered, sent and copied
    latency: float  # seconds of a call, with what the driver puts into the object store for it
    call: float  # seconds to start one of many calls

    def machine(self, found: Machine) -> Machine:
        """The machine with these calls. Its states stay in the page cache, and no disk is waited for."""
        return replace(
            found, **self._asdict(), block=self.call / 10, disk=math.inf, cores=os.cpu_count() or 1
        )


def measured_calls(sizes: Sizes, repeats: int) -> Calls:
    """Measure with two actors that compute nothing."""
    ray = import_ray()
    giver, taker = (ray.remote(Echo).options(num_cpus=0.5).remote(sizes.hidden) for _ in range(2))
    message = np.ones(small_bytes(sizes) // FLOAT, np.float32)

    def seconds(rows: int) -> float:
        started = time.perf_counter()
        sending, receiving = ray.put(message), ray.put(message)
        ray.get(taker.take.remote(receiving, giver.give.remote(sending, rows)))
        return time.perf_counter() - started

    def starting() -> float:
        started = time.perf_counter()
        calls = [giver.give.remote(message[:1], 1) for _ in range(200)]
        spent = time.perf_counter() - started
        ray.get(calls)
        return spent / len(calls)

    seconds(ROWS)
    few, many = (min(seconds(rows) for _ in range(repeats)) for rows in (1, ROWS))
    call = min(starting() for _ in range(repeats))
    bandwidth = FLOAT * sizes.hidden * ROWS / (many - few)
    for each in (giver, taker):
        ray.kill(each)
    return Calls(bandwidth, few / 2, call)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=400_000)
    parser.add_argument("--degree", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--measured-nodes", type=int, default=500_000, help="for the coefficients")
    options = parser.parse_args()
    print("python -m benchmarks.exchange " + " ".join(sys.argv[1:]))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    machines = {}
    for processes in sorted({min(actors, os.cpu_count() or 1) for actors in options.actors}):
        machines[processes] = measured_at_once(processes, options.hidden, options.measured_nodes)
        print(f"CPU time of a step, {processes} at once: {described(machines[processes])}")
    sizes = Sizes(options.nodes, options.degree * options.nodes, options.hidden, PROXIES, CLASSES)
    with connected("auto"), tempfile.TemporaryDirectory() as name:
        ray_shards.ShardActor = MeasuredActor  # type: ignore[misc]
        calls = measured_calls(sizes, repeats=15)
        print(
            f"between two actors {calls.bandwidth / 1e9:.2f} GB/s, latency {1e3 * calls.latency:.2f} ms, "
            f"start of a call {1e3 * calls.call:.2f} ms\n"
        )
        print(
            "| actors | rows received by an actor | work of the slowest, ms | CPU of all, ms | step, ms | "
            "model, ms | step / model | exchange, ms | model, ms | exchange / model |\n" + "|---" * 10 + "|"
        )
        bundle = random_bundle(Path(name), options.hidden)
        for actors in options.actors:
            machine = calls.machine(machines[min(actors, os.cpu_count() or 1)])
            measure(bundle, Path(name) / str(actors), actors, machine, sizes, options)


def measure(
    bundle: Bundle, folder: Path, actors: int, machine: Machine, sizes: Sizes, options: argparse.Namespace
) -> None:
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
        found.append((work, each[:, 2].sum(), seconds, running[0].waited - work))
    work, cpu, step, exchange = 1e3 * np.min(found, axis=0)
    rows, senders = received(store)
    cost = step_cost(sizes, actors, Exchange(rows, senders), machine)
    modelled = 1e3 * sum(cost)
    exchanged = 1e3 * (cost.rows + cost.small + cost.driver - machine.per_step)
    of_step = f"{step:.0f} | {modelled:.0f} | {step / modelled:.2f}"
    of_exchange = f"{exchange:.1f} | {exchanged:.1f} | {exchange / exchanged:.2f}"
    print(f"| {actors} | {rows:,} | {work:.0f} | {cpu:.0f} | {of_step} | {of_exchange} |", flush=True)
    for actor in running[0].actors:
        ray.kill(actor)


def received(store: GraphStore) -> tuple[int, int]:
    """The most rows that a part receives from others, and the most parts that it receives from."""
    parts = [store.part(number) for number in range(store.parts)]
    return max(len(part.outside) for part in parts), max(len(part.senders()) for part in parts)


if __name__ == "__main__":
    main()
