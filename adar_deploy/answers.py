"""What `adar-deploy run` makes of a graph: the work, the files, and how it is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_deploy.console import percent, print_facts, print_note, print_rows, printable
from adar_deploy.paths import places

if TYPE_CHECKING:
    from adar_runtime import AdarError, Bundle, Graph, Result, Solver, Step, StopRule
    from adar_runtime.prediction_files import Writer


@dataclass(frozen=True)
class Answer:
    """One graph's."""

    path: Path
    nodes: int
    edges: int
    metric: str
    metrics: dict[str, float]  # of each part of the graph's split or of all labels, where it has any
    result: "Result"
    unscored: str = ""  # why there is no metric, though there are labels
    written: tuple[Path, ...] = ()

    def summary(self) -> dict[str, Any]:
        """As JSON has it."""
        result = self.result
        return {
            "graph": str(self.path),
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
            "seconds": result.seconds,
            "timings": result.timings,
            "alignment": result.alignment,
            "times": result.times,
            "metrics": {"metric": self.metric, **self.metrics} if self.metrics else {},
            **({"unscored": self.unscored} if self.unscored else {}),
        }


@dataclass(frozen=True)
class Failure:
    """A graph that has no answer, and why."""

    path: Path
    error: str

    @property
    def message(self) -> str:
        """With the file's name, once."""
        return self.error if self.error.startswith(f"{self.path}:") else f"{self.path}: {self.error}"

    def summary(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"graph": str(self.path), "error": self.error}


@dataclass(frozen=True)
class Job:
    """How every graph is to be answered."""

    bundle: "Bundle"
    budget: int
    rule: "StopRule"
    solver: "Solver"

    @property
    def whole(self) -> float:
        """The time at the end of the budget."""
        return float(self.budget) if self.bundle.manifest.unit_step else 1.0

    def answer(self, path: Path, graph: "Graph | AdarError", on_step: "Callable[[Step], None]") -> Answer:
        """Run a graph; one that could not be read raises what was wrong with it."""
        from adar_runtime.errors import AdarError
        from adar_runtime.evaluation.metrics import metric_name

        if isinstance(graph, AdarError):
            raise graph
        result = self._run(graph, on_step)
        metrics, unscored = self._score(graph, result)
        return Answer(
            path=path,
            nodes=graph.nodes,
            edges=graph.edges,
            metric=metric_name(result.scores.shape[1], regression=result.regression),
            metrics=metrics,
            result=result,
            unscored=unscored,
        )

    def _score(self, graph: "Graph", result: "Result") -> tuple[dict[str, float], str]:
        """The metrics or, where the labels are no classes of the model's, why there are none."""
        from adar_runtime.errors import LabelsError
        from adar_runtime.evaluation.metrics import scored_part, split_metrics
        from adar_runtime.graph import PARTS
        from adar_runtime.graph.labels import align_labels

        try:
            graph = align_labels(self.bundle.manifest, graph)
        except LabelsError as error:
            return {}, f"not scored: {error}"
        parts = list(dict.fromkeys([*PARTS, scored_part([graph])]))
        return split_metrics(graph, result.scores, self.bundle.split_for(graph), parts), ""

    def _run(self, graph: "Graph", on_step: "Callable[[Step], None]") -> "Result":
        loop = self.bundle.loop(graph, self.budget, self.rule, self.solver)
        for step in loop:
            on_step(step)
        return loop.result()


@dataclass(frozen=True)
class Saver:
    """Writes what was asked for as soon as a graph is answered, so that nothing done is lost."""

    predictions: list[Path | None]  # one a graph
    plots: list[Path | None]
    write: "Writer | None"

    @classmethod
    def of(cls, files: Sequence[Path], output: Path | None, plot: Path | None, *, several: bool) -> "Saver":
        """Refuse what could not be written before any work is done."""
        from adar_runtime.evaluation.plots import check_drawable
        from adar_runtime.prediction_files import prediction_writer

        write = prediction_writer(output) if output else None
        if plot:
            check_drawable(plot)
        return cls(
            predictions=places("--output", output, files, several=several),
            plots=places("--plot", plot, files, several=several),
            write=write,
        )

    def __call__(self, index: int, answer: Answer) -> Answer:
        from adar_runtime.files import write_file

        result, predictions, plot = answer.result, self.predictions[index], self.plots[index]
        if predictions and self.write:
            write_file(predictions, self.write(result.predictions, result.probabilities, result.class_names))
        if plot:
            from adar_runtime.evaluation.plots import plot_run

            plot_run(result, plot)
        told = replace(result, scores=result.scores[:0].copy())  # a folder's worth of scores need not fit
        return replace(answer, result=told, written=tuple(path for path in (predictions, plot) if path))


def _show_one(answer: Answer) -> None:
    """All there is to say about one graph."""
    result = answer.result
    facts = {
        "nodes, edges": f"{answer.nodes:,}, {answer.edges:,}",
        "cell calls": f"{result.cell_calls:,}, for a budget of {result.budget:,} steps",
        "stopped because": result.stop_reason.value,
        "answer from": f"t = {result.best_time:.2f}, call {result.best_step:,}",
        "backend": result.backend,
        "time": f"{result.seconds:.2f} s ("
        + ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in result.timings.items())
        + ")",
        **{_measured(part, answer.metric): percent(value) for part, value in answer.metrics.items()},
    }
    if answer.written:
        facts["written"] = ", ".join(map(str, answer.written))
    print_facts("answered", facts)
    if answer.unscored:
        print_note(printable(answer.unscored))


def _measured(part: str, metric: str) -> str:
    """What a figure is of."""
    return f"{metric}, all labels" if part == "all" else f"{part} {metric}"


def show_answers(answers: Sequence[Answer | Failure], *, several: bool) -> None:
    """All there is to say about one graph, or a row for each of several."""
    given = [one for one in answers if isinstance(one, Answer)]
    if not several:
        _show_one(given[0])
        return
    rows = [_row(one) for one in given]
    if rows:
        print_rows(["graph", "nodes", "calls", "best t", "stopped by", "metric", "seconds"], rows)
    facts: dict[str, Any] = {"answered": f"{len(rows)} of {len(answers)} graphs"}
    written = [str(path) for one in given for path in one.written]
    if written:
        facts["written"] = f"{len(written)} files, the first {written[0]}"
    print_facts("", facts)
    for one in given:
        if one.unscored:
            print_note(printable(f"{one.path}: {one.unscored}"))


def _row(answer: Answer) -> tuple[str, ...]:
    result = answer.result
    part = next((part for part in ("test", "all", "val", "train") if part in answer.metrics), None)
    return (
        answer.path.name,
        f"{answer.nodes:,}",
        f"{result.cell_calls}",
        f"{result.best_time:.2f}",
        result.stop_reason.name.lower().replace("_", " "),
        f"{part} {percent(answer.metrics[part])}" if part else "–",
        f"{result.seconds:.2f}",
    )
