"""New nodes from a kept inference: latency against a full inference, and agreement with the grown graph.

Both sides of the latency run in turns in one process. The ratio has its median and its range over repeats;
CPU time is printed too, because other processes lengthen wall time.

For the agreement, a share of the nodes is removed, the rest is kept, and the context answers for the removed
nodes with all their edges. The full inference of the whole graph is the reference. The last column compares
the kept nodes of the two inferences: they change too, because the removed nodes are missing.

    adar-deploy train ../shared/data/more/acm.npz --preset quick --epochs 15 --out runs/acm
    adar-deploy export runs/acm --out bundles/acm
    python -m benchmarks.new_nodes ../shared/data/more/acm.npz --bundle bundles/acm

`--run runs/acm` takes a training run instead of a bundle; `--repeats 0` measures the agreement only. Without
both, the latency of an untrained model is measured, which is that of a trained one.

`--bundle adar_deploy/pretrained` takes the pretrained model: nodes with known labels stay in the kept graph.
`--labels 5` keeps five known labels of each class, `--labels 0` none.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from adar_export.writer import open_unmeasured
from adar_runtime import AdamsBashforth2, Bundle, Graph, SparseRows, load, read_graph
from adar_runtime.errors import UsageError
from adar_runtime.graph import Integers
from adar_runtime.in_context.start import known_labels
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
    parser.add_argument("--exit", help="stop rule for the agreement, such as final; the bundle's by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--answers", type=int, default=50, help="single nodes that are answered per repeat")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.01, 0.1])
    parser.add_argument("--hops", type=int, nargs="+", default=[0, 1, 2, 3], help="how far kept nodes react")
    parser.add_argument(
        "--labels", type=int, help="known labels of each class; those of train_mask by default"
    )
    options = parser.parse_args()
    graph = read_graph(options.graph)
    if options.labels is not None:
        graph = _with_labels(graph, options.labels)
    print(f"{options.graph.stem}: {graph.nodes:,} nodes, {graph.edges:,} edges, {options.calls} calls")
    with tempfile.TemporaryDirectory() as folder:
        if options.bundle is not None:
            bundle = load(options.bundle, threads=options.threads)
        else:
            bundle = _unmeasured(graph, options.run, Path(folder))
        if options.repeats:
            _latency(bundle, graph, options)
        is_trained = options.bundle is not None or options.run is not None
        if is_trained and options.shares:
            _agreements(bundle, graph, options)


def _with_labels(graph: Graph, count: int) -> Graph:
    """The graph with this many known labels of each class. Without any, its class descriptions are used."""
    if graph.labels is None:
        raise UsageError("--labels needs a graph with labels")
    order, mask = np.random.default_rng(0).permutation(graph.nodes), np.zeros(graph.nodes, np.bool_)
    for number in range(graph.targets):
        mask[order[graph.labels[order] == number][:count]] = True
    described = graph.target_features if count == 0 else None
    return replace(graph, train_mask=mask, val_mask=None, test_mask=None, target_features=described)


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
    print(
        f"{context}\n\n| hops | p50, ms | p95, ms | least, ms | CPU p50, ms | full / one node | in CPU time |"
    )
    print("|---|---|---|---|---|---|---|")
    wall, cpu, ratios = ({hops: list[Any]() for hops in options.hops} for _ in range(3))
    for _ in range(options.repeats):
        full, full_cpu = _seconds(lambda: bundle.run(graph, options.budget, solver=solver))
        chosen = [
            _question(context, graph, int(node)) for node in random.integers(0, graph.nodes, options.answers)
        ]
        for hops in options.hops:
            answers = [_seconds(partial(context.predict, *question, hops=hops)) for question in chosen]
            wall[hops] += [seconds for seconds, _ in answers]
            cpu[hops] += [seconds for _, seconds in answers]
            halves = (statistics.median(column) for column in zip(*answers, strict=True))
            ratios[hops].append([each / half for each, half in zip((full, full_cpu), halves, strict=True)])
    for hops in options.hops:
        by_wall, by_cpu = ([*map(round, sorted(column))] for column in zip(*ratios[hops], strict=True))
        print(
            f"| {hops} | {_ms(wall[hops], 50)} | {_ms(wall[hops], 95)} | {_ms(wall[hops], 0)} | "
            f"{_ms(cpu[hops], 50)} | "
            f"{_spread(by_wall)} | {_spread(by_cpu)} |"
        )


def _question(context: Context, graph: Graph, node: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and edges of a new node that is a copy of a node, with its edges in both directions."""
    ends = graph.edge_index[:, (graph.edge_index == node).any(axis=0)]
    return graph.rows(node, node + 1), np.where(ends == node, context.nodes, ends)


