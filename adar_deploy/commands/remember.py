"""The command `adar-deploy remember`."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.console import Bar, err, print_facts, print_next, print_note
from adar_deploy.inference_options import InferenceOptions
from adar_deploy.live_status import LiveStatus
from adar_deploy.option_groups import with_groups
from adar_deploy.options import AllowUnknownModel, BundleArgument, Json, Threads, parse_bytes
from adar_deploy.paths import bundle_first, existing_parent, name_of_bundle
from adar_deploy.table_options import TableOptions


@with_groups
def remember(
    *,
    bundle: BundleArgument,
    graph: Annotated[
        Path, typer.Argument(help="Graph file (.npz or .pt), or a table of nodes.", readable=False)
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Folder of the context. An older context of the same bundle is replaced."
        ),
    ] = Path("context"),
    inference: InferenceOptions,
    half: Annotated[
        bool, typer.Option("--half", help="Keep 16-bit numbers: half the space, three digits.")
    ] = False,
    max_size: Annotated[
        str | None,
        typer.Option(help="Most bytes to keep, such as 4GB.", show_default="the free space of the disk"),
    ] = None,
    threads: Threads = None,
    tables: TableOptions,
    allow_unknown_model: AllowUnknownModel = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a context that was made with another bundle.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a graph once, and write what is needed to predict new nodes in milliseconds: a context.

    adar-deploy run --context predicts a table of new nodes with it. The context holds what every node sent in
    every cell call, so it is large: n · d numbers per call, for n nodes and d hidden columns. A solver with
    few cell calls keeps less and predicts faster.

    Write the context again when many nodes are new: run --context says so.

    Example: adar-deploy remember bundle graph.npz -o context

    Example: adar-deploy remember bundle nodes.csv --edges edges.csv -o context --solver ab2 --calls 16

    Example: adar-deploy run new.csv --edges new-edges.csv --bundle bundle --context context
    """
    from adar_runtime import load
    from adar_runtime.errors import UsageError
    from adar_runtime.files import check_replaceable
    from adar_runtime.phases.context_files import MARKER, is_of_another_bundle, save_context
    from adar_runtime.phases.kept_calls import Storage
    from adar_runtime.phases.remember import remember as remember_graph

    bundle, (graph,) = bundle_first(bundle, [graph])
    most = None if max_size is None else parse_bytes("max-size", max_size)
    check_replaceable(out, MARKER)
    tables.check([graph])
    opened = load(bundle, "onnxruntime-cpu", threads, allow_unknown_model=allow_unknown_model)

    def check_free() -> None:
        if is_of_another_bundle(out, opened) and not overwrite:
            raise UsageError(
                f"{out} is a context of another bundle: choose another --out, or add --overwrite"
            )

    check_free()
    stop, solver = inference.stop_rule(opened), inference.solver_for(opened)
    found = tables.read_for_model(
        graph, bundle, opened.manifest.feature_encoding, partial(print_note, to=err)
    )
    storage = Storage(existing_parent(out), half, most)
    with Bar("remember", 1, counted=False, shown=not as_json) as bar:
        end = float(inference.max_steps) if opened.manifest.unit_step else 1.0
        status = LiveStatus(bar, 0, "", end)
        context = remember_graph(opened, found, inference.max_steps, stop, solver, storage, status)
        save_context(context, out, check_free)
    facts = {"nodes": context.nodes, "cell_calls": len(context.kept.calls), "bytes": context.bytes}
    if as_json:
        typer.echo(json.dumps({"context": str(out), "bundle": str(bundle), "graph": str(graph), **facts}))
        return
    shown = {"graph": graph, "context": out, "nodes": f"{context.nodes:,}"}
    shown |= {"cell calls": f"{facts['cell_calls']:,}", "size": f"{context.bytes / 1e6:.1f} MB"}
    print_facts("remembered", shown)
    print_next(
        "run", "NEW-NODES", "--edges", "NEW-EDGES", "--bundle", name_of_bundle(bundle), "--context", out
    )
