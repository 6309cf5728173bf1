"""The command `adar-deploy run`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy.console import err, print_error, print_note
from adar_deploy.context_inference import NewNodes, run_context
from adar_deploy.file_inference import run_files
from adar_deploy.inference import Failure, Inference, OutputFiles, Success, show_results
from adar_deploy.inference_options import BackendOptions, InferenceOptions, PartOptions
from adar_deploy.option_groups import OptionGroup, with_groups
from adar_deploy.options import set_by
from adar_deploy.paths import BUNDLE, PRETRAINED, graph_files, is_model, named_bundle
from adar_deploy.ray_pool import run_on_ray
from adar_deploy.signals import EXIT_USER_ERROR
from adar_deploy.store_inference import StoreInference
from adar_deploy.table_options import TableOptions

if TYPE_CHECKING:
    from adar_runtime import Graph
    from adar_runtime.graph.formats.node_list import NodeList


@dataclass(frozen=True)
class OutputOptions(OptionGroup):
    """The files that are written for each graph."""

    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write predictions: .npz, .csv, .json or .parquet. {name} stands for the graph's name. For "
            "a graph store: a folder, which gets a Parquet file for each part.",
        ),
    ] = None
    nodes: Annotated[
        Path | None,
        typer.Option(
            help="Write these nodes only: a file with one node id per line, or row numbers if the graph has "
            "no ids.",
            readable=False,
        ),
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option(help="Plot the alignment against t: .png or .svg. {name} as in --output."),
    ] = None

    def node_list(self) -> "NodeList | None":
        """The nodes to write; None for all."""
        from adar_runtime.errors import UsageError
        from adar_runtime.graph.formats.node_list import NodeList

        if self.nodes is None:
            return None
        if self.output is None:
            raise UsageError("--nodes chooses the rows of the file of predictions: add --output")
        return NodeList.read(self.nodes)

    def folder(self, tables: TableOptions) -> Path:
        """The output of a graph store or of Ray. Raises a UsageError for options that need one file."""
        from adar_runtime.errors import UsageError

        if self.output is None or any((self.plot, self.nodes, tables.edges)):
            raise UsageError(
                "a graph store, --workers and --shards need --output, a folder, and do not take --plot, "
                "--nodes and --edges"
            )
        return self.output


@dataclass(frozen=True)
class NewNodeOptions(OptionGroup):
    """A remembered graph that new nodes are added to."""

    context: Annotated[
        Path | None,
        typer.Option(
            help="Folder of adar-deploy remember: GRAPHS is a table of new nodes, --edges has their edges, "
            "and only the new nodes and their neighbours are computed.",
            readable=False,
        ),
    ] = None
    hops: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How far nodes of the context react to new nodes: 0 not at all, 1 direct neighbours, and so "
            "on (--context).",
            show_default="2",
        ),
    ] = None

    def check(self) -> None:
        """Raise a UsageError for --hops without --context."""
        from adar_runtime.errors import UsageError

        if self.context is None and self.hops is not None:
            raise UsageError("--hops is for new nodes: add --context, the folder of adar-deploy remember")


@with_groups
def run(
    *,
    ctx: typer.Context,
    graphs: Annotated[
        list[Path],
        typer.Argument(
            help="Graph files (.npz or .pt), folders of them, a file of many graphs (.npz or .parquet), a "
            "graph store, or a table of nodes. A bundle may come first.",
            readable=False,
        ),
    ],
    bundle: Annotated[
        Path,
        typer.Option(
            help="Folder of an exported bundle, a file of adar-deploy pack, hf://OWNER/NAME, or pretrained.",
            readable=False,
            show_default="bundle, or pretrained if there is no such folder",
        ),
    ] = BUNDLE,
    inference: InferenceOptions,
    backend: BackendOptions,
    files: OutputOptions,
    new_nodes: NewNodeOptions,
    parts: PartOptions,
    tables: TableOptions,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing but errors and warnings.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, or a list for several graphs.")
    ] = False,
) -> None:
    """Run a bundle on graphs, with at most the given number of steps.

    Without a bundle, the pretrained model of this package predicts for graphs with class descriptions
    (target_x) or with some known labels (train_mask).

    With several graphs, a graph that fails is reported and the others are still processed.

    A graph store (adar-deploy data shard) runs part by part. If it is interrupted, the same command continues
    after the last finished step.

    With --workers, many graphs run on a Ray cluster. The same command does not repeat graphs that are done.

    Exit codes: 0 success; 2 an error, or a graph that failed; 130 Ctrl-C; 143 SIGTERM; 129 SIGHUP.

    Example: adar-deploy run bundle graph.npz --max-steps 300 --output predictions.csv

    Example: adar-deploy run papers.npz --bundle pretrained

    Example: adar-deploy run nodes.csv --edges edges.csv --output predictions.csv

    Example: adar-deploy run graphs/ --solver euler --output answers/{name}.csv

    Example: adar-deploy run store --memory 4GB --output predictions

    Example: adar-deploy run graphs/ --workers 4 --output predictions

    Example: adar-deploy run new.csv --edges new-edges.csv --context context --output new-predictions.csv
    """
    chosen = files.node_list()
    calls = inference.solver_settings.get("calls", 0)
    bundle, graphs = _bundle_and_graphs(ctx, bundle, graphs)
    new_nodes.check()
    if new_nodes.context is not None:
        from adar_runtime import load

        nodes = NewNodes(new_nodes.context, new_nodes.hops, tables, files.output)
        done = run_context(ctx, load(bundle, "onnxruntime-cpu", backend.threads), graphs, nodes)
        _finish([done], several=False, quiet=quiet, as_json=as_json)
        return
    store = _store_among(graphs)
    folder = files.folder(tables) if store is not None or parts.on_ray else None
    paths = graphs if store else graph_files(graphs)
    several = not store and (len(paths) > 1 or graphs[0].is_dir())
    _check_parts(parts, is_store=store is not None, several=several)
    tables.check(paths)
    outputs = OutputFiles.plan(
        paths,
        files.output if folder is None else None,
        files.plot,
        [tables.edges, files.nodes],
        several=several,
    )
    opened = backend.load(ctx, bundle)
    work = Inference(
        bundle=opened,
        budget=inference.max_steps,
        rule=inference.stop_rule(opened),
        solver=inference.solver_for(opened),
        nodes=chosen,
    )
    if folder is not None:
        results = _run_in_folder(work, paths, folder, parts, shown=not quiet)
    else:
        if calls > work.budget >= 1 and not quiet:
            print_note(
                f"--calls {calls:,} exceeds --max-steps: at most {work.budget:,} calls are made", to=err
            )
        results = _run_files(work, paths, tables, outputs, several=several, shown=not quiet)
    _finish(results, several=several or len(results) != 1, quiet=quiet, as_json=as_json)


def _check_parts(parts: PartOptions, *, is_store: bool, several: bool) -> None:
    """Refuse options that the graphs do not have."""
    from adar_runtime.errors import UsageError

    if parts.memory is not None and not is_store:
        raise UsageError("--memory is for a graph store: write one with adar-deploy data shard")
    if parts.shards is not None and (is_store or several):
        raise UsageError("--shards splits one graph file: a graph store has its parts already")


def _run_files(
    work: Inference,
    files: list[Path],
    tables: TableOptions,
    outputs: OutputFiles,
    *,
    several: bool,
    shown: bool,
) -> "list[Success | Failure]":
    """Run graph files, or the graph of two tables, in this process."""
    notes: list[str] = []

    def read(path: Path) -> "Graph":
        manifest = work.bundle.manifest
        return tables.read_for_model(path, work.bundle.path, manifest.feature_encoding, notes.append)

    results = run_files(work, files, read if tables.edges else None, outputs, several=several, shown=shown)
    for text in notes if shown else []:
        print_note(text, to=err)
    return results


def _run_in_folder(
    work: Inference, files: list[Path], output: Path, parts: PartOptions, *, shown: bool
) -> "list[Success | Failure]":
    """Run a graph store or a graph in shards part by part, or many graphs on the processes of Ray."""
    from adar_runtime.graph.store.store import is_store

    if parts.workers is not None and parts.shards is None and not is_store(files[0]):
        return run_on_ray(work, files, output, parts.workers, shown=shown)
    on = parts.workers or (str(parts.shards) if parts.shards else None)
    return [StoreInference(work, files[0], output, parts.max_bytes, on, parts.shards).run(shown=shown)]


def _bundle_and_graphs(ctx: typer.Context, bundle: Path, graphs: list[Path]) -> tuple[Path, list[Path]]:
    """The bundle and the graphs: a bundle among the graphs counts if the command line names no other.

    The pretrained model replaces the default bundle only, not a bundle that the user named.
    """
    from adar_runtime.errors import UsageError

    named_by = set_by(ctx, "bundle")
    graphs = [named_bundle(path) for path in graphs]
    models = [path for path in graphs if is_model(path)]
    if not models and named_by == "DEFAULT" and not bundle.exists():
        print_note("there is no folder bundle: using the pretrained model of this package", to=err)
        return named_bundle(PRETRAINED), graphs
    if not models:
        return named_bundle(bundle), graphs
    if len(models) > 1 or named_by == "COMMANDLINE":
        raise UsageError(f"{models[-1]} is a model, not a graph: name one bundle, and then graphs")
    rest = [path for path in graphs if path != models[0]]
    if not rest:
        raise UsageError(f"{models[0]} is a model: name a graph to run it on")
    return models[0], rest


def _store_among(graphs: list[Path]) -> Path | None:
    """The graph store, if the graphs are one."""
    from adar_runtime.errors import UsageError
    from adar_runtime.graph.store.store import is_store

    stores = [path for path in graphs if is_store(path)]
    if stores and len(graphs) > 1:
        raise UsageError(f"{stores[0]} is a graph store: run it alone")
    return stores[0] if stores else None


def _finish(results: "list[Success | Failure]", *, several: bool, quiet: bool, as_json: bool) -> None:
    """Print the results, and exit with an error if a graph failed."""
    for one in results:
        if isinstance(one, Failure):
            print_error(one.message)
    if as_json:
        summaries = [one.summary() for one in results]
        typer.echo(json.dumps(summaries if several else summaries[0]))
    elif not quiet:
        show_results(results, several=several)
    if any(isinstance(one, Failure) for one in results):
        raise typer.Exit(EXIT_USER_ERROR)
