"""The pretrained model on a graph file and on a graph store: time, peak memory, and equal predictions.

The graph has blocks with a description each and no labels; every command runs in a process of its own.

    python -m benchmarks.pretrained_store --nodes 200000 --edges 2000000 --features 128 --parts 16
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet

from adar_runtime import Graph, write_graph
from benchmarks.out_of_core import command, row

CLASSES, SAME_BLOCK = 8, 0.7


def main() -> None:
    """Make the graph, run the commands, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--parts", type=int, default=16)
    options = parser.parse_args()
    print("python -m benchmarks.pretrained_store " + " ".join(sys.argv[1:]))
    with tempfile.TemporaryDirectory() as name:
        _measure(Path(name), options)


def _measure(folder: Path, options: argparse.Namespace) -> None:
    # In a process of its own: a child begins with the memory of its parent.
    maker = multiprocessing.get_context("spawn").Process(target=write_input, args=(folder, options))
    maker.start()
    maker.join()
    graph, store = folder / "graph.npz", folder / "store"
    print("| | wall, s | CPU, s | peak memory, GB |\n|---|---|---|---|", flush=True)
    print(
        row("data shard", command("data", "shard", graph, "--parts", options.parts, "-o", store)), flush=True
    )
    fixed = ["--bundle", "pretrained", "--threads", 1]
    one, parts = folder / "one.json", folder / "predictions"
    print(row("run, the graph file", command("run", graph, *fixed, "-o", one)), flush=True)
    print(row("run, the store", command("run", store, *fixed, "-o", parts)), flush=True)
    found = np.empty(options.nodes, np.int64)
    for path in parts.glob("*.parquet"):
        table = pyarrow.parquet.read_table(path)
        found[table["output"].to_numpy()] = table["prediction"].to_numpy()
    expected = np.array(json.loads(one.read_text())["prediction"])
    print(f"{np.mean(found == expected):.4%} of the predictions are equal")


def write_input(folder: Path, options: argparse.Namespace) -> None:
    """A graph with blocks of nodes and their descriptions."""
    random = np.random.default_rng(0)
    block = np.arange(options.nodes) % CLASSES
    centres = random.standard_normal((CLASSES, options.features), np.float32)
    features = random.standard_normal((options.nodes, options.features), np.float32)
    features += centres[block] / 4
    source = random.integers(0, options.nodes, options.edges)
    inside = (source + CLASSES * random.integers(1, options.nodes // CLASSES, options.edges)) % options.nodes
    target = np.where(random.random(options.edges) < SAME_BLOCK, inside, random.permutation(source))
    described = (centres + random.standard_normal(centres.shape, np.float32) / 2).astype(np.float32)
    write_graph(folder / "graph.npz", Graph(features, np.stack([source, target]), target_features=described))


if __name__ == "__main__":
    main()
