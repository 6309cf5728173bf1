"""Graphs from a pair of tables, nodes and edges: CSV, TSV, JSON lines or Parquet."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from adar_runtime.errors import GraphError, UsageError, short
from adar_runtime.graph import FeatureEncoding, Graph, Integers
from adar_runtime.graph.directions import both_ways
from adar_runtime.graph.formats._columns import Column, Locate, columns_listed
from adar_runtime.graph.formats._graph_file import reading
from adar_runtime.graph.formats._rows import number_names
from adar_runtime.graph.formats._table_features import degree_features
from adar_runtime.graph.formats._table_files import TABLES, read_table_file
from adar_runtime.graph.formats._tables import Imported, TableChoice, graph_from_columns
from adar_runtime.graph.formats.edge_list import EdgeTable, guess_ids, read_edges
from adar_runtime.graph.labels import listed
from adar_runtime.graph.limits import ByteBudget
from adar_runtime.graph.statistics import Edges

__all__ = ["EDGES", "TABLES", "TableChoice", "read_edge_list", "read_tables", "with_chosen_directions"]

EDGES = (*TABLES, ".txt", ".edges")
"""Suffixes of files of edges."""

MOSTLY = 0.9  # share of edges without their reverse, for a note


class _NodeTable(NamedTuple):
    ids: dict[str, int]  # node id -> node number
    id: str  # the column of the ids
    columns: Mapping[str, Column]  # the other columns
    locate: Locate
    notes: list[str]
    hint: str  # which column the ids are from, for error messages


class _InexactError(GraphError):
    """An error in a file whose lines are not known."""


def read_tables(
    nodes: str | Path,
    edges: str | Path,
    choice: TableChoice | None = None,
    encoding: FeatureEncoding | None = None,
) -> Imported:
    """Read a graph from a table of nodes and a table of edges.

    Args:
        nodes: Table of nodes with a header: .csv, .tsv, .jsonl, .ndjson or .parquet. Nodes keep its order.
        edges: Table of edges in one of these formats, or text with two node ids per line.
        choice: Which columns hold what. By default they are guessed by their headings, and notes say how.
        encoding: The encoding of a model (`bundle.manifest.feature_encoding`). The columns become the
            features that the model was trained on. A warning says if a category is new to it.

    Returns:
        The graph with its ids and its encoding, and notes on what was read and how.

    Raises:
        UsageError: A file has another suffix.
        GraphError: A table cannot be read, a column is missing, or an id is unknown or there twice. The
            message names the file and line.
        MissingExtraError: A .parquet file needs pyarrow, which is not installed.

    Examples:
        >>> read_tables("nodes.csv", "edges.csv", TableChoice(id="person")).graph  # doctest: +SKIP
    """
    nodes, edges, choice = Path(nodes), Path(edges), choice or TableChoice()
    for path, known in ((nodes, (*TABLES, ".txt")), (edges, EDGES)):
        if path.suffix not in known and not path.is_dir():
            raise UsageError(f"{path}: a table ends in {', '.join(known)}; got {path.suffix or 'no suffix'}")
    try:
        return _read(nodes, edges, choice, encoding, exact=False)
    except _InexactError:  # the slower reader finds the line, or reads what pyarrow does not
        return _read(nodes, edges, choice, encoding, exact=True)


def _read(
    nodes: Path, edges: Path, choice: TableChoice, encoding: FeatureEncoding | None, *, exact: bool
) -> Imported:
    choice = choice.completed(encoding)
    with reading(nodes):
        table = read_table_file(nodes, exact=exact)
    with reading(edges):
        ends = read_edges(edges, choice, has_table=True, exact=exact)
    try:
        with reading(nodes):
            found = _node_table(table.columns, table.locate, choice)
        with reading(edges):
            numbers, weights = ends.numbered(found.ids, nodes, found.hint), ends.weights()
        source, target = ends.names or (None, None)
        with reading(nodes):
            imported = graph_from_columns(
                found.columns,
                numbers,
                list(found.ids),
                replace(choice, id=found.id, source=source, target=target),
                encoding,
                found.locate,
                ByteBudget(nodes.stat().st_size),
            )
    except GraphError as error:
        if table.exact and ends.exact:
            raise
        raise _InexactError(str(error)) from error
    skipped = [f"columns of lists or objects are not read: {listed(table.skipped)}"] if table.skipped else []
    # With a model, the columns are those of its training, which has said how it read them.
    notes = skipped + imported.notes if encoding else found.notes + ends.notes + skipped + imported.notes
    graph = replace(imported.graph, edge_weight=weights)
    return Imported(with_chosen_directions(graph, choice), notes + _direction_notes(graph, choice))


class NewNodes(NamedTuple):
    """Nodes that are not in a kept graph, with their edges."""

    graph: Graph  # without edges
    edges: Integers  # [2, m]; new nodes have the numbers after those of the kept graph
    notes: list[str]


def read_new_nodes(
    nodes: Path,
    edges: Path | None,
    kept: Sequence[str],
    choice: TableChoice,
    encoding: FeatureEncoding | None,
) -> NewNodes:
    """Read new nodes from a table, and their edges from another one.

    Args:
        nodes: Table of the new nodes.
        edges: Table of edges between them and kept nodes; None without edges.
        kept: The ids of the kept nodes.
        choice: Which columns hold what.
        encoding: The encoding of the model, if it was trained on tables.

    Raises:
        UsageError: A file has another suffix.
        GraphError: A table cannot be read, an id is unknown, or a new node has the id of a kept one.
    """
    if nodes.suffix not in TABLES:
        raise UsageError(
            f"{nodes}: new nodes are a table ({', '.join(TABLES)}); got {nodes.suffix or 'no suffix'}"
        )
    choice = choice.completed(encoding)
    with reading(nodes):
        table = read_table_file(nodes, exact=True)
        found = _node_table(table.columns, table.locate, choice)
        numbers = {one: number for number, one in enumerate(kept)}
        twice = next((one for one in found.ids if one in numbers), None)
        if twice is not None:
            raise GraphError(f"node {short(twice)!r} is in the context already: give new nodes new ids")
        imported = graph_from_columns(
            found.columns,
            np.zeros((2, 0), np.int64),
            list(found.ids),
            replace(choice, id=found.id),
            encoding,
            found.locate,
            ByteBudget(nodes.stat().st_size),
        )
        if encoding is None:
            _require_numbers(imported.graph.feature_encoding)
    graph, ends, notes = imported.graph, np.zeros((2, 0), np.int64), imported.notes
    if edges is not None:
        numbers |= {one: len(kept) + number for one, number in found.ids.items()}
        with reading(edges):
            read = read_edges(edges, choice, has_table=True, exact=True)
            ends = read.numbered(numbers, nodes, f", and not in the context{found.hint}")
            if read.weights() is not None:  # a bundle with edge weights has no contexts
                notes = [*notes, "the edges have weights, which the model does not use"]
    if encoding is not None and not encoding.columns:
        everything = degree_features(ends, len(kept) + graph.nodes)
        graph = replace(graph, features=everything[len(kept) :])
    ends = np.concatenate([ends, ends[::-1]], axis=1) if choice.both_ways else ends
    return NewNodes(graph, ends, notes)


def _require_numbers(own: FeatureEncoding | None) -> None:
    """Refuse columns whose meaning depends on the table: neither model nor context has another one."""
    reason = "the context was made from a graph file: give its features as columns of numbers"
    if own is None or not own.columns:
        raise GraphError(f"the table has no feature columns, and {reason}")
    for column in own.columns:
        if column.kind != "number" or column.missing:
            problem = "empty cells" if column.missing else "words"
            raise GraphError(f"the column {short(column.name)!r} has {problem}, and {reason}")


def with_chosen_directions(graph: Graph, choice: TableChoice) -> Graph:
    """The graph, with the reverse of every edge if this is chosen; repeated edges are then kept once."""
    if not choice.both_ways:
        return graph
    edges, weights = both_ways(graph.edge_index, graph.nodes, graph.edge_weight)
    encoding = graph.feature_encoding
    kept = None if encoding is None else replace(encoding, both_ways=True)
    return replace(graph, edge_index=edges, edge_weight=weights, feature_encoding=kept)


def _direction_notes(graph: Graph, choice: TableChoice) -> list[str]:
    """A note if there are no edges, or if hardly any edge is there both ways and nobody said why."""
    if not graph.edges:
        return ["the graph has no edges"]
    if choice.both_ways is not None:
        return []
    edges = Edges.of(graph)
    one_way, between_nodes = edges.one_way, edges.distinct.shape[1] - edges.loops
    if one_way < max(1, MOSTLY * between_nodes):
        return []
    which = "every edge goes" if one_way == between_nodes else f"{one_way:,} of {between_nodes:,} edges go"
    return [f"{which} one way, from source to target: add --both-ways if edges have no direction"]


def _node_table(columns: Mapping[str, Column], locate: Locate, choice: TableChoice) -> _NodeTable:
    """Find the column of the ids, and number the nodes."""
    notes = []
    other = ""
    if choice.id is not None:
        if choice.id not in columns:
            raise GraphError(
                f"id column {short(choice.id)!r} not found; the columns are {columns_listed(columns)}"
            )
        chosen = choice.id
    else:
        chosen = guess_ids(list(columns))
        notes = [f"node ids are from {chosen!r}"]
        other = "; choose another column with --id"
    hint = f"; node ids are from the column {short(chosen)!r}{other}"
    ids = number_names(columns[chosen].words(), locate, "node", hint)
    others = {name: column for name, column in columns.items() if name != chosen}
    return _NodeTable(ids, chosen, others, locate, notes, hint)


def read_edge_list(path: Path, choice: TableChoice, encoding: FeatureEncoding | None = None) -> Imported:
    """Read a graph that has only edges. Nodes are sorted by their ids, and have features of their degrees."""
    with reading(path):
        ends: EdgeTable = read_edges(path, choice, has_table=False)
        ids = ends.sorted_ids()
        edges = ends.numbered({word: number for number, word in enumerate(ids)}, None, "")
        weights = ends.weights()
        budget = ByteBudget(path.stat().st_size)
        source, target = ends.names or (None, None)
        kept = replace(choice, source=source, target=target)
        imported = graph_from_columns(
            {}, edges, ids, kept, encoding, lambda node: f"node {ids[node]}", budget
        )
    notes = ["nodes are numbered in the order of their ids", *ends.notes, *imported.notes]
    return Imported(with_chosen_directions(replace(imported.graph, edge_weight=weights), choice), notes)
