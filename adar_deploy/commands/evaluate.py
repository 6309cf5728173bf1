"""The command `adar-deploy evaluate`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy.console import Bar, err, print_error, print_facts, print_note, print_rows
from adar_deploy.environment import check_plot
from adar_deploy.formatting import CLASS_METRICS, class_metrics, metric_title, percent, with_interval
from adar_deploy.model_folders import open_subject
from adar_deploy.option_groups import OptionGroup, with_groups
from adar_deploy.options import AllowUnknownModel, Json, parse_budgets
from adar_deploy.paths import bundle_first, check_output, graph_files, named_bundle
from adar_deploy.signals import EXIT_GATE
from adar_deploy.table_options import TableOptions

if TYPE_CHECKING:
    from adar_runtime import Graph
    from adar_runtime.evaluation.evaluate import Evaluation, Subject

BUDGETS = "8,12,20,50,80,100,120,150,200,250,300"


@dataclass(frozen=True)
class CurveFiles(OptionGroup):
    """The files that are written."""

    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the metric of every step of every budget: .csv or .json."),
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Plot metric and alignment against t: .png or .svg. With several graphs, -NAME is added to "
            "the name of the file."
        ),
    ] = None

    def check(self, inputs: Sequence[Path | None]) -> None:
        """Raise an error for a file that cannot be written, or that is one of the inputs."""
        if self.plot:
            check_plot(self.plot)
        for path in (self.output, self.plot):
            if path is not None:
                check_output(path, inputs)


@with_groups
def evaluate(
    *,
    model: Annotated[Path, typer.Argument(help="Folder of a training run or of a bundle, or pretrained.")],
    graphs: Annotated[
        list[Path],
        typer.Argument(
            help="Graph files with labels (.npz or .pt), folders of them, or a table of nodes.",
            readable=False,
        ),
    ],
    budgets: Annotated[str, typer.Option(help="Step budgets, comma-separated.")] = BUDGETS,
    split: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Index of the split, for graphs that have several.",
            show_default="the split that the model was trained on",
        ),
    ] = None,
    written: CurveFiles,
    min_metric: Annotated[
        float | None,
        typer.Option(
            max=1,
            help="Least metric at the exit of the largest budget, such as 0.9; below it, the exit code is 3.",
            show_default="no limit",
        ),
    ] = None,
    tables: TableOptions,
    allow_unknown_model: AllowUnknownModel = False,
    as_json: Json = False,
) -> None:
    """Score a model on labelled graphs at every step of every budget.

    The model's own stop rule chooses the stop step; labels are used for the score only. Graphs with one
    label each stop at their own steps: the table has the median of these, and "at best step" is the best
    step for all graphs together. If a graph has a test mask, the test part is scored. A training graph
    without masks is scored on the test part that train drew. Otherwise all labels are scored. If graph and
    model both name their classes, labels are matched by name. Brackets show 95 % intervals. If classes are
    imbalanced, the table also has balanced accuracy and macro-F1 at the exit; --json always has them.

    Exit codes: 0 success; 2 an error; 3 the metric is below --min-metric.

    Example: adar-deploy evaluate bundle cora.npz --budgets 8,50,300 --plot curve.png

    Example: adar-deploy evaluate bundle cora.npz --budgets 50 --min-metric 0.9

    Example: adar-deploy evaluate bundle nodes.csv --edges edges.csv
    """
    from adar_runtime.evaluation.evaluate import grouped, table_writer
    from adar_runtime.files import write_file

    model, graphs = bundle_first(named_bundle(model), graphs)
    sizes, files = parse_budgets("budgets", budgets), graph_files(graphs)
    tables.check(files)
    write = table_writer(written.output) if written.output else None
    written.check((*files, tables.edges))
    subject = open_subject(model, allow_unknown_model=allow_unknown_model)
    encoding, note = subject.feature_encoding, partial(print_note, to=err)
    read = {str(path): tables.read_all_for_model(path, model, encoding, note) for path in files}
    loaded = grouped(read, subject.level, ", ".join(map(str, graphs)))
    pictures = _pictures(written.plot, list(loaded))
    done: list[Evaluation] = []
    try:
        for name, group in loaded.items():
            done.append(_evaluate(name, group, subject, sizes, split))
            if written.plot:
                _plot(done[-1], pictures[name])
        if written.output and write:
            write_file(written.output, write(done))
    finally:  # after the file, which must not depend on a reader of stdout; also if another graph fails
        for one in [] if as_json else done:
            _show(one)
    if as_json:
        limit = {} if min_metric is None else {"min_metric": min_metric}
        reports = [one.to_dict() | limit for one in done]
        typer.echo(json.dumps(reports[0] if len(reports) == 1 else reports))
    if min_metric is not None:
        _check_least(done, min_metric)


def _evaluate(
    name: str, graphs: "list[Graph]", subject: "Subject", budgets: list[int], split: int | None
) -> "Evaluation":
    """Score the model on one graph, or on a group of small graphs, with a bar."""
    from adar_runtime.evaluation.evaluate import evaluate as evaluate_graphs

    chosen = subject.split_for(graphs[0], split)
    with Bar("evaluate", sum(budgets)) as bar:
        steps = 0

        def show(budget: int) -> None:
            nonlocal steps
            steps += budget
            bar.update(steps, f"{Path(name).name}  budget {budget}")

        return evaluate_graphs(name, graphs, subject, budgets, chosen, show)


def _plot(done: "Evaluation", picture: Path) -> None:
    from adar_runtime.evaluation.plots import plot_curves

    plot_curves(done.curves, done.exits, done.part, done.metric, picture)


def _pictures(plot: Path | None, names: list[str]) -> dict[str, Path]:
    """The picture of each graph: with several graphs, the name of the graph is added."""
    from adar_runtime.errors import UsageError

    if plot is None or len(names) == 1:
        return {} if plot is None else {names[0]: plot}
    found = {name: plot.with_stem(f"{plot.stem}-{Path(name).stem}") for name in names}
    for path in found.values():
        if list(found.values()).count(path) > 1:
            raise UsageError(f"two graphs would be drawn in {path}: give their files different names")
        check_output(path, (), "--plot")
    return found


def _check_least(done: "list[Evaluation]", least: float) -> None:
    """Exit with the code of a gate if a graph is below the least metric. A metric that is NaN is below it."""
    below = [one for one in done if not one.reached >= least]
    for one in below:
        metric = metric_title(one.metric)
        print_error(f"{one.graph}: {metric} {percent(one.reached)} is below --min-metric {least:g}")
    if below:
        raise typer.Exit(EXIT_GATE)


def _show(done: "Evaluation") -> None:
    metric = metric_title(done.metric)
    print_facts("evaluated", {"graph": done.graph, "metric": f"{metric} on {done.counted}"})
    rows = [
        (
            row["budget"],
            row["exit_step"],
            f"{row['exit_step'] / row['budget']:.2f}",
            with_interval(row["at_exit"], row),
            percent(row["at_end"]),
            percent(row["best"]),
            f"{row['alignment_at_exit']:.4g}",
        )
        for row in done.budgets()
    ]
    columns = ["budget", "stop step", "stop t", "at stop", "at t = 1", "at best step", "alignment at stop"]
    print_rows(columns, rows)
    by_class = [(row["budget"], found) for row in done.budgets() if (found := class_metrics(row))]
    if by_class:
        print_rows(["budget", f"{CLASS_METRICS} at stop"], by_class)
    if done.free:
        print_rows(["without a model", metric], [(name, percent(value)) for name, value in done.free.items()])
    for warning in done.warnings:
        print_note(warning)
    for name, value in done.better_for_free().items():
        print_note(f"{name} needs no model and scores {percent(value)}: on this graph, use it instead")
