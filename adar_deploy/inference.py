"""The work of `adar-deploy run`: inference on each graph, its output files, and what is printed about it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_deploy.console import print_facts, print_note, print_rows, print_warning
from adar_deploy.environment import check_plot
from adar_deploy.formatting import metric_title, outputs_of, with_interval
from adar_deploy.paths import output_paths

if TYPE_CHECKING:
    from adar_runtime import AdarError, Bundle, Graph, Result, Solver, Step, StopRule
    from adar_runtime.evaluation.drift import Drift
    from adar_runtime.evaluation.uncertainty import Estimate
    from adar_runtime.graph import Integers
    from adar_runtime.graph.formats.node_list import NodeList
    from adar_runtime.prediction_files import Writer


NOT_WRITTEN = "nothing: add --output predictions.csv"


@dataclass(frozen=True)
class Success:
    """A graph with predictions."""

    path: Path
    nodes: int
    edges: int
    metric: str
    level: str
    metrics: "dict[str, Estimate]"  # for each part of the split or for all labels; empty without labels
    result: "Result"
    training_split: bool = False  # the parts are those that the model was trained with
    warnings: tuple[str, ...] = ()  # about the metric
    unscored: str = ""  # why there is no metric although the graph has labels
    written: tuple[Path, ...] = ()
    drift: "Drift | None" = None  # None where the bundle has no statistics of the training data
    chosen: "Integers | None" = None  # the nodes whose predictions are written; None for all
    graphs: int | None = None  # graphs with predictions, for a file that holds many

    def summary(self) -> dict[str, Any]:
        """The JSON object."""
        result = self.result
        return {
            "graph": str(self.path),
            **({} if self.graphs is None else {"graphs": self.graphs}),
            "nodes": self.nodes,
            "classes": result.scores.shape[1],
            "class_names": result.class_names,
            "max_steps": result.budget,
            "steps": result.steps,
            "cell_calls": result.cell_calls,
            "best_step": result.best_step,
            "best_time": result.best_time,
            "stop_reason": result.stop_reason.name.lower(),
            "backend": result.backend,
            "captured": None if result.capture is None else result.capture.captured,
            **({"not_captured": result.capture.why} if result.capture and result.capture.why else {}),
            "solver": result.solver,
            "proof": result.proof,
            **({} if result.check is None else {"check": asdict(result.check)}),
            "seconds": result.seconds,
            "timings": result.timings,
            "alignment": result.alignment,
            "times": result.times,
            "metrics": self._metrics() if self.metrics else {},
            **({"drift": {"score": self.drift.score, "warnings": self.unlike}} if self.drift else {}),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
            **({"unscored": self.unscored} if self.unscored else {}),
        }

    def _metrics(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            **{part: found.value for part, found in self.metrics.items()},
            "intervals": {part: found.to_dict() for part, found in self.metrics.items()},
            "training_split": self.training_split,
        }

    @property
    def unlike(self) -> list[str]:
        """How the graph differs from the training data; `adar-deploy drift` shows the details."""
        return self.drift.warnings() if self.drift else []

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about the metric."""
        return (*self.warnings, *([self.unscored] if self.unscored else []))


@dataclass(frozen=True)
class Failure:
    """A graph without predictions, and the reason."""

    path: Path
    error: str

    @property
    def message(self) -> str:
        """The error, with the file's name exactly once."""
        return self.error if self.error.startswith(f"{self.path}:") else f"{self.path}: {self.error}"

    def summary(self) -> dict[str, Any]:
        """The JSON object."""
        return {"graph": str(self.path), "error": self.error}


@dataclass(frozen=True)
class Inference:
    """The settings that all graphs of one command share."""

    bundle: "Bundle"
    budget: int
    rule: "StopRule"
    solver: "Solver"
    nodes: "NodeList | None" = None  # the nodes whose predictions are written; None for all

    @property
    def end_time(self) -> float:
        """The time t after all steps of the budget."""
        return float(self.budget) if self.bundle.manifest.unit_step else 1.0

    def run(self, path: Path, graph: "Graph | AdarError", on_step: "Callable[[Step], None]") -> Success:
        """Predict. A graph that could not be read is given as its error, which is raised here."""
        from adar_runtime.errors import AdarError

        if isinstance(graph, AdarError):
            raise graph
        chosen = None if self.nodes is None else self.nodes.find(graph)
        loop = self.bundle.loop(graph, self.budget, self.rule, self.solver)
        for step in loop:
            on_step(step)
        return self._success(path, graph, chosen, loop.result())

    def together(
        self, graphs: "Iterable[Graph | AdarError]"
    ) -> "Iterator[tuple[Graph | AdarError, Result | AdarError | None]]":
        """Each graph with its outcome, if small graphs ran in a batch; with None for a graph to run alone."""
        from adar_runtime.bundle.small_graphs import groups, outcomes

        for group in groups(graphs):
            if self.bundle.small_graphs is None or len(group) < 2:
                yield from ((graph, None) for graph in group)
            else:
                found = outcomes(self.bundle, group, self.budget, self.rule, self.solver)
                yield from zip(group, found, strict=True)

    def answered(self, path: Path, graph: "Graph | AdarError", found: "Result | AdarError") -> Success:
        """The predictions of a graph that ran in a batch. An error is raised here."""
        from adar_runtime.errors import AdarError

        if isinstance(graph, AdarError):
            raise graph
        chosen = None if self.nodes is None else self.nodes.find(graph)
        if isinstance(found, AdarError):
            raise found
        return self._success(path, graph, chosen, found)

    def _success(self, path: Path, graph: "Graph", chosen: "Integers | None", result: "Result") -> Success:
        from adar_runtime.evaluation.metrics import metric_name

        return Success(
            path=path,
            nodes=graph.nodes,
            edges=graph.edges,
            metric=metric_name(result.scores.shape[1], regression=result.regression),
            level=graph.level,
            result=result,
            drift=result.drift,
            chosen=chosen,
            **self._score(graph, result),
        )

    def _score(self, graph: "Graph", result: "Result") -> dict[str, Any]:
        """The metrics or, where the labels are not classes of the model, the reason for having none."""
        from adar_runtime.errors import BundleError, LabelsError
        from adar_runtime.evaluation.scoring import choose_outputs, choose_unknown
        from adar_runtime.evaluation.uncertainty import pooled_estimates
        from adar_runtime.graph import PARTS
        from adar_runtime.graph.labels import align_labels

        if graph.labels is None:
            return {"metrics": {}}
        manifest, split = self.bundle.manifest, self.bundle.split_for(graph)
        try:
            if manifest.in_context:  # its known labels are those of the first split
                chosen, split = choose_unknown(manifest.training, [graph], 0), 0
            else:
                aligned = align_labels(manifest, graph)
                chosen = choose_outputs(manifest.training, [aligned], split)
        except (LabelsError, BundleError) as error:
            return {"metrics": {}, "unscored": f"not scored: {error}"}
        parts = list(dict.fromkeys([*PARTS, chosen.part]))
        return {
            "metrics": pooled_estimates(chosen.graphs, [result.scores], split, parts),
            "training_split": chosen.recognised,
            "warnings": tuple(chosen.warnings),
        }


