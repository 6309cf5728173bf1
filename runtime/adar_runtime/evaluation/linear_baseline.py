"""A simple model beside AdaR: ridge regression on features that are averaged over neighbours. numpy only."""

import numpy as np

from adar_runtime.evaluation.uncertainty import Estimate, pooled_estimates
from adar_runtime.graph import NODE, Floats, Graph, SparseRows

NAME = "ridge regression on smoothed features"
HOPS = 2
WIDEST = 512  # columns; wider features are projected at random to this width
PENALTIES = (0.01, 1.0, 100.0)  # relative to the mean variance; the validation part chooses
MOST_NUMBERS = 2**27  # in the largest matrix: half a gigabyte


def linear_baseline(graph: Graph, part: str, split: int = 0) -> Estimate | None:
    """Train on the training part of a graph, and score like the model.

    Args:
        graph: A graph with labels of nodes, and masks.
        part: The part to score: "test" or "all".
        split: Number of the split.

    Returns:
        The metric with its interval; None where there is no training part, or the graph is too large.
    """
    train = graph.labelled("train", split) if graph.train_mask is not None else None
    if graph.level != NODE or train is None or part not in ("train", "val", "test"):
        return None
    rows = max((HOPS + 1) * graph.nodes, graph.edges)
    if rows * min(graph.width, WIDEST) > MOST_NUMBERS or graph.labels is None:
        return None
    x = _smoothed(graph)
    targets = graph.labels if graph.regression else np.eye(graph.targets)[np.maximum(graph.labels, 0)]
    mean = targets[train].mean(axis=0)
    gram, product = x[train].T @ x[train], x[train].T @ (targets[train] - mean)
    scale = float(np.trace(gram)) / len(gram) or 1.0
    best: tuple[float, Estimate] | None = None
    for penalty in PENALTIES:
        weights = np.linalg.solve(gram + penalty * scale * np.eye(len(gram)), product)
        scores = (x @ weights + mean).astype(np.float32)
        found = pooled_estimates([graph], [scores], split, ["val", part])
        if part in found:
            chosen = found.get("val", found[part]).value if "val" in found else -penalty
            if best is None or chosen > best[0]:
                best = chosen, found[part]
    return None if best is None else best[1]


def _smoothed(graph: Graph) -> Floats:
    """The features, and their means over neighbours of one and two hops, side by side and centred."""
    source, target = graph.edge_index
    degree = np.maximum(1, np.bincount(target, minlength=graph.nodes))[:, None]
    hops = [_features(graph)]
    order = np.argsort(target, kind="stable")
    source, target = source[order], target[order]
    starts = np.flatnonzero(np.diff(target, prepend=-1))
    for _ in range(HOPS):
        sums = np.zeros_like(hops[-1])
        if len(starts):
            sums[target[starts]] = np.add.reduceat(hops[-1][source], starts, axis=0)
        hops.append((sums / degree).astype(np.float32))
    x = np.concatenate(hops, axis=1)
    return x - x.mean(axis=0)


def _features(graph: Graph) -> Floats:
    """The features as a dense matrix of at most WIDEST columns."""
    if graph.width <= WIDEST:
        return graph.rows(0, graph.nodes)
    directions = np.random.default_rng(0).normal(size=(graph.width, WIDEST)).astype(np.float32)
    directions /= np.float32(np.sqrt(WIDEST))
    if not isinstance(graph.features, SparseRows):
        return graph.features @ directions
    blocks = [graph.rows(start, start + 1_000) @ directions for start in range(0, graph.nodes, 1_000)]
    return np.concatenate(blocks)
