"""New nodes from a kept inference: latency against a full inference, and agreement with the grown graph.

Both sides of the latency run in turns in one process. The ratio has its median and its range over repeats;
CPU time is printed too, because other processes lengthen wall time.

For the agreement, a share of the nodes is removed, the rest is kept, and the context answers for the removed
nodes with all their edges. The full inference of the whole graph is the reference.

    adar-deploy train ../shared/data/more/acm.npz --preset quick --epochs 15 --out runs/acm
    adar-deploy export runs/acm --out bundles/acm
    python -m benchmarks.new_nodes ../shared/data/more/acm.npz --bundle bundles/acm

`--run runs/acm` takes a training run instead of a bundle; `--repeats 0` measures the agreement only. Without
both, the latency of an untrained model is measured, which is that of a trained one.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from adar_export.writer import open_unmeasured
from adar_runtime import AdamsBashforth2, Bundle, Graph, SparseRows, load, read_graph
from adar_runtime.graph import Integers
from adar_runtime.phases.context import Context
from adar_train import ModelConfig, load_run
from adar_train.untrained import trial_run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--run", type=Path, help="training run to use instead of a bundle")
    parser.add_argument("--budget", type=int, default=300)
    parser.add_argument("--calls", type=int, default=32, help="cell calls of the solver ab2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--answers", type=int, default=50, help="single nodes that are answered per repeat")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.01, 0.1])
    options = parser.parse_args()
    graph = read_graph(options.graph)
    print(f"{options.graph.stem}: {graph.nodes:,} nodes, {graph.edges:,} edges, {options.calls} calls")
    with tempfile.TemporaryDirectory() as folder:
        if options.bundle is not None:
            bundle = load(options.bundle, threads=options.threads)
        else:
            bundle = _unmeasured(graph, options.run, Path(folder))
        if options.repeats:
            _latency(bundle, graph, options)
        is_trained = options.bundle is not None or options.run is not None
        for share in options.shares if is_trained else []:
            _agreement(bundle, graph, share, options)


def _unmeasured(graph: Graph, path: Path | None, folder: Path) -> Bundle:
    """A bundle of a training run or, without one, of an untrained model."""
    if path is None:
        run = trial_run(folder / "run", graph, ModelConfig(graph.width, graph.targets))
    else:
        run = load_run(path)
    (folder / "bundle").mkdir()
    bundle = open_unmeasured(run, folder / "bundle")
    bundle.manifest = replace(bundle.manifest, convergence={"order": 1.0})  # so that it accepts the solver
    return bundle


def _latency(bundle: Bundle, graph: Graph, options: argparse.Namespace) -> None:
    solver, random = AdamsBashforth2(options.calls), np.random.default_rng(0)
    context = bundle.remember(graph, options.budget, solver=solver)
    print(context)
    wall, ratios, cpu = [], [], []
    for _ in range(options.repeats):
        full, full_cpu = _seconds(lambda: bundle.run(graph, options.budget, solver=solver))
        chosen = random.integers(0, graph.nodes, options.answers)
        answers = [_seconds(_question(context, graph, int(node))) for node in chosen]
        wall += [seconds for seconds, _ in answers]
        cpu += [seconds for _, seconds in answers]
        ratios.append((full / statistics.median(wall), full_cpu / statistics.median(cpu)))
    by_wall, by_cpu = ([*map(round, sorted(column))] for column in zip(*ratios, strict=True))
    print(
        f"one node: p50 {_ms(wall, 50)} ms, p95 {_ms(wall, 95)} ms; CPU time p50 {_ms(cpu, 50)} ms; "
        f"a full inference takes {by_wall[len(by_wall) // 2]} × as long [{by_wall[0]}, {by_wall[-1]}], "
        f"{by_cpu[len(by_cpu) // 2]} × the CPU time [{by_cpu[0]}, {by_cpu[-1]}]"
    )


def _question(context: Context, graph: Graph, node: int) -> Callable[[], object]:
    """Ask for a copy of a node as a new node."""
    source = graph.edge_index[0, graph.edge_index[1] == node]
    edges, features = np.stack([source, np.full(len(source), graph.nodes)]), graph.rows(node, node + 1)
    return lambda: context.predict(features, edges)


def _agreement(bundle: Bundle, graph: Graph, share: float, options: argparse.Namespace) -> None:
    solver = AdamsBashforth2(options.calls)
    removed = np.sort(np.random.default_rng(1).permutation(graph.nodes)[: round(share * graph.nodes)])
    kept = np.setdiff1d(np.arange(graph.nodes), removed)
    number = np.empty(graph.nodes, np.int64)
    number[kept], number[removed] = np.arange(len(kept)), len(kept) + np.arange(len(removed))
    edges = number[graph.edge_index]
    among_kept = (edges < len(kept)).all(axis=0)
    rest = Graph(_rows(graph, kept), edges[:, among_kept], target_features=graph.target_features)
    expected = bundle.run(graph, options.budget, solver=solver)
    context = bundle.remember(rest, options.budget, solver=solver)
    found = context.predict(_rows(graph, removed), edges[:, edges[1] >= len(kept)])
    same = np.mean(found.predictions == expected.predictions[removed])
    answers = (np.asarray(each.predictions, np.int64) for each in (expected, found))
    labelled = "" if graph.labels is None else _accuracy(graph, removed, *answers)
    print(
        f"{share:.0%} removed: {same:.2%} of {len(removed):,} predictions are those of the full run{labelled}"
    )


def _rows(graph: Graph, nodes: Integers) -> np.ndarray | SparseRows:
    if not isinstance(graph.features, SparseRows):
        return graph.features[nodes]
    return np.concatenate([graph.rows(node, node + 1) for node in nodes])


def _accuracy(graph: Graph, nodes: Integers, full: Integers, kept: Integers) -> str:
    assert graph.labels is not None
    known = graph.labels[nodes] >= 0
    right = (np.mean(each[known] == graph.labels[nodes][known]) for each in (full[nodes], kept))
    return "; accuracy on them {:.1%} in the full run, {:.1%} from the context".format(*right)


def _ms(seconds: list[float], percent: int) -> str:
    return f"{np.percentile(seconds, percent) * 1e3:.2f}"


def _seconds(action: Callable[[], object]) -> tuple[float, float]:
    started, started_cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - started, time.process_time() - started_cpu


if __name__ == "__main__":
    main()
