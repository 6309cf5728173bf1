"""The command `adar-deploy data shard`."""

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from adar_deploy.console import Bar, print_facts, print_next
from adar_deploy.option_groups import OptionGroup, with_groups
from adar_deploy.options import Json
from adar_deploy.paths import existing_parent

if TYPE_CHECKING:
    from adar_runtime.graph import Integers
    from adar_runtime.graph.store.write import Classes, EdgeBlocks, NodeRows


class Partition(StrEnum):
    ranges = "ranges"
    metis = "metis"


@dataclass(frozen=True)
class ShardTables(OptionGroup):
    """Tables of nodes and edges that are read in blocks. Without `edges`, the graph is a graph file."""

    edges: Annotated[
        Path | None, typer.Option(help="Table of edges, which may be larger than the memory.", readable=False)
    ] = None
    id: Annotated[
        str | None, typer.Option(help="Column of the node ids.", show_default="id, node, or the first column")
    ] = None
    features: Annotated[
        str | None,
        typer.Option(help="Columns that become features, comma-separated.", show_default="all others"),
    ] = None
    source: Annotated[
        str | None,
        typer.Option(help="Column of --edges with the ids that edges start from.", show_default="source"),
    ] = None
    target: Annotated[
        str | None,
        typer.Option(help="Column of --edges with the ids that edges go to.", show_default="target"),
    ] = None
    both_ways: Annotated[
        bool | None,
        typer.Option("--both-ways/--one-way", help="Add the reverse of every edge.", show_default="one way"),
    ] = None

    def check(self) -> None:
        """Raise a UsageError for options without --edges."""
        from adar_runtime.errors import UsageError

        if self.edges is None and (given := self.changed()):
            name = given[0].replace("_", "-")
            raise UsageError(f"--{name} is for tables: add --edges, the table of the edges")


@with_groups
def shard(
    *,
    graph: Annotated[
        Path,
        typer.Argument(
            help="Graph file (.npz or .pt); or, with --edges, a table of nodes (.csv, .tsv, .parquet) or an "
            "array of features (.npy)."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the store.")],
    parts: Annotated[
        int, typer.Option(min=1, help="Number of parts. A part has to fit into the memory of run.")
    ] = 16,
    partition: Annotated[
        Partition,
        typer.Option(help="ranges: nodes in their order. metis: few edges between parts; in memory."),
    ] = Partition.ranges,
    tables: ShardTables,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the store that --output names.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a graph as a store: a folder of parts, for graphs that are larger than the memory.

    adar-deploy run takes the store like a graph file. Tables are read in blocks, and edges are sorted on
    disk. All columns of features are numbers. A store has no edge weights, and
    only the labels that a pretrained model may use (train_mask).

    Example: adar-deploy data shard graph.npz --parts 64 -o store

    Example: adar-deploy data shard features.npy --edges edges.parquet --parts 64 -o store
    """
    from adar_runtime.errors import UsageError
    from adar_runtime.files import check_replaceable
    from adar_runtime.graph.store import is_store, open_store, write_store
    from adar_runtime.graph.store.store import MARKER
    from adar_runtime.temporary_files import temporary_folder

    def check_free() -> None:
        if is_store(output) and not overwrite:
            raise UsageError(f"{output} is a graph store: choose another --output, or add --overwrite")

    check_replaceable(output, MARKER)
    check_free()
    with (
        Bar("shard", 1.0, counted=False, shown=not as_json) as bar,
        temporary_folder(existing_parent(output)) as work,
    ):
        if tables.edges is None:
            content = _from_file(graph, parts, partition, tables)
        else:
            content = _from_tables(graph, partition, tables, work)
        rows, edges, classes, part_of = content
        cut = write_store(output, rows, edges, parts, classes, part_of, bar.update, check_free)
    store = open_store(output)
    facts = {"nodes": store.nodes, "edges": store.edges, "features": store.features, "parts": store.parts}
    if as_json:
        typer.echo(json.dumps({"store": str(output), **facts, "cut": cut}))
        return
    shown = {name: f"{number:,}" for name, number in facts.items()}
    print_facts("sharded", shown | {"cut": f"{cut:.1%} of the edges connect two parts", "store": output})
    print_next("run", output, "--output", "predictions")


class Content(NamedTuple):
    """What a store is written from."""

    rows: "NodeRows"
    edges: "EdgeBlocks"
    classes: "Classes"
    part_of: "Integers | None" = None  # the part of each node; None for ranges


def _from_file(graph: Path, parts: int, partition: Partition, tables: ShardTables) -> Content:
    """The content of a graph file, which is read into memory."""
    from adar_runtime import read_graph
    from adar_runtime.errors import UsageError
    from adar_runtime.graph.formats import FORMATS
    from adar_runtime.graph.store import sources
    from adar_runtime.graph.store.partition import metis_parts
    from adar_runtime.graph.store.write import Classes
    from adar_runtime.in_context.start import known_labels

    if graph.suffix not in FORMATS:
        raise UsageError(f"{graph} is not a graph file: add --edges, the table of its edges")
    tables.check()
    found = read_graph(graph)
    part_of = metis_parts(found, parts) if partition is Partition.metis else None
    classes = Classes.of(found, known_labels(found))
    return Content(sources.GraphRows(found), sources.edge_blocks(found), classes, part_of)


def _from_tables(graph: Path, partition: Partition, tables: ShardTables, work: Path) -> Content:
    """The content of two tables, which are read in blocks. Features are written to the folder `work`."""
    from adar_runtime.errors import UsageError
    from adar_runtime.graph.store import sources
    from adar_runtime.graph.store.write import Classes

    assert tables.edges is not None
    if partition is Partition.metis:
        raise UsageError("--partition metis needs the graph in memory: convert it to .npz, or use ranges")
    named = None if tables.features is None else [name.strip() for name in tables.features.split(",")]
    rows = sources.read_nodes(graph, work / "features", tables.id, named)
    edges = sources.read_edges(
        tables.edges, rows.ids, tables.source, tables.target, both_ways=bool(tables.both_ways)
    )
    encoding = rows.encoding and replace(rows.encoding, both_ways=bool(tables.both_ways))
    return Content(rows, edges, Classes(encoding=encoding))
