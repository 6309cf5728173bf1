"""The command `adar-deploy train`."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from adar_deploy.console import Bar, err, print_note
from adar_deploy.environment import require
from adar_deploy.formatting import percent
from adar_deploy.options import Device, Overwrite, Seed, Split, with_options_of, without_none
from adar_deploy.paths import RUNS, training_names
from adar_deploy.training_output import settings_line, show_training

if TYPE_CHECKING:
    from adar_runtime import Graph

HIDDEN, ZERO_SHOT_HIDDEN = 64, 128
# A baseline has a fixed depth, and the paper's other two losses are defined on AdaR's steps only.
ONE_PASS = {"select_budgets": (1,), "exit_budgets": (1,), "step_weight": 0.0, "full_weight": 0.0}


class Preset(StrEnum):
    quick = "quick"
    accurate = "accurate"
    transductive = "transductive"
    zero_shot = "zero-shot"


class Task(StrEnum):
    node = "node"
    edge = "edge"
    graph = "graph"


class Alignment(StrEnum):
    cosine_margin = "cosine-margin"
    mean_inner_product = "mean-inner-product"


class Ablation(StrEnum):
    step_info = "step-info"
    relation = "relation"
    total_time = "total-time"
    step_loss = "step-loss"
    full_loss = "full-loss"


class Training(NamedTuple):
    """A finished training."""

    out: Path
    graphs: "Sequence[Graph]"
    metrics: dict[str, Any]
    notes: list[str]  # what was changed or drawn, in the words of the command


def run_training(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="Graphs: minesweeper, chain, tree or blocks (generated), pyg:CLASS/NAME, .npz and .pt "
            "files, or folders of them.",
            show_default="minesweeper",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the run.", show_default="runs/NAME or runs/NAME-2, …"),
    ] = None,
    preset: Annotated[
        Preset | None,
        typer.Option(
            help="Settings to start from. quick: the defaults below; accurate: up to 700 epochs with early "
            "stopping, after a search on validation labels. The paper's are transductive: 1000 epochs, "
            "learning rate 0.001; zero-shot: 10000 epochs, learning rate 0.0001.",
            show_default="quick",
        ),
    ] = None,
    task: Annotated[
        Task | None, typer.Option(help="What to predict.", show_default="what the labels belong to")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Training epochs.", show_default="200, or 120 for zero-shot")
    ] = None,
    train_steps: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Recurrent steps while training (S).", show_default="8"),
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=4096,
            help="Width of all representations (d).",
            show_default=f"{HIDDEN}, or {ZERO_SHOT_HIDDEN} for zero-shot",
        ),
    ] = None,
    proxies: Annotated[
        int, typer.Option(min=1, max=4096, help="Number of node proxies, and of target proxies (p).")
    ] = 32,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default="0.01")] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(min=0.0, help="Weight decay.", show_default="1e-06, or 0 for zero-shot"),
    ] = None,
    label_smoothing: Annotated[
        float | None, typer.Option(min=0.0, max=0.99, help="Label smoothing.", show_default="0")
    ] = None,
    dropout: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.99,
            help="Dropout of the node representations.",
            show_default="0.2, or 0 for zero-shot",
        ),
    ] = None,
    input_dropout: Annotated[
        float | None, typer.Option(min=0.0, max=0.99, help="Dropout of the features.", show_default="0")
    ] = None,
    seed: Seed = 0,
    split: Split = 0,
    alignment: Annotated[
        Alignment | None,
        typer.Option(
            help="Alignment score that the stop rule watches.",
            show_default="cosine-margin, or mean-inner-product with other presets than quick",
        ),
    ] = None,
    without: Annotated[
        list[Ablation] | None,
        typer.Option(help="Remove a part of the model (repeatable): the ablations of the paper."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Train a baseline instead: gcn, gat, sage, gcnii, appnp or n2.")
    ] = None,
    device: Annotated[Device, typer.Option(help="Device to train on.")] = Device.auto,
    gradient_checkpoints: Annotated[
        bool, typer.Option("--gradient-checkpoints", help="Use less memory and more time.")
    ] = False,
    mixed_precision: Annotated[
        bool | None,
        typer.Option(
            "--mixed-precision/--no-mixed-precision",
            help="Matrix products in bfloat16: faster on processors with AVX512-BF16 or AMX.",
            show_default="on CUDA only",
        ),
    ] = None,
    search: Annotated[
        bool | None,
        typer.Option(
            "--search/--no-search",
            help="Try the paper's grid of steps and dropout to the end; keep the best on validation labels. "
            "--no-search: train --preset accurate without its own search.",
            show_default="no grid",
        ),
    ] = None,
    validate_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Validate on all labels of this graph and train on the validation labels of the others "
            "(repeatable).",
            show_default="the validation labels of all graphs",
        ),
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Epochs between two checkpoints.")] = 50,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue from the checkpoint in --out; without one, start from the beginning."
        ),
    ] = False,
    overwrite: Overwrite = False,
    *,
    in_memory: "Mapping[str, Graph] | None" = None,
    quiet: bool = False,
) -> Training:
    """Train and write the run: the work of `adar-deploy train` and of `adar_deploy.train`.

    Names of `data` and `validate_on` that are in `in_memory` stand for these graphs. The parameters with
    typer's annotations are the options of the command.
    """
    require("train")
    from adar_runtime.errors import UsageError
    from adar_runtime.graph import SparseRows
    from adar_train import distributed
    from adar_train.config import SEARCH
    from adar_train.config import preset as settings
    from adar_train.job import Job
    from adar_train.prepare import model_config, prepare
    from adar_train.runs import free_name
    from adar_train.search import candidates

    if resume and out is None:
        raise UsageError("--resume needs --out, the folder of the run to continue")
    given = data or ["minesweeper"]
    names, validating = training_names(given, validate_on or [], in_memory or {})
    first = distributed.rank() == 0
    removed = set(without or ())
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        if first and not quiet:
            print_note(text, to=err)

    graphs = prepare(names, task, seed, note, validating, in_memory or {})
    ours = preset in (None, Preset.quick) and baseline is None
    described = ours and graphs[0].target_features is not None and graphs[0].level == "node"
    described = described and not graphs[0].regression
    _check_ablations(removed, preset, described)
    if preset == Preset.accurate and graphs[0].target_features is not None:
        raise UsageError(
            "--preset accurate is for learned classes: leave it out for graphs that describe their classes"
        )
    given_settings = without_none(
        dropout=dropout,
        input_dropout=input_dropout,
        weight_decay=weight_decay,
        label_smoothing=label_smoothing,
        train_steps=train_steps,
    )
    job = Job(
        names=names,
        graphs=graphs,
        model=model_config(
            graphs,
            hidden=hidden or (ZERO_SHOT_HIDDEN if described else HIDDEN),
            variant="zero-shot" if described else "standard",
            proxies=proxies,
            step_info=Ablation.step_info not in removed,
            relation=Ablation.relation not in removed,
            unit_step=Ablation.total_time in removed,
            **without_none(
                dropout=0.0 if described and dropout is None else dropout,
                input_dropout=input_dropout,
                alignment=alignment or (None if preset in (None, Preset.quick) else "mean-inner-product"),
            ),
        ),
        training=settings(
            preset,
            described=described,
            sparse=isinstance(graphs[0].features, SparseRows),
            seed=seed,
            split=split,
            gradient_checkpoints=gradient_checkpoints,
            mixed_precision=mixed_precision,
            **without_none(
                epochs=epochs,
                train_steps=train_steps,
                lr=lr,
                weight_decay=weight_decay,
                label_smoothing=label_smoothing,
            ),
            **(ONE_PASS if baseline else {}),
            **({"grid": "unit"} if Ablation.total_time in removed else {}),
            **({"step_weight": 0.0} if Ablation.step_loss in removed else {}),
            **({"full_weight": 0.0} if Ablation.full_loss in removed else {}),
        ),
        baseline=baseline,
        out=out or free_name(RUNS, Path(given[0]).stem),
    )
    with (
        distributed.process_group(distributed.choose_device(device)),
        Bar("train", job.training.epochs, shown=first and not quiet) as bar,
    ):

        def show(epoch: Any) -> None:
            val = "" if epoch.val is None else f"  best val {percent(epoch.val)}"
            then = "  calibrating the stop rule" if epoch.number == job.training.epochs else ""
            bar.update(epoch.number, f"loss {epoch.loss:.4f}{val}{then}")

        def show_search(tried: dict[str, Any], epoch: Any) -> None:
            bar.update(0, f"search: epoch {epoch.number} of {settings_line(tried)}")

        if search:
            metrics = job.search(SEARCH, device, show, overwrite)
        else:
            choices = candidates(graphs[0], given_settings) if preset == "accurate" and not baseline else []
            metrics = job.run(
                device,
                show,
                checkpoint_every=checkpoint_every,
                resume=resume,
                overwrite=overwrite,
                on_note=note,
                choices=choices[:1] if search is False else choices,
                on_search=show_search,
            )
    return Training(job.out, graphs, metrics, notes)


@with_options_of(run_training)
def train(
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
    **options: Any,
) -> None:
    """Train AdaR on labelled graphs.

    Graphs with the same features and the same classes train one model, which then runs on other graphs of
    this kind. Graphs that describe their classes (target_x) train one zero-shot model for any classes.

    Example: adar-deploy train graph.npz --epochs 500 --out runs/mine
    """
    done = run_training(**options)
    from adar_train import distributed

    if distributed.rank() == 0:
        exportable = options["baseline"] is None
        show_training(done.out, done.graphs, done.metrics, exportable=exportable, as_json=as_json)


def _check_ablations(removed: set[Ablation], preset: Preset | None, described: bool) -> None:
    """Refuse to remove a part that the model does not have."""
    from adar_runtime.errors import UsageError

    losses = removed & {Ablation.step_loss, Ablation.full_loss}
    parts = removed & {Ablation.step_info, Ablation.relation}
    if (losses and preset in (None, Preset.quick)) or (parts and described):
        word = min(losses or parts)
        raise UsageError(f"the default model has no {word} to remove: add --preset transductive or zero-shot")
