"""The options of `adar-deploy train`, which are also keyword arguments of `adar_deploy.train`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.option_groups import OptionGroup
from adar_deploy.options import Device, Overwrite, Seed, Split
from adar_deploy.table_options import TableOptions

ZERO_SHOT_HIDDEN = 128
NO_TABLES = TableOptions()


class Preset(StrEnum):
    quick = "quick"
    transductive = "transductive"
    zero_shot = "zero-shot"


class Task(StrEnum):
    node = "node"
    edge = "edge"
    graph = "graph"


class Alignment(StrEnum):
    cosine_margin = "cosine-margin"
    mean_inner_product = "mean-inner-product"


class ClassWeights(StrEnum):
    none = "none"
    balanced = "balanced"


class Calibration(StrEnum):
    quick = "quick"
    full = "full"
    none = "none"


class Ablation(StrEnum):
    step_info = "step-info"
    relation = "relation"
    total_time = "total-time"
    step_loss = "step-loss"
    full_loss = "full-loss"


@dataclass(frozen=True)
class TrainingOptions(OptionGroup):
    """What to train on, the settings of the model and of the training, and where the run is written."""

    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="Graphs: minesweeper, chain, tree or blocks (generated), pyg:CLASS/NAME, .npz and .pt "
            "files, folders of them, or a table of nodes.",
            show_default="minesweeper",
        ),
    ] = None
    tables: TableOptions = NO_TABLES
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the run.", show_default="runs/NAME or runs/NAME-2, …"),
    ] = None
    preset: Annotated[
        Preset | None,
        typer.Option(
            help="Settings to start from instead of the default recipe. quick: 200 epochs without a search, "
            "about a quarter of the time. The paper's are transductive: 1000 epochs, learning rate 0.001; "
            "zero-shot: 10000 epochs, learning rate 0.0001.",
            show_default="the default recipe",
        ),
    ] = None
    task: Annotated[
        Task | None, typer.Option(help="What to predict.", show_default="what the labels belong to")
    ] = None
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most epochs. Training stops earlier if validation does not improve for 100 epochs.",
            show_default="700; 400 with many feature columns, 200 for many small graphs, 120 for zero-shot",
        ),
    ] = None
    train_steps: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Recurrent steps while training (S).", show_default="searched"),
    ] = None
    hidden: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=4096,
            help="Width of all representations (d).",
            show_default=f"64, or 32 for many small graphs, or {ZERO_SHOT_HIDDEN} for zero-shot",
        ),
    ] = None
    proxies: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=4096,
            help="Number of node proxies, and of target proxies (p).",
            show_default="32, or a quarter of the nodes for many small graphs, at least 4",
        ),
    ] = None
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate.", show_default="0.01, or 0.003 if the search prefers it"),
    ] = None
    weight_decay: Annotated[
        float | None,
        typer.Option(min=0.0, help="Weight decay.", show_default="searched, or 0 for zero-shot"),
    ] = None
    label_smoothing: Annotated[
        float | None, typer.Option(min=0.0, max=0.99, help="Label smoothing.", show_default="searched")
    ] = None
    class_weights: Annotated[
        ClassWeights,
        typer.Option(
            help="Weights of the classes in the loss. balanced: inverse to the number of training labels of "
            "a class, so that rare classes count as much as frequent ones."
        ),
    ] = ClassWeights.none
    dropout: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.99,
            help="Dropout of the node representations.",
            show_default="searched, or 0 for zero-shot",
        ),
    ] = None
    input_dropout: Annotated[
        float | None,
        typer.Option(min=0.0, max=0.99, help="Dropout of the features.", show_default="searched"),
    ] = None
    smoothing: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=8,
            help="Rounds in which nodes are averaged with their neighbours before the first step.",
            show_default="searched",
        ),
    ] = None
    seed: Seed = 0
    split: Split = 0
    alignment: Annotated[
        Alignment | None,
        typer.Option(
            help="Alignment score that the stop rule watches.",
            show_default="mean-inner-product, or cosine-margin for quick and zero-shot",
        ),
    ] = None
    calibration: Annotated[
        Calibration,
        typer.Option(
            help="How to choose the stop rule after training. quick: in at most a tenth of the training "
            "time; full: on every step of eight budgets; none: always stop at t = 1."
        ),
    ] = Calibration.quick
    without: Annotated[
        list[Ablation] | None,
        typer.Option(help="Remove a part of the model (repeatable): the ablations of the paper."),
    ] = None
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Train a baseline instead: gcn, gat, sage, gcnii, appnp, n2, fagcn, gprgnn, h2gcn or gps."
        ),
    ] = None
    device: Annotated[Device, typer.Option(help="Device to train on.")] = Device.auto
    gradient_checkpoints: Annotated[
        bool, typer.Option("--gradient-checkpoints", help="Use less memory and more time.")
    ] = False
    mixed_precision: Annotated[
        bool | None,
        typer.Option(
            "--mixed-precision/--no-mixed-precision",
            help="Matrix products in bfloat16.",
            show_default="on CUDA; on processors with AVX512-BF16 or AMX for graphs of 4000 nodes or more",
        ),
    ] = None
    search: Annotated[
        bool | None,
        typer.Option(
            "--search/--no-search",
            help="--search: train the paper's grid of steps and dropout to the end, and keep the best on "
            "validation labels. --no-search: train the default recipe without its own short search.",
            show_default="the search of the default recipe",
        ),
    ] = None
    validate_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Validate on all labels of this graph and train on the validation labels of the others "
            "(repeatable).",
            show_default="the validation labels of all graphs",
        ),
    ] = None
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Epochs between two checkpoints.")] = 50
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue from the checkpoint in --out; without one, start from the beginning."
        ),
    ] = False
    overwrite: Overwrite = False
