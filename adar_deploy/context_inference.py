"""The work of `adar-deploy run --context`: answers for new nodes from one kept inference."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adar_deploy.inference import OutputFiles, Success
from adar_deploy.table_options import TableOptions

if TYPE_CHECKING:
    from adar_runtime import Bundle


def run_context(
    bundle: "Bundle", path: Path, folder: Path, tables: TableOptions, output: Path | None
) -> Success:
    """Predict the nodes of a table, which are not in the context."""
    from adar_runtime.evaluation.metrics import metric_name
    from adar_runtime.graph import NODE
    from adar_runtime.graph.formats.tables import read_new_nodes
    from adar_runtime.phases.context_files import load_context

    outputs = OutputFiles.plan([path], output, None, several=False)
    context = load_context(bundle, folder)
    kept = range(context.nodes) if context.kept.ids is None else context.kept.ids.tolist()
    encoding = bundle.manifest.feature_encoding
    found = read_new_nodes(path, tables.edges, list(map(str, kept)), tables.choice(), encoding)
    graph = found.graph
    result = context.predict(graph.rows(0, graph.nodes), found.edges, graph.ids)
    done = Success(
        path=path,
        nodes=graph.nodes,
        edges=found.edges.shape[1],
        metric=metric_name(result.scores.shape[1], regression=result.regression),
        level=NODE,
        metrics={},
        result=replace(result, compared=None),
    )
    return outputs.save(0, done)
