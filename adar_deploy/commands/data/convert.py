"""The command `adar-deploy data convert`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy.console import print_facts, print_next, print_note, printable
from adar_deploy.formatting import predicted
from adar_deploy.option_groups import with_groups
from adar_deploy.options import Json
from adar_deploy.paths import check_output
from adar_deploy.table_options import TableOptions

if TYPE_CHECKING:
    from adar_runtime.graph import FeatureEncoding
    from adar_runtime.graph.formats import Imported


@with_groups
def convert(
    *,
    graph: Annotated[
        Path,
        typer.Argument(
            help="Table of nodes (.csv, .tsv, .jsonl, .parquet) with --edges; edges alone (also .txt); or a "
            "graph (.npz, .pt, .graphml, .gml)."
        ),
    ],
    output: Annotated[Path, typer.Argument(help="File to write: .npz or .pt.")],
    tables: TableOptions,
    table: Annotated[
        Path | None, typer.Option(help="Older form: the table of nodes, if GRAPH holds its edges.")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            help="Make the features of this bundle's model, from a table like that of its training."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert a graph from another program into a graph file.

    Columns of numbers become features, and so do columns with a few distinct words. A column 'split'
    contains train, val or test. Free text is skipped. Node ids are kept. A column 'weight' of the edges
    holds edge weights.

    Example: adar-deploy data convert nodes.csv graph.npz --edges edges.csv --both-ways

    Example: adar-deploy data convert karate.graphml karate.npz --label club

    Example: adar-deploy data convert tomorrow.csv tomorrow.npz --edges edges.csv --bundle bundle
    """
    from adar_runtime import write_graph
    from adar_runtime.bundle.reading import read_manifest
    from adar_runtime.errors import UsageError
    from adar_runtime.graph import ALL

    check_output(output, (graph, table, tables.edges))
    if table is not None:  # the older form: edges first
        graph, tables = table, replace(tables, edges=graph)
    encoding = read_manifest(bundle).feature_encoding if bundle else None
    if bundle and encoding is None:
        raise UsageError(f"{bundle} has no feature_encoding, because its model was not trained on tables")
    imported = _read(graph, tables, encoding)
    notes, found = imported.notes, imported.graph
    write_graph(output, found)
    if as_json:
        size = {"nodes": found.nodes, "edges": found.edges, "features": found.width}
        labels_are = {"classes": found.targets, "regression": found.regression}
        typer.echo(json.dumps({"graph": str(output)} | size | labels_are | {"notes": notes}))
        return
    facts = {
        "nodes, edges": f"{found.nodes:,}, {found.edges:,}",
        "features": f"{found.width:,}",
        "predicts": predicted(
            0 if found.labelled(ALL) is None else found.targets, found.level, regression=found.regression
        ),
        "graph": output,
    }
    print_facts("converted", facts)
    for note in notes:
        print_note(printable(note))
    print_next("data", "show", output)


def _read(path: Path, tables: TableOptions, encoding: "FeatureEncoding | None") -> "Imported":
    from adar_runtime.graph.formats import import_graph

    if tables.edges is not None:
        return tables.read(path, encoding)
    replace(tables, label=None, labels=None, both_ways=None).check([path])
    kind = tables.labels and tables.labels.value
    return import_graph(path, None, tables.label, kind, encoding, both_ways=tables.both_ways)
