"""A graph larger than the memory: shard it from a table of edges, and run it under a limit of memory.

The model has random weights: time and memory do not depend on them. Every neighbour is a random node, which
is the worst case for the exchange between parts. Sharding and running are commands of their own, with their
own peak memory. CPU time is printed too, because other processes lengthen wall time. With --interrupt, the
run gets SIGTERM after some calls, and the same command continues it. At the end, the predictions are counted.

    python -m benchmarks.out_of_core --nodes 1000000 --edges 10000000 --parts 16 --memory 2GB --calls 3
    python -m benchmarks.out_of_core --nodes 1000000 --edges 10000000 --parts 16 --calls 8 --interrupt 4
"""

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet

from adar_runtime.phases.run_record import FILE_NAME

BLOCK = 2**21  # edges that are made at once
TARGETS = 4


class Cost(NamedTuple):
    """What a command took."""

    seconds: float
    cpu: float
    peak: float  # GB
    calls: int = 0  # cell calls before it was ended


def main() -> None:
    """Make the files, run the commands, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--features", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--calls", type=int, default=3, help="cell calls, of Euler's method")
    parser.add_argument("--interrupt", type=int, help="end the run after this many calls, and continue it")
    parser.add_argument("--folder", type=Path, help="where the files go; a temporary folder by default")
    options = parser.parse_args()
    print("python -m benchmarks.out_of_core " + " ".join(sys.argv[1:]))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        measure(Path(name), options)


def measure(folder: Path, options: argparse.Namespace) -> None:
    """Measure both commands."""
    # In a process of its own: a child begins with the memory of its parent, and PyTorch takes much.
    maker = multiprocessing.get_context("spawn").Process(target=write_inputs, args=(folder, options))
    maker.start()
    maker.join()
    sharding = command(
        "data", "shard", folder / "x.npy", "--edges", folder / "edges.parquet",
        "--parts", options.parts, "-o", folder / "store",
    )  # fmt: skip
    (folder / "edges.parquet").unlink()
    fixed = ["--bundle", folder / "bundle", "--memory", options.memory, "--threads", 1]
    run = ["run", folder / "store", *fixed, "--exit", "final", "--solver", "euler"]
    print("| | wall, s | CPU, s | peak memory, GB |\n|---|---|---|---|", flush=True)
    print(row("data shard", sharding), flush=True)

    def times(calls: int, interrupt: int | None = None) -> Cost:
        output = folder / f"predictions-{calls}"
        return command(*run, "--max-steps", calls, "--output", output, record=output, interrupt=interrupt)

    if options.interrupt is None:
        one, all_calls = times(1), times(options.calls)
        print(row(f"run, {options.calls} calls", all_calls))
        if options.calls > 1:
            wall, cpu = ((all_calls[i] - one[i]) / (options.calls - 1) for i in (0, 1))
            print(row("run, each further call", Cost(wall, cpu, 0)))
    else:
        first = times(options.calls, options.interrupt)
        print(row(f"run, SIGTERM after {first.calls} of {options.calls} calls", first), flush=True)
        print(row(f"the same command, {options.calls - first.calls} calls more", times(options.calls)))
    print(counted(folder / f"predictions-{options.calls}", options.nodes))


def counted(predictions: Path, nodes: int) -> str:
    """Check that each node has one prediction, and that nothing of the run is left; say so."""
    found = np.zeros(nodes, np.int8)
    files = sorted(predictions.glob("*.parquet"))
    for file in files:
        table = pyarrow.parquet.read_table(file)
        number, *_, probability = table.columns
        found[number.to_numpy()] += 1
        if not np.isfinite(probability.to_numpy()).all():
            raise SystemExit(f"{file.name} has numbers that are not finite")
    if not (found == 1).all() or (predictions / "unfinished").exists():
        raise SystemExit(f"{np.count_nonzero(found != 1):,} nodes do not have exactly one prediction")
    return f"{len(files)} files of predictions: each of the {nodes:,} nodes once, all finite."


def write_inputs(folder: Path, options: argparse.Namespace) -> None:
    """Features, edges in a Parquet file, and a bundle with random weights."""
    from adar_export.writer import open_unmeasured
    from adar_runtime.graph import Graph
    from adar_train import ModelConfig
    from adar_train.untrained import trial_run

    random = np.random.default_rng(0)
    features = np.lib.format.open_memmap(
        folder / "x.npy", "w+", np.float32, (options.nodes, options.features)
    )
    for start in range(0, options.nodes, BLOCK):
        rows = features[start : start + BLOCK]
        rows[:] = random.standard_normal(rows.shape, np.float32)
    schema = pyarrow.schema([("source", pyarrow.int32()), ("target", pyarrow.int32())])
    with pyarrow.parquet.ParquetWriter(folder / "edges.parquet", schema, use_dictionary=False) as file:
        for start in range(0, options.edges, BLOCK):
            count = min(BLOCK, options.edges - start)
            ends = (random.integers(0, options.nodes, count, np.int32) for _ in range(2))
            file.write_table(pyarrow.table(list(ends), schema))
    graph = Graph(features[:1000], np.zeros((2, 0), np.int64))
    config = ModelConfig(options.features, TARGETS, hidden=options.hidden)
    (folder / "bundle").mkdir()
    open_unmeasured(trial_run(folder / "run", graph, config), folder / "bundle")


def command(*words: object, record: Path | None = None, interrupt: int | None = None) -> Cost:
    """Run `adar-deploy` in a process of its own, and end it after `interrupt` calls in the record."""
    started, calls = time.perf_counter(), 0
    process = subprocess.Popen(
        [sys.executable, "-m", "adar_deploy", *map(str, words)], stdout=subprocess.DEVNULL
    )
    if interrupt is not None:
        assert record is not None
        while (calls := finished_calls(record)) < interrupt:
            if process.poll() is not None:
                raise SystemExit(f"adar-deploy {words[0]} ended after {calls} calls")
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != (0 if interrupt is None else 128 + signal.SIGTERM):
        raise SystemExit(f"adar-deploy {words[0]} failed")
    seconds, cpu = time.perf_counter() - started, used.ru_utime + used.ru_stime
    return Cost(seconds, cpu, used.ru_maxrss / 2**20 * 1.073741824, calls)


def finished_calls(output: Path) -> int:
    """The cell calls in the record of an unfinished run."""
    path = output / "unfinished" / FILE_NAME
    return len(json.loads(path.read_text())["calls"]) if path.exists() else 0


def row(name: str, cost: Cost) -> str:
    """A row of the table."""
    return f"| {name} | {cost.seconds:.1f} | {cost.cpu:.1f} | {f'{cost.peak:.2f}' if cost.peak else ''} |"


if __name__ == "__main__":
    main()
