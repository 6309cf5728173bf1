"""`adar-deploy train`: train a model and write a run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.environment import import_matplotlib
from adar_deploy.fine_tuning import fine_tune, show_tuned
from adar_deploy.option_groups import with_groups
from adar_deploy.training import run_training
from adar_deploy.training_options import TrainingOptions
from adar_deploy.training_output import show_training


@with_groups
def train(
    *,
    options: TrainingOptions,
    base: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Fine-tune a pretrained model: the name pretrained, or a folder. Writes a bundle to --out; "
            "--epochs is the number of updates (100 by default).",
            show_default="train a new model",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
) -> None:
    """Train AdaR on labelled graphs.

    Graphs with the same features and the same classes train one model, which then runs on other graphs of
    this kind. Graphs that describe their classes (target_x) train one zero-shot model for any classes.

    Example: adar-deploy train graph.npz --epochs 500 --out runs/mine

    Example: adar-deploy train graph.npz --from pretrained --out tuned

    Example: adar-deploy train nodes.csv --edges edges.csv --id person --label group --both-ways
    """
    if base is not None:
        tuned = fine_tune(base, options)
        if as_json:
            typer.echo(json.dumps(tuned.manifest))
        else:
            show_tuned(tuned)
        return
    import_matplotlib()  # for the learning curve
    done = run_training(options)
    from adar_train import distributed

    if distributed.rank() == 0:
        exportable = options.baseline is None
        show_training(done.out, done.graphs, done.metrics, exportable=exportable, as_json=as_json)
