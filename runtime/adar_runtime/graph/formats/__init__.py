"""Read and write graph files. All bytes from outside become arrays in this folder, and only here.

Public: `read_graph`, `read_graphs`, `write_graph`, `read_tables`, `import_graph`, and the modules without an
underscore.

- `.npz` is read without pickle.
- `.pt` is read by an interpreter of our own (`_pickles.py`), which knows the names that PyTorch and PyG write
  for tensors and a `Data`, and imports nothing. A file with other names is refused. PyTorch is not needed.
- Only the keys of a graph are read, and only after their sizes were checked against the limits.

To add a graph format, write a module with `read` and `encode`, and add one line to `FORMATS`.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from adar_runtime.errors import GraphError, UsageError
from adar_runtime.files import write_file
from adar_runtime.graph import FeatureEncoding, Graph
from adar_runtime.graph.feature_encoding import LABEL_KINDS
from adar_runtime.graph.formats import graphml, npz, parquet_graphs, pt
from adar_runtime.graph.formats._graph_file import reading
from adar_runtime.graph.formats._tables import Imported, TableChoice
from adar_runtime.graph.formats.tables import (
    EDGES,
    TABLES,
    read_edge_list,
    read_tables,
    with_chosen_directions,
)
from adar_runtime.graph.limits import check_size

__all__ = [
    "FORMATS",
    "LABEL_KINDS",
    "TABLES",
    "GraphFormat",
    "Imported",
    "TableChoice",
    "count_graphs",
    "import_graph",
    "read_graph",
    "read_graphs",
    "read_tables",
    "write_graph",
]


class GraphFormat(NamedTuple):
    """How graphs are read from and written to files of one suffix."""

    read: Callable[[Path], Graph]
    encode: Callable[[Graph], bytes]


class ManyGraphsFormat(NamedTuple):
    """How all graphs of a file of one suffix are read and counted. The count of one graph is None."""

    read: Callable[[Path], list[Graph]]
    how_many: Callable[[Path], int | None]


FORMATS = {
    ".npz": GraphFormat(npz.read, npz.encode),
    ".pt": GraphFormat(pt.read, pt.encode),
}
"""Suffix -> format."""

MANY = {
    ".npz": ManyGraphsFormat(npz.read_many, npz.count),
    ".pt": ManyGraphsFormat(pt.read_many, pt.count),
    parquet_graphs.SUFFIX: ManyGraphsFormat(parquet_graphs.read, parquet_graphs.count),
}
"""Suffix -> how all graphs of a file are read and counted."""

NETWORKX = (".graphml", ".gml")


def read_graph(path: str | Path) -> Graph:
    """Read a graph from a `.npz` or `.pt` file.

    Args:
        path: The file. Its keys are `x` (required), `edge_index` (required), `y`, `train_mask`, `val_mask`,
            `test_mask`, `target_x`, `class_names`, `pairs`, `level`, `ids` and `edge_weight`. Sparse features
            in `.npz` are `x_indptr`, `x_indices`, `x_data` and `x_shape` instead of `x`. A `.pt` file holds a
            PyG `Data`; PyTorch is not needed to read it.

    Returns:
        The checked graph.

    Raises:
        GraphError: The file cannot be read, is too large, or does not contain a valid graph.

    Examples:
        >>> graph = read_graph("graph.npz")  # doctest: +SKIP
        >>> graph.nodes, graph.edges  # doctest: +SKIP
        (10000, 78804)
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        hint = (
            ": convert the file with adar-deploy data convert" if path.suffix in (*EDGES, *NETWORKX) else ""
        )
        if path.suffix in TABLES:
            hint = ": a table of nodes needs --edges, the table of its edges (in Python: read_tables)"
        raise GraphError(f"{path}: a graph file ends in {_either(FORMATS)}; got {_suffix(path)}{hint}")
    with reading(path):
        return FORMATS[path.suffix].read(path)


def read_npz(path: Path, max_bytes: int) -> Graph:
    """Read a `.npz` file whose arrays may take at most so many bytes. Servers have such a limit.

    Raises:
        GraphError: As for `read_graph`; or the arrays would take more.
    """
    with reading(path):
        return npz.read(path, max_bytes)