@dataclass(frozen=True)
class OutputFiles:
    """Writes the files of each graph as soon as its predictions are ready, so that no work is lost."""

    predictions: list[Path | None]  # one per graph
    plots: list[Path | None]
    write: "Writer | None"

    @classmethod
    def plan(
        cls,
        graphs: Sequence[Path],
        output: Path | None,
        plot: Path | None,
        inputs: Sequence[Path | None],
        *,
        several: bool,
    ) -> "OutputFiles":
        """Check that all files can be written before any work is done.

        `inputs` are the files that the command reads beside the graphs.
        """
        from adar_runtime.prediction_files import prediction_writer

        write = prediction_writer(output) if output else None
        if plot:
            check_plot(plot)
        return cls(
            predictions=output_paths("--output", output, graphs, inputs, several=several),
            plots=output_paths("--plot", plot, graphs, inputs, several=several),
            write=write,
        )

    def save(self, index: int, done: Success) -> Success:
        """Write the files of a graph. The returned object has no scores and no graph, which can be large."""
        from adar_runtime.files import write_file

        result, predictions, plot = done.result, self.predictions[index], self.plots[index]
        if predictions and self.write:
            chosen = result if done.chosen is None else result.select(done.chosen)
            write_file(predictions, self.write(chosen))
        if plot:
            result.plot(plot)
        without_scores = replace(result, scores=result.scores[:0].copy(), ids=None, compared=None)
        return replace(
            done, result=without_scores, written=tuple(path for path in (predictions, plot) if path)
        )


def show_results(results: Sequence[Success | Failure], *, several: bool) -> None:
    """Print the details of one graph, or a row for each of several."""
    successes = [one for one in results if isinstance(one, Success)]
    if not several:
        _show_one(successes[0])
        return
    if successes:
        columns = ["graph", "nodes", "cell calls", "best t", "stop reason", "metric", "seconds"]
        print_rows(columns, map(_row, successes))
    facts: dict[str, Any] = {"predicted": f"{len(successes)} of {len(results)} graphs"}
    written = [str(path) for one in successes for path in one.written]
    facts["written"] = f"{len(written)} files, the first {written[0]}" if written else NOT_WRITTEN
    print_facts("", facts)
    for one in successes:
        for note in one.notes:
            print_note(f"{one.path}: {note}")
        for warning in one.unlike:
            print_warning(f"{one.path}: {warning}")


def _show_one(done: Success) -> None:
    result = done.result
    phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in result.timings.items())
    facts = {
        **({} if done.graphs is None else {"graphs": f"{done.graphs:,}"}),
        "nodes, edges": f"{done.nodes:,}, {done.edges:,}",
        "cell calls": f"{result.cell_calls:,} (step budget {result.budget:,})",
        "stop reason": result.stop_reason.value,
        "predictions from": f"t = {result.best_time:.2f}, call {result.best_step:,}",
        "backend": result.backend,
        **({} if result.capture is None else {"captured": str(result.capture)}),
        "solver": f"{result.solver}: {result.proof}",
        **({} if result.check is None else {"label check": str(result.check)}),
        "time": f"{result.seconds:.2f} s ({phases})",
        **{
            _metric_label(part, done.metric): with_interval(
                found.value, found.to_dict(), outputs_of(done.level)
            )
            for part, found in done.metrics.items()
        },
    }
    if done.training_split:
        facts["split"] = "that of the training: the model was trained on this graph"
    facts["written"] = ", ".join(map(str, done.written)) or NOT_WRITTEN
    print_facts("predicted", facts)
    for note in done.notes:
        print_note(note)
    for warning in done.unlike:
        print_warning(warning)


def _metric_label(part: str, metric: str) -> str:
    title = metric_title(metric)
    return f"{title}, all labels" if part == "all" else f"{part} {title}"


def _row(done: Success) -> tuple[str, ...]:
    result = done.result
    part = next((part for part in ("test", "all", "val", "train") if part in done.metrics), None)
    return (
        done.path.name,
        f"{done.nodes:,}",
        f"{result.cell_calls}",
        f"{result.best_time:.2f}",
        result.stop_reason.name.lower().replace("_", " "),
        f"{part} {with_interval(done.metrics[part].value, done.metrics[part].to_dict())}" if part else "–",
        f"{result.seconds:.2f}",
    )
