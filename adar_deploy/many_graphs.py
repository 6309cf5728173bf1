"""The work of `adar-deploy run` for files that hold many graphs: one row of predictions for each graph."""

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from adar_deploy.console import Bar, printable
from adar_deploy.inference import Failure, Inference, OutputFiles, Success

if TYPE_CHECKING:
    from adar_runtime import Graph, Result

Outcome = Success | Failure

NOT_SCORED = "not scored: adar-deploy evaluate scores the graphs of a file together"


def check_together(inference: Inference, path: Path, graphs: "Sequence[Graph]") -> None:
    """Refuse a file whose graphs do not run together with this model."""
    from adar_runtime.errors import UsageError
    from adar_runtime.evaluation.metrics import check_same_classes
    from adar_runtime.graph import GRAPH

    manifest = inference.bundle.manifest
    others = (graph for graph in graphs if graph.level != GRAPH)
    if any(graph.labels is not None or graph.pairs is not None for graph in others):
        raise UsageError(
            f"{path}: only graphs with one label each run together: save other graphs one by one"
        )
    level = manifest.level
    if level != GRAPH:
        raise UsageError(
            f"{path}: the file holds many graphs, and the bundle predicts for each {level}: save one per file"
        )
    if manifest.targets is None:
        check_same_classes(graphs)
    if all(graph.width != manifest.features for graph in graphs):
        inference.bundle.check(graphs[0])  # one error, not one for each graph


def run_many(
    inference: Inference,
    path: Path,
    graphs: "Sequence[Graph]",
    first: int = 0,
    on_graph: Callable[[int], None] = lambda _: None,
) -> list[Outcome]:
    """Run graphs of a file that passed `check_together`, small ones in batches.

    Args:
        inference: The bundle and its settings.
        path: The file.
        graphs: The graphs, or some of them.
        first: The number of the first one in the file.
        on_graph: Receives the number of finished graphs.

    Returns:
        The predictions of all graphs that succeeded as one object, if there are any, and a failure for each
        other graph. The result has the curve of the graph with the most cell calls.
    """
    from adar_runtime.bundle.small_graphs import outcomes
    from adar_runtime.errors import AdarError
    from adar_runtime.evaluation.metrics import metric_name
    from adar_runtime.graph import GRAPH

    settings = inference.budget, inference.rule, inference.solver
    found: dict[int, Result] = {}
    failed: list[Outcome] = []
    for position, outcome in enumerate(outcomes(inference.bundle, graphs, *settings)):
        if isinstance(outcome, AdarError):
            failed.append(Failure(path, f"graph {first + position}: {outcome}"))
        else:
            found[position] = outcome
        on_graph(position + 1)
    if not found:
        return failed
    result = _joined(found, first)
    done = Success(
        path=path,
        nodes=sum(graphs[position].nodes for position in found),
        edges=sum(graphs[position].edges for position in found),
        metric=metric_name(result.scores.shape[1], regression=result.regression),
        level=GRAPH,
        metrics={},
        result=result,
        unscored=NOT_SCORED if any(graph.labels is not None for graph in graphs) else "",
        graphs=len(found),
    )
    return [done, *failed]


def _joined(found: "dict[int, Result]", first: int) -> "Result":
    import numpy as np

    results = list(found.values())
    longest = max(results, key=lambda each: each.cell_calls)
    timings = {phase: sum(each.timings[phase] for each in results) for phase in longest.timings}
    return replace(
        longest,
        scores=np.concatenate([each.scores for each in results]),
        outputs=first + np.array(list(found)),
        ids=None,
        compared=None,
        timings=timings,
    )


def run_many_files(
    inference: Inference, files: Sequence[Path], many: Container[Path], outputs: OutputFiles, bar: Bar
) -> list[Outcome]:
    """Run the files that hold many graphs, and write their predictions. Of several files, one may fail."""
    from adar_runtime.errors import AdarError, UsageError
    from adar_runtime.graph.formats import read_graphs

    found: list[Outcome] = []
    for index, path in enumerate(files):
        if path not in many:
            continue
        if inference.nodes is not None:
            raise UsageError(f"--nodes chooses nodes of one graph, and {path} holds many graphs")
        try:
            graphs = read_graphs(path)
            check_together(inference, path, graphs)
            show = partial(_show, bar, index, len(graphs), path.name)
            for one in run_many(inference, path, graphs, on_graph=show):
                found.append(one if isinstance(one, Failure) else outputs.save(index, one))
        except AdarError as error:
            if len(files) == 1:
                raise
            found.append(Failure(path, str(error)))
    return found


def _show(bar: Bar, index: int, count: int, name: str, done: int) -> None:
    bar.update(index + done / count, f"{printable(name)}  {done:,} of {count:,} graphs")


def by_file(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Join the successes of each file, whose graphs ran in several turns. Failures stay as they are."""
    joined: dict[Path, Success] = {}
    rest: list[Outcome] = []
    for one in outcomes:
        if isinstance(one, Failure) or one.graphs is None:
            rest.append(one)
            continue
        before = joined.get(one.path)
        joined[one.path] = one if before is None else _added(before, one)
    return [*joined.values(), *rest]


def _added(a: Success, b: Success) -> Success:
    longest = max((a.result, b.result), key=lambda each: each.cell_calls)
    timings = {phase: seconds + b.result.timings[phase] for phase, seconds in a.result.timings.items()}
    return replace(
        a,
        nodes=a.nodes + b.nodes,
        edges=a.edges + b.edges,
        graphs=(a.graphs or 0) + (b.graphs or 0),
        written=a.written + b.written,
        result=replace(longest, timings=timings),
    )
