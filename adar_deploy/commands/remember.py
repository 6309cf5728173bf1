"""The command `adar-deploy remember`."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from adar_deploy.console import Bar, err, print_facts, print_next, print_note
from adar_deploy.live_status import LiveStatus
from adar_deploy.options import (
    RULE_OPTIONS,
    SOLVER_OPTIONS,
    AllowUnknownModel,
    BundleArgument,
    ExitRule,
    Json,
    MaxSteps,
    SolverName,
    Threads,
    is_typed,
    parse_bytes,
    with_settings,
)
from adar_deploy.paths import bundle_first, existing_parent
from adar_deploy.table_options import NO_TABLES, TableOptions, with_tables

SOLVER = SolverName("auto")


@with_settings(RULE_OPTIONS, SOLVER_OPTIONS)
@with_tables
def remember(
    ctx: typer.Context,
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
    max_steps: MaxSteps = 300,
    exit: Annotated[
        ExitRule | None,
        typer.Option(
            help="Stop rule: when to stop, and which step to predict from.", show_default="the bundle's"
        ),
    ] = None,
    solver: Annotated[
        SolverName,
        typer.Option(
            help="Solver. auto: the one that export proved. A solver with few cell calls keeps less and "
            "answers faster."
        ),
    ] = SOLVER,
    half: Annotated[
        bool, typer.Option("--half", help="Keep 16-bit numbers: half the space, three digits.")
    ] = False,
    max_size: Annotated[
        str | None,
        typer.Option(help="Most bytes to keep, such as 4GB.", show_default="the free space of the disk"),
    ] = None,
    threads: Threads = None,
    tables: TableOptions = NO_TABLES,
    allow_unknown_model: AllowUnknownModel = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a context that was made with another bundle.")
    ] = False,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Run a graph once, and write what is needed to predict new nodes in milliseconds: a context.

    adar-deploy run --context predicts a table of new nodes with it. The context holds what every node sent in
    every cell call, so it is large: n · d numbers per call, for n nodes and d hidden columns.

    Write the context again when many nodes are new: run --context says so.

    Example: adar-deploy remember bundle graph.npz -o context

    Example: adar-deploy remember bundle nodes.csv --edges edges.csv -o context --solver ab2 --calls 16

    Example: adar-deploy run new.csv --edges new-edges.csv --bundle bundle --context context
    """
    from adar_runtime import load
    from adar_runtime.errors import UsageError
    from adar_runtime.files import check_replaceable
    from adar_runtime.phases.context_files import MARKER, is_of_another_bundle
    from adar_runtime.phases.kept_calls import Storage
    from adar_runtime.phases.remember import remember as remember_graph

    bundle, (graph,) = bundle_first(bundle, [graph])
    for_solver = SOLVER_OPTIONS.settings(str(solver), settings)
    most = None if max_size is None else parse_bytes("max-size", max_size)
    check_replaceable(out, MARKER)
    tables.check([graph])
    known = allow_unknown_model and is_typed(ctx, "allow_unknown_model")
    opened = load(bundle, "onnxruntime-cpu", threads, allow_unknown_model=known)
    if is_of_another_bundle(out, opened) and not overwrite:
        raise UsageError(f"{out} is a context of another bundle: choose another --out, or add --overwrite")
    rule = opened.manifest.exit.get("rule") if exit is None else str(exit)
    stop = opened.stop_rule(rule, **RULE_OPTIONS.settings(rule, settings))
    steps = opened.solver(str(solver), max_steps, **for_solver)
    found = tables.read_for_model(
        graph, bundle, opened.manifest.feature_encoding, partial(print_note, to=err)
    )
    storage = Storage(existing_parent(out), half, most)
    with Bar("remember", 1, counted=False, shown=not as_json) as bar:
        end = float(max_steps) if opened.manifest.unit_step else 1.0
        status = LiveStatus(bar, 0, "", end)
        context = remember_graph(opened, found, max_steps, stop, steps, storage, status)
        context.save(out)
    facts = {"nodes": context.nodes, "cell_calls": len(context.kept.calls), "bytes": context.bytes}
    if as_json:
        typer.echo(json.dumps({"context": str(out), "bundle": str(bundle), "graph": str(graph), **facts}))
        return
    shown = {"graph": graph, "context": out, "nodes": f"{context.nodes:,}"}
    shown |= {"cell calls": f"{facts['cell_calls']:,}", "size": f"{context.bytes / 1e6:.1f} MB"}
    print_facts("remembered", shown)
    print_next("run", "NEW-NODES", "--edges", "NEW-EDGES", "--bundle", bundle, "--context", out)
