"""The command `adar-deploy train`."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from adar_deploy.console import Bar, err, percent, print_facts, print_next, print_note
from adar_deploy.extras import require
from adar_deploy.options import Seed, Split
from adar_deploy.paths import graph_files

RUNS = Path("runs")
SPLITS = ("train", "val", "test")
OURS = "our own recipe"
# A baseline's depth is its own, and the paper's two other losses are of AdaR's steps.
ONE_PASS = {"select_budgets": (1,), "exit_budgets": (1,), "step_weight": 0.0, "full_weight": 0.0}


class Preset(StrEnum):
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


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def train(
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
        typer.Option("--out", "-o", help="Folder for the run.", show_default="runs/NAME, a free one"),
    ] = None,
    preset: Annotated[
        Preset | None, typer.Option(help="The paper's settings, to start from.", show_default=OURS)
    ] = None,
    task: Annotated[
        Task | None, typer.Option(help="What to predict.", show_default="what the labels are of")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the graphs.", show_default=OURS)
    ] = None,
    train_steps: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Recurrent steps while training (S).", show_default=OURS),
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=4096,
            help="Columns of every representation (d).",
            show_default="64, or 128 where classes are described",
        ),
    ] = None,
    proxies: Annotated[int, typer.Option(min=1, max=4096, help="Proxies of nodes, and of targets (p).")] = 32,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default=OURS)] = None,
    weight_decay: Annotated[
        float | None, typer.Option(min=0.0, help="Weight decay.", show_default=OURS)
    ] = None,
    label_smoothing: Annotated[
        float | None,
        typer.Option(min=0.0, max=0.99, help="Share of every label spread over all.", show_default=OURS),
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(min=0.0, max=0.99, help="Dropout of nodes.", show_default=OURS)
    ] = None,
    input_dropout: Annotated[
        float | None, typer.Option(min=0.0, max=0.99, help="Dropout of features.", show_default=OURS)
    ] = None,
    seed: Seed = 0,
    split: Split = 0,
    alignment: Annotated[
        Alignment | None,
        typer.Option(help="What an exit watches.", show_default="cosine-margin; a preset's: the paper's"),
    ] = None,
    without: Annotated[
        list[Ablation] | None,
        typer.Option(help="Leave a part of the model out (repeatable), as the paper does."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Train gcn, gat, sage, gcnii, appnp or n2 instead.")
    ] = None,
    device: Annotated[Device, typer.Option(help="What to train on.")] = Device.auto,
    gradient_checkpoints: Annotated[
        bool, typer.Option("--gradient-checkpoints", help="Less memory for more time.")
    ] = False,
    mixed_precision: Annotated[
        bool | None,
        typer.Option(
            "--mixed-precision/--no-mixed-precision",
            help="Products in bfloat16: faster on processors that have them (AVX512-BF16, AMX).",
            show_default="on CUDA only",
        ),
    ] = None,
    search: Annotated[
        bool,
        typer.Option(
            "--search", help="Try the paper's grid of steps and dropout, keep the best by validation."
        ),
    ] = False,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Epochs between checkpoints.")] = 50,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
) -> None:
    """Train AdaR on graphs with labels.

    One graph trains a model for that graph's classes. Graphs that describe their classes (target_x)
    train one model for any classes: it is then run on graphs it has never seen.

    Example: adar-deploy train graph.npz --epochs 500 --out runs/mine
    """
    require("train")
    from adar_train import distributed
    from adar_train.config import SEARCH
    from adar_train.config import preset as settings
    from adar_train.job import Job
    from adar_train.prepare import model_config, prepare
    from adar_train.runs import free_name

    given = data or ["minesweeper"]
    names = [name for one in given for name in _meant(one)]
    first = distributed.rank() == 0
    left_out = set(without or ())
    graphs = prepare(names, task, seed, lambda text: print_note(text, to=err) if first else None)
    ours = preset is None and baseline is None
    described = ours and graphs[0].target_features is not None and graphs[0].level == "node"
    described = described and not graphs[0].regression
    _check_ablations(left_out, preset, described)
    job = Job(
        names=names,
        graphs=graphs,
        model=model_config(
            graphs,
            hidden=hidden or (128 if described else 64),
            variant="zero-shot" if described else "standard",
            proxies=proxies,
            step_info=Ablation.step_info not in left_out,
            relation=Ablation.relation not in left_out,
            unit_step=Ablation.total_time in left_out,
            **_given(
                dropout=0.0 if described and dropout is None else dropout,
                input_dropout=input_dropout,
                alignment=alignment or ("mean-inner-product" if preset else None),
            ),
        ),
        training=settings(
            preset,
            described=described,
            seed=seed,
            split=split,
            gradient_checkpoints=gradient_checkpoints,
            mixed_precision=mixed_precision,
            **_given(
                epochs=epochs,
                train_steps=train_steps,
                lr=lr,
                weight_decay=weight_decay,
                label_smoothing=label_smoothing,
            ),
            **(ONE_PASS if baseline else {}),
            **({"grid": "unit"} if Ablation.total_time in left_out else {}),
            **({"step_weight": 0.0} if Ablation.step_loss in left_out else {}),
            **({"full_weight": 0.0} if Ablation.full_loss in left_out else {}),
        ),
        baseline=baseline,
        out=out or free_name(RUNS, Path(given[0]).stem),
    )
    with (
        distributed.process_group(distributed.choose_device(device)),
        Bar("train", job.training.epochs, shown=first) as bar,
    ):

        def show(epoch: Any) -> None:
            val = "" if epoch.val is None else f"  best val {percent(epoch.val)}"
            then = "  calibrating the exit" if epoch.number == job.training.epochs else ""
            bar.update(epoch.number, f"loss {epoch.loss:.4f}{val}{then}")

        if search:
            metrics = job.search(SEARCH, device, show)
        else:
            metrics = job.run(device, show, checkpoint_every=checkpoint_every, resume=resume)
    if first:
        _show(job.out, graphs, metrics, exportable=baseline is None, as_json=as_json)


def _meant(name: str) -> list[str]:
    """The graph files of a folder; whatever else it names as it is."""
    from adar_runtime.graph.synthetic import FAMILIES

    if name in FAMILIES or not Path(name).is_dir():
        return [name]
    return [str(file) for file in graph_files([Path(name)])]


def _check_ablations(left_out: set[Ablation], preset: Preset | None, described: bool) -> None:
    """Refuse to leave out what is not there."""
    from adar_runtime.errors import UsageError

    losses = left_out & {Ablation.step_loss, Ablation.full_loss}
    parts = left_out & {Ablation.step_info, Ablation.relation}
    if (losses and preset is None) or (parts and described):
        word = min(losses or parts)
        raise UsageError(f"our own recipe has no {word} to leave out: compare with --preset")


def _given(**options: Any) -> dict[str, Any]:
    """Those that the user set; the others are the recipe's."""
    return {name: value for name, value in options.items() if value is not None}


def _show(out: Path, graphs: Any, metrics: dict[str, Any], *, exportable: bool, as_json: bool) -> None:
    from adar_runtime.run_files import GRAPH

    graph = out / GRAPH
    if as_json:
        typer.echo(json.dumps(metrics | {"run": str(out), "graph": str(graph)}))
        return
    rule = metrics["exit"]
    facts = {
        "nodes, edges": f"{sum(g.nodes for g in graphs):,}, {sum(g.edges for g in graphs):,}",
        "epochs": f"{metrics['epochs']} in {metrics['seconds']:.0f} s, "
        f"and {metrics['calibration_seconds']:.0f} s to calibrate the exit",
        **{f"{part} {metrics['metric']}": percent(metrics[part]) for part in SPLITS if part in metrics},
        "exit": " ".join(f"{name} {value}" for name, value in rule.items()),
        "run": out,
        "graph": graph,
    }
    print_facts("trained", facts)
    if exportable:
        print_next("export", out, "--opset", 17)
