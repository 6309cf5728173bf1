"""Part "zero-shot": trained on arXiv and DBLP, tested on all nodes of Cora."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from adar_deploy import pretrained
from adar_runtime.evaluation.zero_shot_baselines import TRAINING_FREE
from adar_runtime.graph import ALL, Graph
from adar_runtime.loop.schedule import times
from adar_runtime.loop.stopping import answer_step, make_rule
from adar_train import GraphTensors, load
from adar_train.alignments import mean_inner_product
from adar_train.baselines import BASELINES
from adar_train.baselines.base import OnePass
from adar_train.baselines.self_supervised import SELF_SUPERVISED, pretrain, zero_shot_scores
from adar_train.model import Model
from adar_train.prepare import model_config, prepare
from benchmarks.paper.table import Key, Row, Table
from benchmarks.paper.tasks import Part, Task, Work
from benchmarks.paper.training import HIDDEN, train_adar, train_baseline

PART_NAME = "zero-shot"
SETS = ("cora-text",)
TRAINED_ON = ("arxiv-2023-text", "dblp-text")
LAYERS = {"gcn": 2, "sage": 2, "gcnii": 8, "gat": 2, "n2": 8}
BACKBONES = ("gcn", "sage")  # of DGI and GRACE; GAT's products per edge take too long
NO_TRAINING, OURS = "no training", "ours"
ADAR: dict[str, list[str]] = {OURS: [], "zero-shot": ["--preset", "zero-shot"]}
PRETRAINED = "pretrained"  # the model inside the package
EPOCHS, QUICK_EPOCHS = 200, 40
QUICK_ADAR = ["--epochs", "40", "--lr", "0.001"]  # of the paper's preset: 10,000 epochs at 1e-4 take a day
BUDGETS = (8, 50, 300)


def tasks(table: Table, sets: tuple[str, ...], quick: bool) -> list[Task]:  # noqa: ARG001
    """Without training, then the baselines, then AdaR."""
    found = []
    for name in sets:
        found += [_task(name, method, NO_TRAINING, 20) for method in TRAINING_FREE]
        found += [
            _task(name, method, "default", 600 if method in ("n2", "gat") else 300) for method in LAYERS
        ]
        found += [_task(name, one, backbone, 300) for one in SELF_SUPERVISED for backbone in BACKBONES]
        found += [
            _task(name, "adar", setting, seconds)
            for setting, seconds in zip(ADAR, (900, 80_000), strict=True)
        ]
        found.append(_task(name, "adar", PRETRAINED, 60))
    return found


def _task(name: str, method: str, setting: str, guess: float) -> Task:
    quick = setting not in (NO_TRAINING, OURS, PRETRAINED)
    return Task(Key(PART_NAME, name, 0, method, setting), guess, has_quick_form=quick)


def measure(work: Work) -> Row:
    """One row: accuracy on all nodes of the test graph."""
    unseen = load(str(work.file()))
    method = work.key.method
    if method in TRAINING_FREE:
        return {"metric": "accuracy", "test": accuracy(unseen, TRAINING_FREE[method](unseen))}
    if method == "adar":
        return adar(work, unseen)
    graphs = prepare([str(work.file(name)) for name in TRAINED_ON], seed=work.key.seed)
    epochs = QUICK_EPOCHS if work.quick else EPOCHS
    if method in SELF_SUPERVISED:
        return self_supervised(work, graphs, unseen, epochs)
    model, row = train_baseline(work, graphs, method, LAYERS[method], epochs=epochs, lr=3e-3)
    return row | {"test": accuracy(unseen, last_scores(model, unseen))}


def self_supervised(work: Work, graphs: Sequence[Graph], unseen: Graph, epochs: int) -> Row:
    """DGI or GRACE with one of the backbones."""
    torch.manual_seed(work.key.seed)
    layers = LAYERS[work.key.setting]
    model = BASELINES[work.key.setting](model_config(graphs, hidden=HIDDEN), layers=layers)
    assert isinstance(model, OnePass)

    def show(epoch: int, loss: float) -> None:
        work.report(epoch / epochs, f"epoch {epoch} of {epochs}, loss {loss:.3f}")

    pretrain(work.key.method, model, graphs, epochs, on_epoch=show)
    settings = {
        "backbone": work.key.setting,
        "layers": layers,
        "hidden": HIDDEN,
        "epochs": epochs,
        "lr": 1e-3,
    }
    found = accuracy(unseen, zero_shot_scores(model, unseen))
    return {"metric": "accuracy", "test": found, "epochs": epochs, "settings": settings}


def adar(work: Work, unseen: Graph) -> Row:
    """AdaR at its calibrated exit, for several budgets."""
    setting = work.key.setting
    if setting == PRETRAINED:
        return from_package(unseen)
    arguments = [*ADAR[setting], *(QUICK_ADAR if work.quick else [])]
    with TemporaryDirectory() as folder:
        work.report(0.0, "adar-deploy train")
        model, row = train_adar(work, TRAINED_ON, arguments, Path(folder) / "run")
    tensors = GraphTensors.of(unseen)
    rule = make_rule(row["exit"])
    by_budget = {}
    for budget in BUDGETS:
        work.report(0.9, f"{budget} steps")
        path = unseen_path(model, unseen, tensors, budget)
        step = answer_step(rule, [aligned for _, aligned, *_ in path])
        by_budget[str(budget)] = {"at exit": path[step][3], "at end": path[-1][3]}
    kept = np.unique(np.linspace(0, len(path) - 1, 101).round().astype(int))
    thinned = [(time, inner, score) for time, _, inner, score in (path[index] for index in kept)]
    found = by_budget[str(max(BUDGETS))]["at exit"]
    return row | {"test": found, "by_budget": by_budget, "trajectory": thinned}


def from_package(unseen: Graph) -> Row:
    """The pretrained model, which knows the class descriptions of the test graph alone."""
    bundle = pretrained(threads=1)
    by_budget = {}
    for budget in BUDGETS:
        runs = {"at exit": None, "at end": "final"}
        scores = {name: bundle.run(unseen, budget, stop, "euler").scores for name, stop in runs.items()}
        by_budget[str(budget)] = {name: accuracy(unseen, one) for name, one in scores.items()}
    found = by_budget[str(max(BUDGETS))]["at exit"]
    return {"metric": "accuracy", "test": found, "by_budget": by_budget}


@torch.no_grad()
def unseen_path(
    model: Model, graph: Graph, tensors: GraphTensors, budget: int
) -> list[tuple[float, float, float, float]]:
    """Time, the model's alignment, mean inner product and accuracy at every step."""
    found = []
    clock = times(budget, unit_step=model.config.unit_step)
    for time, state in zip(clock, model.trajectory(tensors, clock), strict=True):
        score = accuracy(graph, model.scores(state, tensors).numpy())
        inner = float(mean_inner_product(state.nodes, state.targets))
        found.append((float(time), float(model.alignment(state)), inner, score))
    return found


@torch.no_grad()
def last_scores(model: Model, graph: Graph) -> Any:
    """The scores of a baseline after its last layer."""
    tensors = GraphTensors.of(graph)
    *_, last = model.eval().trajectory(tensors, times(1))
    return model.scores(last, tensors).numpy()


def accuracy(graph: Graph, scores: Any) -> float:
    """The share of labelled nodes whose largest score is their class."""
    mask = graph.labelled(ALL, 0)
    assert mask is not None
    assert graph.labels is not None
    return float(np.mean(scores.argmax(axis=1)[mask] == graph.labels[mask]))


PART = Part(PART_NAME, SETS, tasks, measure)
