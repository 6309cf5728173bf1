"""The command `adar-deploy data convert`."""

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.console import print_facts, print_next, print_note
from adar_deploy.formatting import predicted
from adar_deploy.options import Json
from adar_deploy.paths import check_output


class Labels(StrEnum):
    classes = "classes"
    numbers = "numbers"


def convert(
    source: Annotated[
        Path, typer.Argument(help="Graph (.npz, .pt, .graphml, .gml) or edge list (.csv, .tsv, .txt).")
    ],
    output: Annotated[Path, typer.Argument(help="File to write: .npz or .pt.")],
    table: Annotated[
        Path | None,
        typer.Option(help="Table of nodes for an edge list: a header line, ids in the first column."),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="Attribute or column that holds the labels.", show_default="y, label, class or target"
        ),
    ] = None,
    labels: Annotated[
        Labels | None,
        typer.Option(
            help="Labels are classes, or regression targets (numbers).",
            show_default="numbers if a label has a fraction",
        ),
    ] = None,
    both_ways: Annotated[bool, typer.Option("--both-ways", help="Add the reverse of every edge.")] = False,
    as_json: Json = False,
) -> None:
    """Convert a graph from another program into a graph file.

    Columns of numbers become features, and so do columns with a few distinct words. A column 'split'
    contains train, val or test. Free text is skipped.

    Example: adar-deploy data convert karate.graphml karate.npz --label club

    Example: adar-deploy data convert edges.csv graph.npz --table nodes.csv --both-ways

    Example: adar-deploy data convert papers.gml papers.npz --label year --labels numbers
    """
    import numpy as np

    from adar_runtime import write_graph
    from adar_runtime.errors import UsageError
    from adar_runtime.graph import ALL
    from adar_runtime.graph.formats import import_graph

    check_output(output)
    if output.exists() and source.exists() and output.samefile(source):
        raise UsageError(f"{output} is the input graph: choose another output file")
    imported = import_graph(source, table, label, labels.value if labels else None)
    graph = imported.graph
    if both_ways:
        edges = np.concatenate([graph.edge_index, graph.edge_index[::-1]], axis=1)
        graph = replace(graph, edge_index=np.unique(edges, axis=1))
    write_graph(output, graph)
    if as_json:
        size = {"nodes": graph.nodes, "edges": graph.edges, "features": graph.width}
        labels_are = {"classes": graph.targets, "regression": graph.regression}
        typer.echo(json.dumps({"graph": str(output)} | size | labels_are | {"notes": imported.notes}))
        return
    facts = {
        "nodes, edges": f"{graph.nodes:,}, {graph.edges:,}",
        "features": f"{graph.width:,}",
        "predicts": predicted(
            0 if graph.labelled(ALL) is None else graph.targets, graph.level, regression=graph.regression
        ),
        "graph": output,
    }
    print_facts("converted", facts)
    for note in imported.notes:
        print_note(note)
    print_next("data", "show", output)
