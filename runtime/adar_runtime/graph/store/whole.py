"""All parts of a store as one graph. Its dense features stay on disk."""

from pathlib import Path

import numpy as np

from adar_runtime.graph import Floats, Graph, Integers, SparseRows
from adar_runtime.graph.store.store import DENSE, SPARSE, GraphStore


def whole_graph(store: GraphStore, spool: Path) -> Graph:
    """The graph of a store, with its nodes in the order that they had before they were in parts.

    Args:
        store: The store.
        spool: File for dense features. The graph maps it.

    Returns:
        Nodes, edges, class descriptions and known labels; `train_mask` has the nodes with known labels.
    """
    known = store.known_labels
    return Graph(
        _features(store, spool),
        _edges(store),
        labels=known,
        train_mask=None if known is None else known >= 0,
        target_features=store.target_features,
        class_names=store.class_names,
    )


def sparse_bytes(store: GraphStore) -> int:
    """The size of the features if they are sparse, which are in memory; 0 for dense ones."""
    if DENSE[0] in store.files[0]:
        return 0
    parts = [store.part(number) for number in range(store.parts)]
    return sum(part.array(name).nbytes for part in parts for name in SPARSE)


def _features(store: GraphStore, spool: Path) -> Floats | SparseRows:
    parts = [store.part(number) for number in range(store.parts)]
    if DENSE[0] not in store.files[0]:
        return _sparse(store)
    shape = (store.nodes, store.features)
    rows: Floats = np.memmap(spool, np.float32, "w+", shape=shape)
    for part in parts:
        rows[part.numbers] = part.array(DENSE[0])
    return rows


def _sparse(store: GraphStore) -> SparseRows:
    """The rows of all parts, which are sparse."""
    parts = [store.part(number) for number in range(store.parts)]
    found = [[part.array(name) for part in parts] for name in SPARSE]
    counts = np.concatenate([np.diff(starts) for starts in found[0]])
    starts = np.concatenate([[0], np.cumsum(counts)])
    columns, values = (np.concatenate(arrays) for arrays in found[1:])
    joined = SparseRows(starts, columns, values, (store.nodes, store.features))
    return joined.take(np.argsort(_order(store)))


def _order(store: GraphStore) -> Integers:
    """The numbers in the graph of all nodes, part by part, [n]."""
    return np.concatenate([store.part(number).numbers for number in range(store.parts)])


def _edges(store: GraphStore) -> Integers:
    """All edges by the numbers in the graph, [2, m]."""
    order, found = _order(store), []
    for number in range(store.parts):
        part = store.part(number)
        of_row = np.concatenate([part.numbers, order[part.outside]])  # numbers in the graph
        neighbours = part.neighbours
        found.append(np.stack([of_row[neighbours.sources], part.numbers[neighbours.targets]]))
    return np.concatenate(found, axis=1)
