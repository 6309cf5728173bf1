"""The command `adar-deploy evaluate`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy.console import Bar, percent, print_facts, print_note, print_rows
from adar_deploy.extras import require
from adar_deploy.numbers import parse_numbers
from adar_deploy.options import Json, Split
from adar_deploy.paths import graph_files

if TYPE_CHECKING:
    from adar_runtime.evaluation.evaluate import Evaluation, Subject

BUDGETS = "8,12,20,50,80,100,120,150,200,250,300"


def evaluate(
    model: Annotated[Path, typer.Argument(help="Folder of a training run or of a bundle.")],
    graphs: Annotated[
        list[Path],
        typer.Argument(help="Graphs with labels (.npz or .pt), or folders of them.", readable=False),
    ],
    budgets: Annotated[str, typer.Option(help="Budgets to try, with commas between.")] = BUDGETS,
    split: Split = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write every step of every budget: .csv or .json.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw metric and alignment against t: .png or .svg.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score a model on graphs at every step of every budget.

    The exit is the model's own. Labels are used for the score and nothing else. Where a graph has a
    test mask, its test part is scored, otherwise all of its labels. Where graph and model both have names
    of their classes, labels are compared by name.

    Example: adar-deploy evaluate bundle cora.npz --budgets 8,50,300 --plot curve.png
    """
    from adar_runtime import read_graph
    from adar_runtime.evaluation import evaluate as evaluation
    from adar_runtime.evaluation.plots import check_drawable, plot_curves
    from adar_runtime.files import write_file
    from adar_runtime.graph import GRAPH

    sizes = parse_budgets(budgets)
    write = evaluation.table_writer(output) if output else None
    if plot:
        check_drawable(plot)
    subject = open_subject(model)
    done: list[Evaluation] = []
    loaded = {str(path): [read_graph(path)] for path in graph_files(graphs)}
    if subject.level == GRAPH:  # labelled as wholes, they are scored together
        loaded = {", ".join(map(str, graphs)): [graph for group in loaded.values() for graph in group]}
    for name, group in loaded.items():
        with Bar("evaluate", sum(sizes)) as bar:
            spent = 0

            def show(budget: int) -> None:
                nonlocal spent
                spent += budget
                bar.update(spent, f"{Path(name).name}  budget {budget}")  # noqa: B023

            done.append(evaluation.evaluate(name, group, subject, sizes, split, show))
        if plot:
            picture = plot if len(loaded) == 1 else plot.with_stem(f"{plot.stem}-{Path(name).stem}")
            plot_curves(done[-1].curves, done[-1].part, done[-1].metric, picture)
        if not as_json:
            _show(done[-1])
    if output and write:
        write_file(output, write(done))
    if as_json:
        reports = [one.to_dict() for one in done]
        typer.echo(json.dumps(reports[0] if len(reports) == 1 else reports))


def parse_budgets(text: str) -> list[int]:
    """Numbers of steps from a list with commas."""
    from adar_runtime.loop.loop import check_budget

    sizes = parse_numbers("budgets", text)
    for size in sizes:
        check_budget(size)
    return sizes


def open_subject(path: Path) -> "Subject":
    """The model in this folder. A bundle needs no PyTorch."""
    from adar_runtime import load
    from adar_runtime.bundle.manifest import FILE_NAME
    from adar_runtime.evaluation.curves import run_moments
    from adar_runtime.evaluation.evaluate import Subject
    from adar_runtime.loop.stopping import make_rule

    if (path / FILE_NAME).is_file():
        bundle = load(path)
        manifest = bundle.manifest
        return Subject(
            run=lambda graph, budget: run_moments(bundle, graph, budget),
            make_rule=bundle.stop_rule,
            features=manifest.features,
            level=manifest.level,
            regression=manifest.regression,
            targets=manifest.targets,
            class_names=manifest.class_names,
        )
    require("train")
    from adar_train.evaluate import moments
    from adar_train.runs import load_run
    from adar_train.tensors import GraphTensors

    run = load_run(path)
    config = run.model.config
    return Subject(
        run=lambda graph, budget: moments(run.model, GraphTensors.of(graph), budget),
        make_rule=lambda: make_rule(run.metrics["exit"]),
        features=config.features,
        level=config.level,
        regression=config.regression,
        targets=config.targets,
        class_names=run.class_names(),
        any_budget=run.model.any_budget,
    )


def _show(done: "Evaluation") -> None:
    print_facts("evaluated", {"graph": done.graph, "metric": f"{done.metric} on {done.part} labels"})
    rows = [
        (
            row["budget"],
            f"{row['exit_step']} (t = {row['exit_step'] / row['budget']:.2f})",
            percent(row["at_exit"]),
            percent(row["at_end"]),
            percent(row["best"]),
            f"{row['alignment_at_exit']:.4g}",
        )
        for row in done.budgets()
    ]
    print_rows(["budget", "exit step", "at exit", "at t = 1", "best step", "alignment"], rows)
    if done.free:
        print_rows(
            ["without any model", done.metric], [(name, percent(value)) for name, value in done.free.items()]
        )
    for name, value in done.better_for_free().items():
        print_note(f"{name} alone gives {percent(value)}: on this graph the model is not worth its cost")
