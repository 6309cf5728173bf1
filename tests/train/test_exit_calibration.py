"""`calibration`: quick takes about a tenth of the training, full is every budget, none is no calibration."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from adar_runtime import Graph
from adar_runtime.errors import UsageError
from adar_runtime.evaluation.curves import PAPER_BUDGETS
from adar_train import AdaR, ModelConfig, TrainConfig
from adar_train.config import preset
from adar_train.exit_calibration import TRAINING_STEP, quick_budgets
from adar_train.trainer import Trainer
from tests.helpers import random_graph

SETTINGS = TrainConfig(epochs=60, train_steps=4, evaluate_every=10, select_budgets=(2, 12), grid="fixed")


@pytest.fixture
def graph() -> Graph:
    graph, part = random_graph(30, 60), np.arange(30) % 3
    masks = {f"{name}_mask": part == number for number, name in enumerate(("train", "val", "test"))}
    return replace(graph, target_features=None, **masks)


def counted(graph: Graph, config: TrainConfig) -> tuple[dict, int, int, int]:
    """The metrics, and the cell calls in training, in validation and after the last epoch."""
    torch.manual_seed(0)
    model = AdaR(ModelConfig(graph.width, 3, hidden=8, proxies=2))
    calls = {"training": 0, "validation": 0, "calibration": 0}

    def count(module: torch.nn.Module, *_: object) -> None:
        done = len(trainer.history) == config.epochs
        calls["calibration" if done else "training" if module.training else "validation"] += 1

    trainer = Trainer([graph], model, config)
    model.cell.register_forward_hook(count)
    metrics = trainer.run().metrics
    return metrics, *calls.values()


def test_a_quick_calibration_takes_a_tenth_of_the_training(graph: Graph) -> None:
    metrics, training, validation, calibration = counted(graph, replace(SETTINGS, calibration="quick"))
    budgets = [*map(int, metrics["budgets"])]
    assert training == 60 * 4
    assert calibration == sum(budgets)  # one trajectory per budget
    assert calibration <= 0.1 * (TRAINING_STEP * training + validation)
    assert budgets == [8, 20]
    assert metrics["test"] == metrics["budgets"]["20"]["test"]
    assert metrics["calibration"] == "quick"


def test_a_full_calibration_is_every_budget(graph: Graph) -> None:
    metrics, *_, calibration = counted(graph, replace(SETTINGS, epochs=2, exit_budgets=(3, 5, 9)))
    assert [*metrics["budgets"]] == ["3", "5", "9"]
    assert calibration == 17


def test_no_calibration_stops_at_the_end(graph: Graph) -> None:
    metrics, *_, calibration = counted(graph, replace(SETTINGS, calibration="none"))
    assert calibration == 12  # the largest budget of the selection, for the metrics
    assert metrics["exit"] == {"rule": "final"}
    assert metrics["exit_reason"] == "final: the exit was not calibrated"
    assert "exit_time" not in metrics
    assert set(metrics["intervals"]) == {"train", "val", "test"}


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (0, (8,)),
        (27, (8,)),
        (28, (8, 20)),
        (128, (8, 20, 100)),
        (256, (8, 20, 200)),
        (400, (8, 20, 50, 300)),
        (1078, PAPER_BUDGETS),
    ],
)
def test_the_budgets_of_a_quick_calibration(most: float, expected: tuple[int, ...]) -> None:
    assert quick_budgets(PAPER_BUDGETS, most) == expected
    assert sum(expected) <= max(8, most)


def test_presets_calibrate_quickly_unless_told_otherwise() -> None:
    assert preset().calibration == "quick"
    assert preset("transductive", calibration="full").calibration == "full"
    with pytest.raises(UsageError, match="unknown calibration 'some': choose one of quick, full, none"):
        TrainConfig(calibration="some")