def _spread(ratios: list[int]) -> str:
    return f"{ratios[len(ratios) // 2]} × [{ratios[0]}, {ratios[-1]}]"


def _agreements(bundle: Bundle, graph: Graph, options: argparse.Namespace) -> None:
    """A table of agreement and accuracy by the share of removed nodes."""
    by_hops = [f"hops {hops}" for hops in options.hops]
    same, right = ([f"{what}, {each}" for each in by_hops] for what in ("same", "accuracy"))
    columns = ["removed", "nodes", *same, "accuracy, full", *right, "same, kept nodes"]
    print(f"\n| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    solver = AdamsBashforth2(options.calls)
    expected = bundle.run(graph, options.budget, options.exit, solver).predictions
    for share in options.shares:
        _agreement(bundle, graph, share, expected, options)


def _agreement(
    bundle: Bundle, graph: Graph, share: float, expected: np.ndarray, options: argparse.Namespace
) -> None:
    others = np.flatnonzero(known_labels(graph) < 0) if bundle.manifest.in_context else np.arange(graph.nodes)
    removed = np.sort(np.random.default_rng(1).permutation(others)[: round(share * graph.nodes)])
    kept = np.setdiff1d(np.arange(graph.nodes), removed)
    number = np.empty(graph.nodes, np.int64)
    number[kept], number[removed] = np.arange(len(kept)), len(kept) + np.arange(len(removed))
    edges = number[graph.edge_index]
    among_kept = (edges < len(kept)).all(axis=0)
    labels = known_labels(graph)[kept] if bundle.manifest.in_context else None
    rest = Graph(
        _rows(graph, kept),
        edges[:, among_kept],
        labels,
        train_mask=None if labels is None else labels >= 0,
        target_features=graph.target_features,
    )
    context = bundle.remember(rest, options.budget, options.exit, AdamsBashforth2(options.calls))
    same, right = list[str](), [_accuracy(graph, removed, expected[removed])]
    for hops in options.hops:
        found = context.predict(_rows(graph, removed), edges[:, ~among_kept], hops=hops).predictions
        same.append(f"{np.mean(found == expected[removed]):.2%}")
        right.append(_accuracy(graph, removed, found))
    right.append(f"{np.mean(context.result.predictions == expected[kept]):.2%}")
    print(f"| {share:.0%} | {len(removed):,} | {' | '.join(same)} | {' | '.join(right)} |", flush=True)


def _rows(graph: Graph, nodes: Integers) -> np.ndarray | SparseRows:
    if not isinstance(graph.features, SparseRows):
        return graph.features[nodes]
    return np.concatenate([graph.rows(node, node + 1) for node in nodes])


def _accuracy(graph: Graph, nodes: Integers, predictions: np.ndarray) -> str:
    """The accuracy of predictions for these nodes, as a cell of the table."""
    if graph.labels is None:
        return ""
    known = graph.labels[nodes] >= 0
    return f"{np.mean(predictions[known] == graph.labels[nodes][known]):.1%}"


def _ms(seconds: list[float], percent: int) -> str:
    return f"{np.percentile(seconds, percent) * 1e3:.2f}"


def _seconds(action: Callable[[], object]) -> tuple[float, float]:
    started, started_cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - started, time.process_time() - started_cpu


if __name__ == "__main__":
    main()
