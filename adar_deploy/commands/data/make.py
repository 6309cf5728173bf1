"""The command `adar-deploy data make`."""

import json
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from adar_deploy.console import print_facts, print_next
from adar_deploy.options import Json, Seed
from adar_deploy.paths import check_output, output_or_default

FAMILY = "see data list"  # each family has its own default


class FamilyName(StrEnum):
    minesweeper = "minesweeper"
    chain = "chain"
    tree = "tree"
    blocks = "blocks"


def make(
    family: Annotated[FamilyName, typer.Argument(help="Family of graphs.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write: .npz or .pt.", show_default="FAMILY.npz"),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Approximate number of nodes.", show_default=FAMILY)
    ] = None,
    hops: Annotated[
        int | None,
        typer.Option(
            help="Distance to the node that determines the label (chain, tree).", show_default=FAMILY
        ),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Number of classes (chain, blocks).", show_default=FAMILY)
    ] = None,
    degree: Annotated[int | None, typer.Option(help="Average degree (blocks).", show_default=FAMILY)] = None,
    homophily: Annotated[
        float | None, typer.Option(help="Fraction of edges within a class (blocks).", show_default=FAMILY)
    ] = None,
    mines: Annotated[
        float | None, typer.Option(help="Fraction of mines (minesweeper).", show_default=FAMILY)
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Make a synthetic graph with labels and a split. The same options give the same graph.

    The families differ in the distance from a node to the information that it needs: minesweeper 2 hops,
    chain exactly --hops, tree up to --hops, blocks any distance.

    Example: adar-deploy data make minesweeper --nodes 40000 --seed 7 -o board.npz

    Example: adar-deploy data make chain --hops 32 -o far.npz
    """
    from adar_runtime import write_graph
    from adar_runtime.graph import synthetic

    default = f"{family.value}.npz"
    path = output_or_default(output, default)
    check_output(path)
    chosen = {"nodes": nodes, "hops": hops, "classes": classes, "degree": degree, "homophily": homophily}
    chosen |= {"mines": mines, "seed": seed}
    settings: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    graph = synthetic.make(family.value, **settings)
    write_graph(path, graph, partial(output_or_default, output, default))
    if as_json:
        made = {"family": family.value, "settings": synthetic.FAMILIES[family.value].settings | settings}
        size = {"nodes": graph.nodes, "edges": graph.edges, "features": graph.width, "classes": graph.targets}
        typer.echo(json.dumps({"graph": str(path)} | made | size))
        return
    print_facts("made", {"nodes, edges": f"{graph.nodes:,}, {graph.edges:,}", "graph": path})
    print_next("train", path)
