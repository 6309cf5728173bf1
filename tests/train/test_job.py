import json
from dataclasses import replace
from pathlib import Path

import pytest

from adar_runtime import Graph
from adar_runtime.errors import RunFolderError, UsageError
from adar_train import TrainConfig
from adar_train.job import Job
from adar_train.prepare import model_config


def job(board: Graph, out: Path) -> Job:
    training = TrainConfig(epochs=2, train_steps=2, select_budgets=(2,), exit_budgets=(2,))
    return Job(["board"], [board], model_config([board], hidden=8, proxies=2), training, out)


def test_a_search_keeps_the_best_by_validation(board: Graph, tmp_path: Path) -> None:
    metrics = job(board, tmp_path / "run").search({"train_steps": (1, 3), "dropout": (0.0, 0.5)}, "cpu")
    assert [(one["train_steps"], one["dropout"]) for one in metrics["search"]] == [
        (1, 0),
        (1, 0.5),
        (3, 0),
        (3, 0.5),
    ]
    best = max(metrics["search"], key=lambda one: one["val"])
    assert metrics["val"] == best["val"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["training"]["train_steps"] == best["train_steps"]
    assert config["model"]["dropout"] == best["dropout"]


def test_what_cannot_be_started(board: Graph, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="nothing to resume"):
        job(board, tmp_path / "run").run("cpu", resume=True)
    with pytest.raises(UsageError, match="choose gcn"):
        replace(job(board, tmp_path / "run"), baseline="crystal-ball").run("cpu")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("")
    with pytest.raises(UsageError, match="already"):
        job(board, tmp_path / "thesis").run("cpu")


def test_gradient_checkpoints_give_the_same_run(board: Graph, tmp_path: Path) -> None:
    for name, saved in (("plain", False), ("saved", True)):
        one = job(board, tmp_path / name)
        replace(one, training=replace(one.training, gradient_checkpoints=saved)).run("cpu")
    histories = [json.loads((tmp_path / name / "history.json").read_text()) for name in ("plain", "saved")]
    assert [row["loss"] for row in histories[0]] == pytest.approx(
        [row["loss"] for row in histories[1]], rel=1e-5
    )
