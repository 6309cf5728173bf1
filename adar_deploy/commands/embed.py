"""The command `adar-deploy embed`."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.commands.train import Device
from adar_deploy.console import Bar, print_facts, print_next, print_note
from adar_deploy.options import Json


def embed(
    nodes: Annotated[
        Path, typer.Argument(help="Table of nodes (.csv or .jsonl): text, and id, label, split if any.")
    ],
    edges: Annotated[Path, typer.Option(help="Table of edges: source and target, ids of nodes.")],
    classes: Annotated[
        Path | None,
        typer.Option(help="Table of classes: name and text, a description.", show_default="learned targets"),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The graph: .npz or .pt.")] = Path(
        "graph.npz"
    ),
    model: Annotated[
        str, typer.Option(help="A sentence-transformers model: its folder, or its name on the hub.")
    ] = "all-MiniLM-L6-v2",
    text: Annotated[str, typer.Option(help="Columns that make up a node's text, commas between.")] = "text",
    directed: Annotated[
        bool, typer.Option("--directed", help="Edges go one way, from source to target.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts embedded at a time.")] = 32,
    device: Annotated[Device, typer.Option(help="What to embed on.")] = Device.auto,
    as_json: Json = False,
) -> None:
    """Turn texts of nodes and descriptions of classes into a graph file.

    Nodes and classes are embedded by one model, so that they lie in one space: a model that was trained on
    described classes can then be run on the graph, whatever its classes are (zero-shot). Without --classes
    the graph is one to train on, with targets of its own.

    Example: adar-deploy embed papers.csv --edges cites.csv --classes fields.csv -o papers.npz
    """
    from adar_deploy.text_embedding import Embedder
    from adar_runtime import write_graph
    from adar_runtime.errors import UsageError
    from adar_runtime.files import check_writable
    from adar_runtime.graph.formats import FORMATS
    from adar_runtime.graph.formats.texts import read_texts

    if output.suffix not in FORMATS:
        raise UsageError(f"{output}: a graph is written as .npz or .pt, not {output.suffix or 'nothing'!r}")
    check_writable(output)
    columns = [column.strip() for column in text.split(",")]
    read = read_texts(nodes, edges, classes, columns, directed=directed)
    started = time.perf_counter()
    embedder = Embedder(model, None if device is Device.auto else device.value)
    with Bar("embed", len(read.texts)) as bar:
        features = embedder(read.texts, batch_size, lambda done: bar.update(done, "texts"))
    targets = embedder(read.class_texts, batch_size) if read.class_texts else None
    graph = read.graph(features, targets)
    write_graph(output, graph)
    empty = sum(not one for one in read.texts)
    facts = {
        "graph": str(output),
        "model": model,
        "nodes": graph.nodes,
        "edges": graph.edges,
        "features": graph.width,
        "classes": graph.targets,
        "described": graph.target_features is not None,
        "labelled": 0 if graph.labels is None else int((graph.labels >= 0).sum()),
        "without_text": empty,
        "seconds": round(time.perf_counter() - started, 2),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    print_facts("embedded", {name.replace("_", " "): value for name, value in facts.items()})
    if empty:
        print_note(f"{empty:,} nodes have no text: they are known by their neighbours alone")
    print_next("train" if graph.target_features is None else "run", output)
