"""The work of `adar-deploy run --context`: answers for new nodes from one kept inference."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from adar_deploy.inference import OutputFiles, Success
from adar_deploy.options import is_typed
from adar_deploy.table_options import TableOptions

if TYPE_CHECKING:
    from adar_runtime import Bundle

CPU = ("auto", "onnxruntime-cpu")  # a context runs on this backend
USED = ("graphs", "bundle", "output", "context", "hops", "threads", "quiet", "as_json")
"""Options of `run` that have a meaning here, beside those of tables."""


@dataclass(frozen=True)
class NewNodes:
    """The options of a run of new nodes."""

    context: Path
    hops: int | None
    tables: TableOptions
    output: Path | None


def run_context(ctx: typer.Context, bundle: "Bundle", graphs: list[Path], options: NewNodes) -> Success:
    """Predict the nodes of a table, which are not in the context."""
    from adar_runtime.errors import UsageError
    from adar_runtime.evaluation.metrics import metric_name
    from adar_runtime.graph import NODE
    from adar_runtime.graph.formats.tables import read_new_nodes
    from adar_runtime.phases.context import HOPS
    from adar_runtime.phases.context_files import load_context

    used = {*USED, *(one.name for one in fields(TableOptions))}
    for name, value in ctx.params.items():
        if is_typed(ctx, name) and name not in used and not (name == "backend" and value in CPU):
            raise UsageError(f"--{name.replace('_', '-')} does not apply to --context")
    if len(graphs) != 1:
        raise UsageError(f"--context needs exactly one table of new nodes; got {len(graphs)}")
    path, tables = graphs[0], options.tables
    outputs = OutputFiles.plan([path], options.output, None, [tables.edges], several=False)
    context = load_context(bundle, options.context)
    kept = range(context.nodes) if context.kept.ids is None else context.kept.ids.tolist()
    encoding = bundle.manifest.feature_encoding or context.kept.encoding
    found = read_new_nodes(path, tables.edges, list(map(str, kept)), tables.choice(), encoding)
    graph = found.graph
    features, hops = graph.rows(0, graph.nodes), HOPS if options.hops is None else options.hops
    result = context.predict(features, found.edges, graph.ids, hops=hops)
    done = Success(
        path=path,
        nodes=graph.nodes,
        edges=found.edges.shape[1],
        metric=metric_name(result.scores.shape[1], regression=result.regression),
        level=NODE,
        metrics={},
        result=replace(result, compared=None),
        warnings=(*found.notes, *context.rebuild_reasons(features)),
    )
    return outputs.save(0, done)
