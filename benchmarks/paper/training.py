"""Trainings that several parts use: a baseline by its name, and AdaR as the command line trains it."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from adar_runtime.evaluation.curves import PAPER_BUDGETS
from adar_runtime.evaluation.metrics import metric_name, split_metrics
from adar_runtime.graph import Graph
from adar_runtime.loop.schedule import times
from adar_train import Epoch, GraphTensors, TrainConfig, Trainer, load_run
from adar_train.alignments import mean_inner_product
from adar_train.baselines import BASELINES
from adar_train.model import Model
from adar_train.prepare import model_config
from benchmarks.paper.tasks import Work

HIDDEN = 64  # of all models, as in AdaR
POINTS = 100  # of a trajectory that a row keeps
# All settings of a baseline's training: rows stay comparable if the product's defaults change.
BASELINE_TRAINING: dict[str, Any] = {
    "grid": "fixed",
    "train_steps": 1,
    "lr": 1e-2,
    "warmup": 20,
    "decay": True,
    "flat_epochs": 0,
    "beta2": 0.95,
    "weight_decay": 1e-6,
    "clip": 1.0,
    "ema_decay": 0.0,
    "patience": 0,
    "label_smoothing": 0.0,
    "middle_weight": 0.0,
    "episodes": False,
    "mixed_precision": False,
    "gradient_checkpoints": False,
    "class_weights": "none",
    "fading_losses": False,
    "calibration": "full",
    "step_weight": 0.0,
    "full_weight": 0.0,
    "evaluate_every": 5,
    "select_budgets": (1,),
    "exit_budgets": (1,),
}


def train_baseline(
    work: Work,
    graphs: Sequence[Graph],
    method: str,
    layers: int | None = None,
    hidden: int = HIDDEN,
    dropout: float = 0.2,
    **training: Any,
) -> tuple[Model, dict[str, Any]]:
    """Train a baseline and return it with the values of its row. `layers` of None is its default depth."""
    config = TrainConfig(**BASELINE_TRAINING | training, seed=work.key.seed, split=work.key.split)
    of_model = model_config(graphs, hidden=hidden, dropout=dropout)
    torch.manual_seed(config.seed)
    model = BASELINES[method](of_model, **({} if layers is None else {"layers": layers}))
    trainer = Trainer(graphs, model, config)
    fitted = trainer.run(show_epochs(work, config.epochs))
    metrics = fitted.metrics
    return fitted.model, {
        **{name: metrics.get(name) for name in ("metric", "train", "val", "test")},
        "epochs": len(trainer.history),
        "best_epoch": trainer.best_epoch,
        "seconds": metrics["seconds"],
        "settings": {"layers": layers, "hidden": hidden, "dropout": dropout}
        | {"mixed_precision": config.mixed_precision}
        | plain(training),
    }


def train_adar(
    work: Work, names: Sequence[str], arguments: Sequence[str], folder: Path
) -> tuple[Model, dict[str, Any]]:
    """Train AdaR with `adar-deploy train`, as a user would; return the model and the values of its row."""
    files = [str(work.file(name)) for name in names]
    options = ["--split", str(work.key.split), "--seed", str(work.key.seed), *arguments]
    command = [sys.executable, "-m", "adar_deploy", "train", *files, *options, "--json", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["adar-deploy train failed"])[-1])
    run = load_run(folder)
    shown = " ".join(["adar-deploy train", *(f"{name}.npz" for name in names), *options])
    settings = {"command": shown, "model": run.config["model"], "training": run.config["training"]}
    return run.model, run_values(run.metrics) | {"settings": settings}


def run_values(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row from the metrics of a run."""
    kept = ["metric", "train", "val", "test", "seconds", "calibration_seconds", "epochs", "search_seconds"]
    kept += ["exit", "exit_reason", "exit_regret", "budgets"]
    return {name: metrics[name] for name in kept if name in metrics}


def adar_row(work: Work, arguments: Sequence[str]) -> dict[str, Any]:
    """Train AdaR on the row's set; add the metrics at the end of every budget and the longest trajectory."""
    work.report(0.0, "adar-deploy train")
    with TemporaryDirectory() as folder:
        model, row = train_adar(work, [work.key.set], arguments, Path(folder) / "run")
        graph = load_run(Path(folder) / "run").graph()
    return row | test_time_computing(work, model, graph, GraphTensors.of(graph))


def test_time_computing(work: Work, model: Model, graph: Graph, tensors: GraphTensors) -> dict[str, Any]:
    """The metrics at the end of every budget, and the trajectory of the longest one."""
    ends = {}
    for budget in PAPER_BUDGETS[:-1]:
        work.report(0.9, f"{budget} steps")
        ends[str(budget)] = end_metrics(model, graph, tensors, budget, work.key.split)
    longest = PAPER_BUDGETS[-1]
    work.report(0.95, f"{longest} steps")
    path = trajectory(model, graph, tensors, longest, work.key.split)
    ends[str(longest)] = {"val": path[-1][2], "test": path[-1][3]}
    kept = np.unique(np.linspace(0, len(path) - 1, POINTS + 1).round().astype(int))
    return {
        "metric": metric_name(graph.targets),
        "ends": ends,
        "trajectory": [path[index] for index in kept],
    }


@torch.no_grad()
def end_metrics(
    model: Model, graph: Graph, tensors: GraphTensors, budget: int, split: int
) -> dict[str, float]:
    """The metrics after the last step of a budget."""
    model.eval()
    for state in model.trajectory(tensors, times(budget, unit_step=model.config.unit_step)):
        last = state
    return split_metrics(graph, model.scores(last, tensors).numpy(), split, ["val", "test"])


@torch.no_grad()
def trajectory(
    model: Model, graph: Graph, tensors: GraphTensors, budget: int, split: int
) -> list[tuple[float, ...]]:
    """Time, mean inner product, validation metric and test metric at every step of a budget."""
    model.eval()
    clock = times(budget, unit_step=model.config.unit_step)
    found = []
    for time, state in zip(clock, model.trajectory(tensors, clock), strict=True):
        scores = model.scores(state, tensors).numpy()
        metrics = split_metrics(graph, scores, split, ["val", "test"])
        aligned = float(mean_inner_product(state.nodes, state.targets))
        found.append((float(time), *(round(one, 5) for one in (aligned, metrics["val"], metrics["test"]))))
    return found


def show_epochs(work: Work, epochs: int) -> Any:
    """A callback for every epoch; it reports every tenth."""

    def on_epoch(epoch: Epoch) -> None:
        if epoch.number % 10 == 0:
            val = "" if epoch.val is None else f", best val {100 * epoch.val:.2f}"
            work.report(epoch.number / epochs, f"epoch {epoch.number} of {epochs}{val}")

    return on_epoch


def score_row(graph: Graph, scores: Any, split: int) -> dict[str, Any]:
    """The metrics of scores [n, c], for methods without a trainer."""
    return {"metric": metric_name(graph.targets)} | split_metrics(graph, scores, split)


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the types of JSON."""
    return dict(json.loads(json.dumps(settings)))
