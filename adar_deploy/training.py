"""Train and write a run: the options and the work of `adar-deploy train` and of `adar_deploy.train`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from adar_deploy.console import Bar, err, print_note
from adar_deploy.environment import require
from adar_deploy.formatting import percent
from adar_deploy.options import Device, Overwrite, Seed, Split, without_none
from adar_deploy.paths import RUNS, training_names
from adar_deploy.table_options import NO_TABLES, TableOptions, with_tables
from adar_deploy.training_choices import Ablation, Alignment, Calibration, ClassWeights, Preset, Task

if TYPE_CHECKING:
    from adar_runtime import Graph

ZERO_SHOT_HIDDEN = 128
# A baseline has a fixed depth, and the paper's other two losses are defined on AdaR's steps only.
ONE_PASS = {"select_budgets": (1,), "exit_budgets": (1,), "step_weight": 0.0, "full_weight": 0.0}


class Training(NamedTuple):
    """A finished training."""

    out: Path
    graphs: "Sequence[Graph]"
    metrics: dict[str, Any]
    notes: list[str]  # what was changed or drawn, in the words of the command


@with_tables
def run_training(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="Graphs: minesweeper, chain, tree or blocks (generated), pyg:CLASS/NAME, .npz and .pt "
            "files, folders of them, or a table of nodes.",
            show_default="minesweeper",
        ),
    ] = None,
    tables: TableOptions = NO_TABLES,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the run.", show_default="runs/NAME or runs/NAME-2, …"),
    ] = None,
    preset: Annotated[
        Preset | None,
        typer.Option(
            help="Settings to start from instead of the default recipe. quick: 200 epochs without a search, "
            "about a quarter of the time. The paper's are transductive: 1000 epochs, learning rate 0.001; "
            "zero-shot: 10000 epochs, learning rate 0.0001.",
            show_default="the default recipe",
        ),
    ] = None,
    task: Annotated[
        Task | None, typer.Option(help="What to predict.", show_default="what the labels belong to")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most epochs. Training stops earlier if validation does not improve for 100 epochs.",
            show_default="700; 400 with many feature columns, 200 for many small graphs, 120 for zero-shot",
        ),
    ] = None,
    train_steps: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Recurrent steps while training (S).", show_default="searched"),
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=4096,
            help="Width of all representations (d).",
            show_default=f"64, or 32 for many small graphs, or {ZERO_SHOT_HIDDEN} for zero-shot",
        ),
    ] = None,
    proxies: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=4096,
            help="Number of node proxies, and of target proxies (p).",
            show_default="32, or a quarter of the nodes for many small graphs, at least 4",
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate.", show_default="0.01, or 0.003 if the search prefers it"),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(min=0.0, help="Weight decay.", show_default="searched, or 0 for zero-shot"),
    ] = None,
    label_smoothing: Annotated[
        float | None, typer.Option(min=0.0, max=0.99, help="Label smoothing.", show_default="searched")
    ] = None,
    class_weights: Annotated[
        ClassWeights,
        typer.Option(
            help="Weights of the classes in the loss. balanced: inverse to the number of training labels of "
            "a class, so that rare classes count as much as frequent ones."
        ),
    ] = ClassWeights.none,
    dropout: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.99,
            help="Dropout of the node representations.",
            show_default="searched, or 0 for zero-shot",
        ),
    ] = None,
    input_dropout: Annotated[
        float | None,
        typer.Option(min=0.0, max=0.99, help="Dropout of the features.", show_default="searched"),
    ] = None,
    smoothing: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=8,
            help="Rounds in which nodes are averaged with their neighbours before the first step.",
            show_default="searched",
        ),
    ] = None,
    seed: Seed = 0,
    split: Split = 0,
    alignment: Annotated[
        Alignment | None,
        typer.Option(
            help="Alignment score that the stop rule watches.",
            show_default="mean-inner-product, or cosine-margin for quick and zero-shot",
        ),
    ] = None,
    calibration: Annotated[
        Calibration,
        typer.Option(
            help="How to choose the stop rule after training. quick: in at most a tenth of the training "
            "time; full: on every step of eight budgets; none: always stop at t = 1."
        ),
    ] = Calibration.quick,
    without: Annotated[
        list[Ablation] | None,
        typer.Option(help="Remove a part of the model (repeatable): the ablations of the paper."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Train a baseline instead: gcn, gat, sage, gcnii, appnp, n2, fagcn, gprgnn, h2gcn or gps."
        ),
    ] = None,
    device: Annotated[Device, typer.Option(help="Device to train on.")] = Device.auto,
    gradient_checkpoints: Annotated[
        bool, typer.Option("--gradient-checkpoints", help="Use less memory and more time.")
    ] = False,
    mixed_precision: Annotated[
        bool | None,
        typer.Option(
            "--mixed-precision/--no-mixed-precision",
            help="Matrix products in bfloat16.",
            show_default="on CUDA; on processors with AVX512-BF16 or AMX for graphs of 4000 nodes or more",
        ),
    ] = None,
    search: Annotated[
        bool | None,
        typer.Option(
            "--search/--no-search",
            help="--search: train the paper's grid of steps and dropout to the end, and keep the best on "
            "validation labels. --no-search: train the default recipe without its own short search.",
            show_default="the search of the default recipe",
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
    from adar_train import distributed
    from adar_train.config import SEARCH
    from adar_train.config import preset as settings
    from adar_train.data import load_all
    from adar_train.graph_batch import are_small
    from adar_train.job import Job
    from adar_train.prepare import default_sizes, model_config, prepare
    from adar_train.runs import free_name
    from adar_train.search import (
        FEWEST_EPOCHS,
        ROUND,
        candidates,
        challenger,
        final_round,
        has_final,
        is_wide,
        last_round,
        search_epochs,
        settings_line,
    )
    from adar_train.threads import avoid_busy_cores

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

    tables.check(names)
    given_graphs, read_file = in_memory or {}, tables.reader(load_all, note)

    def read(name: str) -> "list[Graph]":
        return [given_graphs[name]] if name in given_graphs else read_file(name)

    graphs = prepare(names, task, seed, note, validating, read)
    learned = graphs[0].target_features is None
    if preset is None and (baseline or not learned):
        preset = Preset.quick  # the default recipe was measured for AdaR with learned targets only
    quick = preset == Preset.quick
    described = quick and baseline is None and not learned and graphs[0].level == "node"
    described = described and not graphs[0].regression
    _check_ablations(removed, quick=quick, described=described)
    given_settings = without_none(
        dropout=dropout,
        input_dropout=input_dropout,
        smoothing=smoothing,
        weight_decay=weight_decay,
        label_smoothing=label_smoothing,
        train_steps=train_steps,
        lr=lr,
    )
    small = baseline is None and are_small(graphs)
    sizes = default_sizes(graphs, small=small)
    job = Job(
        names=names,
        graphs=graphs,
        model=model_config(
            graphs,
            hidden=hidden or (ZERO_SHOT_HIDDEN if described else sizes["hidden"]),
            variant="zero-shot" if described else "standard",
            proxies=proxies or sizes["proxies"],
            step_info=Ablation.step_info not in removed,
            relation=Ablation.relation not in removed,
            unit_step=Ablation.total_time in removed,
            **without_none(
                dropout=0.0 if described and dropout is None else dropout,
                input_dropout=input_dropout,
                smoothing=smoothing,
                alignment=alignment or (None if quick else "mean-inner-product"),
            ),
        ),
        training=settings(
            preset,
            described=described,
            wide=is_wide(graphs[0]),
            small=small,
            seed=seed,
            split=split,
            gradient_checkpoints=gradient_checkpoints,
            mixed_precision=mixed_precision,
            class_weights=str(class_weights),
            calibration=str(calibration),
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
    avoid_busy_cores(note)
    choices = [] if preset or search else candidates(graphs[0], given_settings)
    if search is None and len(choices) > 1 and job.training.epochs < FEWEST_EPOCHS:
        note(f"no search of the regularisation: it needs at least {FEWEST_EPOCHS} epochs (--epochs)")
        search = False
    choices = choices[:1] if search is False else choices
    rival = challenger(graphs[0], given_settings) if len(choices) > 1 else {}
    final = final_round(job.training.epochs) if has_final(choices) else 0
    searching = search_epochs(len(choices), ROUND, last_round(graphs[0]) if rival else 0, final)
    with (
        distributed.process_group(distributed.choose_device(device)),
        Bar("train", searching + job.training.epochs, shown=first and not quiet) as bar,
    ):
        done = 0

        def show(epoch: Any) -> None:
            val = "" if epoch.val is None else f"  best val {percent(epoch.val)}"
            then = "  calibrating the stop rule" if epoch.number == job.training.epochs else ""
            bar.update(searching + epoch.number, f"loss {epoch.loss:.4f}{val}{then}")

        def show_search(tried: dict[str, Any], epoch: Any) -> None:
            nonlocal done
            done += 1
            bar.update(done, f"search: epoch {epoch.number} of {settings_line(tried)}")

        if search:
            metrics = job.search(SEARCH, device, show, overwrite)
        else:
            metrics = job.run(
                device,
                show,
                checkpoint_every=checkpoint_every,
                resume=resume,
                overwrite=overwrite,
                on_note=note,
                choices=choices,
                challenger=rival,
                on_search=show_search,
            )
    return Training(job.out, graphs, metrics, notes)


def _check_ablations(removed: set[Ablation], *, quick: bool, described: bool) -> None:
    """Refuse to remove a part that the model does not have."""
    from adar_runtime.errors import UsageError

    losses = removed & {Ablation.step_loss, Ablation.full_loss}
    parts = removed & {Ablation.step_info, Ablation.relation}
    if (losses and quick) or (parts and described):
        word = min(losses or parts)
        raise UsageError(f"this recipe has no {word} to remove: add --preset transductive or zero-shot")