def read_graphs(path: str | Path) -> list[Graph]:
    """Read all graphs of a file: one, or many small ones.

    Args:
        path: As for `read_graph`. A `.npz` file of many graphs has `node_ptr` and `edge_ptr` (see
            `formats.many_graphs`). A `.pt` file of many graphs holds a list of PyG `Data`, or what PyG's
            `InMemoryDataset.save` writes. A `.parquet` has one row for each graph (see
            `formats.parquet_graphs`).

    Returns:
        The checked graphs.

    Raises:
        GraphError: As for `read_graph`.

    Examples:
        >>> len(read_graphs("threads.npz"))  # doctest: +SKIP
        10000
    """
    path = Path(path)
    if path.suffix not in MANY:
        return [read_graph(path)]
    with reading(path):
        return MANY[path.suffix].read(path)


def count_graphs(path: str | Path) -> int | None:
    """Count the graphs of a file that holds many.

    Args:
        path: The file.

    Returns:
        The number of graphs; None for a file of one graph, and for a file that cannot be read.
    """
    path = Path(path)
    return MANY[path.suffix].how_many(path) if path.suffix in MANY and path.is_file() else None


def import_graph(
    path: str | Path,
    table: str | Path | None = None,
    label: str | None = None,
    kind: str | None = None,
    encoding: FeatureEncoding | None = None,
    *,
    both_ways: bool | None = None,
) -> Imported:
    """Read a graph file of another program: edges, GraphML or GML. `.npz` and `.pt` work as well.

    Args:
        path: The file.
        table: For edges: the table of nodes. `read_tables` has more options for the two tables.
        label: Column or attribute of the labels. Default: "y", "label", "class" or "target", if one exists.
        kind: "classes" or "numbers" (regression targets). Default: "numbers" if a label has a fraction.
        encoding: The encoding of a model: columns and attributes become the features that it was trained on.
        both_ways: Add the reverse of every edge. Default: as in the encoding.

    Returns:
        The graph, and notes on what was converted and how.

    Raises:
        GraphError: A file cannot be read or is not a graph. The message names the file and line.
        UsageError: The arguments do not fit the kind of file.

    Examples:
        >>> import_graph("edges.csv", table="nodes.csv").graph  # doctest: +SKIP
    """
    path, table = Path(path), None if table is None else Path(table)
    choice = TableChoice(label=label, labels=kind, both_ways=both_ways)
    if table is not None:
        return read_tables(table, path, choice, encoding)
    if path.suffix in FORMATS:
        if label is not None or kind is not None or encoding is not None:
            raise UsageError(f"{path} has its features and labels: omit --label, --labels and --bundle")
        return Imported(with_chosen_directions(read_graph(path), choice), [])
    choice = replace(choice, both_ways=choice.completed(encoding).both_ways)
    if path.suffix in EDGES:
        return read_edge_list(path, choice, encoding)
    if path.suffix not in NETWORKX:
        known = _either((*FORMATS, *NETWORKX, *EDGES))
        raise GraphError(f"{path}: a file to convert ends in {known}; got {_suffix(path)}")
    with reading(path):
        check_size(path)
        imported = graphml.read(path, choice, encoding)
    return replace(imported, graph=with_chosen_directions(imported.graph, choice))


def write_graph(path: str | Path, graph: Any, check: Callable[[], object] = lambda: None) -> None:
    """Write a graph to a `.npz` or `.pt` file, which `read_graph` reads again.

    Args:
        path: The file. An existing file is replaced.
        graph: The graph, or anything that `adar_deploy.as_graph` converts to one.
        check: May refuse the file at `path`, just before it is replaced.

    Raises:
        UsageError: The suffix is unknown, or the file cannot be written.
        MissingExtraError: A `.pt` file needs PyTorch and PyG, which are not installed.

    Examples:
        >>> write_graph("graph.npz", Graph(features, edge_index, labels))  # doctest: +SKIP
    """
    path = Path(path)
    check_graph_suffix(path)
    from adar_runtime.graph.in_memory import as_graph  # which reads files

    write_file(path, FORMATS[path.suffix].encode(as_graph(graph)), check)


def check_graph_suffix(path: Path) -> None:
    """Raise a UsageError if no graph can be written to a file of this suffix."""
    if path.suffix not in FORMATS:
        raise UsageError(f"{path}: a graph file ends in {_either(FORMATS)}; got {_suffix(path)}")


def _either(suffixes: Iterable[str]) -> str:
    *most, last = suffixes
    return f"{', '.join(most)} or {last}"


def _suffix(path: Path) -> str:
    return path.suffix or "no suffix"
