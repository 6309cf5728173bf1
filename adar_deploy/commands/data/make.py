"""The command `adar-deploy data make`."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from adar_deploy.console import print_facts, print_next
from adar_deploy.options import Json, Seed

FAMILY = "the family's: see data list"


class FamilyName(StrEnum):
    minesweeper = "minesweeper"
    chain = "chain"
    tree = "tree"
    blocks = "blocks"


def make(
    family: Annotated[FamilyName, typer.Argument(help="What to make.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write: .npz or .pt.", show_default="FAMILY.npz"),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="About how many nodes.", show_default=FAMILY)] = None,
    hops: Annotated[
        int | None,
        typer.Option(help="From a label to what tells it (chain, tree).", show_default=FAMILY),
    ] = None,
    classes: Annotated[int | None, typer.Option(help="Classes (chain, blocks).", show_default=FAMILY)] = None,
    degree: Annotated[int | None, typer.Option(help="Mean neighbours (blocks).", show_default=FAMILY)] = None,
    homophily: Annotated[
        float | None, typer.Option(help="Share of edges within a class (blocks).", show_default=FAMILY)
    ] = None,
    mines: Annotated[
        float | None, typer.Option(help="Share of mines (minesweeper).", show_default=FAMILY)
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Make a graph with labels and a split, the same one for the same options.

    Each family needs to see another distance: minesweeper two hops, a chain exactly as many as you say, a
    tree as many and everything there, blocks the more the better.

    Example: adar-deploy data make minesweeper --nodes 40000 --seed 7 -o board.npz

    Example: adar-deploy data make chain --hops 32 -o far.npz
    """
    from adar_runtime import write_graph
    from adar_runtime.files import check_writable
    from adar_runtime.graph import synthetic as generated

    path = output or Path(f"{family.value}.npz")
    check_writable(path)
    chosen = {"nodes": nodes, "hops": hops, "classes": classes, "degree": degree, "homophily": homophily}
    chosen |= {"mines": mines, "seed": seed}
    settings: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    graph = generated.make(family.value, **settings)
    write_graph(path, graph)
    if as_json:
        made = {"family": family.value, "settings": generated.FAMILIES[family.value].settings | settings}
        size = {"nodes": graph.nodes, "edges": graph.edges, "features": graph.width, "classes": graph.targets}
        typer.echo(json.dumps({"graph": str(path)} | made | size))
        return
    print_facts("made", {"nodes, edges": f"{graph.nodes:,}, {graph.edges:,}", "graph": path})
    print_next("train", path)
