"""The command `adar-deploy train`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.console import Bar, percent, print_facts, print_next
from adar_deploy.extras import require

RUNS = Path("runs")


def train(
    data: Annotated[
        str, typer.Argument(help="An embedded data set (minesweeper), or a .npz or .pt graph file.")
    ] = "minesweeper",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run.", show_default="runs/NAME, a free one")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the graph.")] = 200,
    train_steps: Annotated[int, typer.Option(min=1, help="Recurrent steps while training (S).")] = 8,
    hidden: Annotated[int, typer.Option(min=2, help="Columns of every representation (d).")] = 64,
    proxies: Annotated[int, typer.Option(min=1, help="Proxies of nodes, and of targets (p).")] = 32,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 2e-3,
    dropout: Annotated[float, typer.Option(min=0.0, max=0.99, help="Dropout probability.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    split: Annotated[int, typer.Option(min=0, help="Which of the graph's splits.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
) -> None:
    """Train AdaR on a graph with labels.

    Example: adar-deploy train graph.npz --epochs 500 --out runs/mine
    """
    require("train")
    from adar_runtime.files import check_replaceable
    from adar_train import Epoch, ModelConfig, TrainConfig, fit, load, save_run
    from adar_train.runs import CONFIG, GRAPH, free_name

    out = out or free_name(RUNS, Path(data).stem)
    check_replaceable(out, marker=CONFIG)
    graph = load(data)
    targets = None if graph.target_features is not None else graph.classes
    model = ModelConfig(graph.width, targets, hidden, proxies, dropout)
    training = TrainConfig(epochs=epochs, train_steps=train_steps, lr=lr, seed=seed, split=split)
    with Bar("train", epochs) as bar:

        def show(epoch: Epoch) -> None:
            val = "" if epoch.val is None else f"  best val {percent(epoch.val)}"
            bar.update(epoch.number, f"loss {epoch.loss:.4f}{val}")

        fitted = fit(graph, model, training, show)
    save_run(out, fitted, graph, data, training)

    metrics = fitted.metrics
    if as_json:
        typer.echo(json.dumps(metrics | {"run": str(out), "graph": str(out / GRAPH)}))
        return
    facts = {
        "nodes, edges": f"{graph.nodes:,}, {graph.edges:,}",
        "epochs": f"{metrics['epochs']} in {metrics['seconds']:.0f} s",
        **{f"{name} {metrics['metric']}": percent(metrics[name]) for name in ("train", "val", "test")},
        "run": out,
        "graph": out / GRAPH,
    }
    print_facts("trained", facts)
    print_next(f"adar-deploy export {out} --opset 17")
