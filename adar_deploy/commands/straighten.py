"""The command `adar-deploy straighten`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.console import Bar, print_facts, print_next
from adar_deploy.environment import import_matplotlib, require
from adar_deploy.formatting import metric_title, percent
from adar_deploy.options import Json, Overwrite
from adar_deploy.paths import RUNS


def straighten(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a training run.", show_default="the newest in runs/")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the new run.", show_default="runs/NAME-straight"),
    ] = None,
    updates: Annotated[
        int,
        typer.Option(
            min=1, help="About how many times the loss is evaluated. More evaluations lose less accuracy."
        ),
    ] = 150,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a trained model so that ten cell calls give the result of 300 steps.

    The new run has the weights with the fewest cell calls that lose at most 0.1 points of validation. If no
    weights do, the new run has the old weights, and a line says why. The old run stays as it is. export
    proves the number of calls.

    An update takes about as long as four epochs of training with 8 steps. Needs a run of one graph with
    learned classes.

    Example: adar-deploy straighten runs/minesweeper --out runs/fast
    """
    require("train")
    import_matplotlib()  # for the learning curve
    from adar_runtime.errors import UsageError
    from adar_train.run_folders import check_free, claimed, free_name, newest_run
    from adar_train.runs import load_run, save_run
    from adar_train.straightening import Check, checked_graph, training_of
    from adar_train.straightening import straighten as straighten_run
    from adar_train.threads import avoid_busy_cores

    loaded = load_run(run or newest_run(RUNS))
    if out is not None and out.resolve() == loaded.path.resolve():
        raise UsageError(f"{out} is the run itself: choose another --out")
    graph = checked_graph(loaded)
    folder = out or free_name(RUNS, f"{loaded.path.resolve().name}-straight")
    avoid_busy_cores(lambda _: None)
    with claimed(folder), Bar("straighten", updates, shown=not as_json) as bar:
        check_free(folder, overwrite=overwrite)

        def show(check: Check) -> None:
            bar.update(min(check.updates, updates), f"{check.shown_calls} calls  val {percent(check.val)}")

        done = straighten_run(loaded, updates, show)
        save_run(folder, done.fitted, graph, loaded.config["data"], training_of(loaded))
    metrics = done.fitted.metrics
    if as_json:
        facts = {"run": str(folder), "calls_before": done.before.calls, "calls": done.after.calls}
        typer.echo(json.dumps(facts | {"kept": done.kept, "metrics": metrics}))
        return
    name, before = metric_title(metrics["metric"]), loaded.metrics
    changes = {
        f"{part} {name}": f"{percent(before[part])} → {percent(metrics[part])}"
        for part in ("train", "val", "test")
        if part in metrics and part in before
    }
    print_facts(
        "straightened" if done.kept is None else "not straightened",
        {
            "cell calls": f"{done.before.shown_calls} → {done.after.shown_calls}, to be proven by export",
            **changes,
            **({"weights": f"those of {loaded.path}, because {done.kept}"} if done.kept else {}),
            "run": folder,
        },
    )
    print_next("export", folder, "--opset", 17)
