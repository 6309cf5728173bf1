"""Part "ablations": the paper's figure of test-time computing under different design choices."""

from typing import Any

from adar_train import GraphTensors, Trainer, load
from adar_train.config import preset
from adar_train.fit import build
from adar_train.prepare import model_config
from benchmarks.paper.table import Key, Row, Table
from benchmarks.paper.tasks import Part, Task, Work
from benchmarks.paper.training import HIDDEN, plain, show_epochs, test_time_computing

PART_NAME = "ablations"
SETS = ("acm", "minesweeper")
# What each variant changes in the model and in the training: the options `--without` of `adar-deploy train`.
WITHOUT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "full": ({}, {}),
    "without step information": ({"step_info": False}, {}),
    "unit time step": ({"unit_step": True}, {"grid": "unit"}),
    "without relations": ({"relation": False}, {}),
    "without L_full": ({}, {"full_weight": 0.0}),
    "without L_step": ({}, {"step_weight": 0.0}),
    "L_task alone": ({}, {"full_weight": 0.0, "step_weight": 0.0}),
}
QUICK = {"epochs": 100, "lr": 3e-3}  # instead of 1,000 epochs at 1e-3
SECONDS = {"minesweeper": 900, "acm": 300}


def tasks(table: Table, sets: tuple[str, ...], quick: bool) -> list[Task]:  # noqa: ARG001
    """All variants on each set."""
    return [
        Task(Key(PART_NAME, name, 0, "adar", variant), SECONDS[name]) for name in sets for variant in WITHOUT
    ]


def measure(work: Work) -> Row:
    """AdaR with the paper's settings, without a part of it, at the end of every budget."""
    of_model, of_training = WITHOUT[work.key.setting]
    graph = load(str(work.file()))
    chosen = (QUICK if work.quick else {}) | of_training
    config = preset("transductive", seed=work.key.seed, mixed_precision=False, **chosen)
    sizes = model_config([graph], hidden=HIDDEN, alignment="mean-inner-product", **of_model)
    trainer = Trainer([graph], build([graph], sizes, config.seed), config)
    trainer.advance(config.epochs, show_epochs(work, config.epochs))
    trainer.model.load_state_dict(trainer.best)
    found = test_time_computing(work, trainer.model, graph, GraphTensors.of(graph))
    settings = {"epochs": config.epochs, "lr": config.lr, "train_steps": config.train_steps}
    return found | {
        **found["ends"]["300"],
        "epochs": len(trainer.history),
        "best_epoch": trainer.best_epoch,
        "seconds": round(trainer.seconds, 2),
        "settings": settings | plain(of_model | of_training),
    }


PART = Part(PART_NAME, SETS, tasks, measure)
