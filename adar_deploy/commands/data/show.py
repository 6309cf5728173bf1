"""The command `adar-deploy data show`."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adar_deploy.console import err, print_error, print_facts, print_note, print_rows, print_warning
from adar_deploy.formatting import percent, predicted
from adar_deploy.option_groups import with_groups
from adar_deploy.options import Json, Split
from adar_deploy.paths import graph_files
from adar_deploy.signals import EXIT_USER_ERROR
from adar_deploy.table_options import TableOptions

if TYPE_CHECKING:
    from adar_runtime.graph.statistics import Statistics

CLASSES = 20  # rows in the table of classes: the largest ones


@with_groups
def show(
    *,
    graphs: Annotated[
        list[Path], typer.Argument(help="Graph files (.npz or .pt), folders of them, or a table of nodes.")
    ],
    split: Split = 0,
    tables: TableOptions,
    as_json: Json = False,
) -> None:
    """Show the content of a graph, with warnings about properties that reduce accuracy.

    Homophily is the fraction of edges between nodes of the same class, shown with the value for random
    edges.

    Example: adar-deploy data show graph.npz

    Example: adar-deploy data show nodes.csv --edges edges.csv
    """
    from adar_runtime import read_graph
    from adar_runtime.errors import AdarError
    from adar_runtime.graph.graph_warnings import warnings
    from adar_runtime.graph.statistics import statistics

    shown: list[dict[str, Any]] = []
    files = graph_files(graphs)
    tables.check(files)
    read = tables.reader(lambda name: [read_graph(name)], partial(print_note, to=err))
    for path in files:
        try:
            (graph,) = read(str(path))
        except AdarError as error:
            if len(files) == 1:
                raise
            shown.append({"graph": str(path), "error": str(error)})
            print_error(str(error))
            continue
        found, problems = statistics(graph, split), warnings(graph, split)
        shown.append({"graph": str(path)} | found.to_dict() | {"warnings": problems})
        if not as_json:
            print_facts(str(path), _facts(found))
            if found.class_sizes:
                print_rows(["class", "labels", "fraction"], _class_rows(found))
            for problem in problems:
                print_warning(problem)
    if as_json:
        typer.echo(json.dumps(shown if len(shown) > 1 else shown[0]))
    if any("error" in one for one in shown):
        raise typer.Exit(EXIT_USER_ERROR)


def _facts(found: "Statistics") -> dict[str, Any]:
    degrees = found.degrees
    least = f"{degrees.least} to {degrees.most:,}"
    facts = {
        "nodes, edges": f"{found.nodes:,}, {found.edges:,}",
        "features": f"{found.features:,}{', sparse' if found.sparse else ''}",
        "degree": f"{least}, median {degrees.median:g}, mean {degrees.mean:.1f}",
        "one-way, loops, duplicates": f"{found.one_way:,}, {found.loops:,}, {found.repeated:,} edges",
        "no incoming edges": f"{found.isolated:,}",
        "components": f"{found.components:,}, the largest with {found.largest_component:,} nodes",
        "predicts": predicted(
            found.classes if found.labelled else 0, found.level, regression=found.regression
        ),
    }
    if found.edge_weight is not None:
        least, median, most = (f"{found.edge_weight[name]:,.4g}" for name in ("least", "median", "most"))
        facts["edge weights"] = f"{least} to {most}, median {median}"
    if found.labelled:
        facts["labels"] = f"{found.labelled:,} of {found.outputs:,}"
    if found.described:
        facts["class descriptions"] = f"{found.classes:,} (target_x): zero-shot"
    if found.homophily is not None and found.chance is not None:
        facts["homophily"] = f"{percent(found.homophily)}, random edges {percent(found.chance)}"
    parts = ", ".join(f"{part} {count:,}" for part, count in found.parts.items() if count)
    facts["splits"] = f"{found.splits}: {parts}" if found.splits else "none"
    return facts


def _class_rows(found: "Statistics") -> list[tuple[str, str, str]]:
    from adar_runtime.graph.labels import fill_names

    sizes = (found.class_sizes or []) if found.labelled else []
    names = fill_names(found.class_names, len(sizes))
    order = sorted(range(len(sizes)), key=lambda label: -sizes[label])
    rows = [
        (
            names[label],
            f"{sizes[label]:,}",
            percent(sizes[label] / sum(sizes)),
        )
        for label in order[:CLASSES]
    ]
    if len(order) > CLASSES:
        rest = sum(sizes[label] for label in order[CLASSES:])
        rows.append((f"{len(order) - CLASSES} more", f"{rest:,}", percent(rest / sum(sizes))))
    return rows
