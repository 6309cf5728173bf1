from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adar_runtime import Graph
from adar_runtime.errors import GraphError, RunFolderError, UsageError
from adar_train import Epoch, ModelConfig, TrainConfig, fit, load_run
from adar_train.runs import _make_newest, free_name, newest_run
from tests.helpers import random_graph

SHORT = {"select_budgets": (2,), "exit_budgets": (2, 4)}


def test_training_learns(board: Graph) -> None:
    epochs: list[Epoch] = []
    training = TrainConfig(epochs=60, train_steps=2, **SHORT)
    fitted = fit([board], ModelConfig(board.width, 2, 16, 4), training, epochs.append)
    assert [epoch.number for epoch in epochs] == list(range(1, 61))
    assert epochs[-1].loss < 0.8 * epochs[0].loss
    assert fitted.metrics["train"] > 0.75
    assert fitted.metrics["val"] >= epochs[-1].val - 0.05
    assert set(fitted.metrics) >= {"metric", "train", "val", "test", "epochs", "seconds", "seed", "split"}


def test_a_seed_fixes_the_outcome(board: Graph) -> None:
    def weights(seed: int) -> torch.Tensor:
        fitted = fit(
            [board],
            ModelConfig(board.width, 2, 8, 4),
            TrainConfig(epochs=2, train_steps=2, seed=seed, **SHORT),
        )
        return fitted.model.input.weight

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_products_are_of_mixed_precision_where_that_is_asked_for(board: Graph) -> None:
    """On a processor only then. What is kept, and measured, is in single precision all the same."""

    def losses(*, mixed: bool | None) -> list[float]:
        epochs: list[Epoch] = []
        training = TrainConfig(epochs=5, train_steps=2, mixed_precision=mixed, **SHORT)
        fitted = fit([board], ModelConfig(board.width, 2, 16, 4), training, epochs.append)
        assert {weight.dtype for weight in fitted.model.parameters()} == {torch.float32}
        return [epoch.loss for epoch in epochs]

    single, mixed = losses(mixed=False), losses(mixed=True)
    assert losses(mixed=None) == single
    assert mixed != single
    assert np.allclose(mixed, single, rtol=0.02)


def test_described_targets_are_learned_from(board: Graph) -> None:
    graph = replace(board, target_features=np.random.default_rng(0).normal(size=(2, board.width)))
    fitted = fit([graph], ModelConfig(graph.width, None, 8, 4), TrainConfig(epochs=2, train_steps=2, **SHORT))
    assert fitted.model.targets is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, "no labels"),
        ({"val_mask": None}, "val_mask"),
        ({"labels": np.zeros(144, np.int64)}, "one class"),
    ],
)
def test_a_graph_with_nothing_to_learn_says_so(board: Graph, change: dict, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        fit([replace(board, **change)], ModelConfig(board.width, 2, 8, 4), TrainConfig(epochs=1))


def test_settings_that_cannot_be() -> None:
    for wrong in ({"epochs": 0}, {"train_steps": 0}, {"lr": 0.0}, {"lr": float("nan")}):
        with pytest.raises(UsageError):
            TrainConfig(**wrong)


def test_a_run_survives_the_trip(run_folder: Path, board: Graph) -> None:
    run = load_run(run_folder)
    assert run.metrics["metric"] == "roc_auc"
    assert run.config["training"]["epochs"] == 3
    assert np.array_equal(run.graph().features, board.features)
    assert {path.name for path in run_folder.iterdir()} == {
        "model.safetensors",
        "config.json",
        "metrics.json",
        "graph.pt",
        "history.json",
        "learning.png",
    }


def test_folders_that_are_no_run(tmp_path: Path, run_folder: Path) -> None:
    with pytest.raises(RunFolderError, match="adar-deploy train"):
        load_run(tmp_path)
    with pytest.raises(RunFolderError, match="no run in"):
        newest_run(tmp_path)
    for file in run_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"12345678")
    with pytest.raises(RunFolderError, match="cannot be read"):
        load_run(tmp_path)


def test_a_run_never_takes_the_name_of_another(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        names.append(free_name(tmp_path, "a").name)
        (tmp_path / names[-1]).mkdir()
    assert names == ["a", "a-2", "a-3"]


def test_a_graph_without_masks_cannot_be_trained_on() -> None:
    graph = random_graph(10, 10)
    with pytest.raises(GraphError, match="train_mask"):
        fit([graph], ModelConfig(graph.width, None, 8, 4), TrainConfig(epochs=1))


def test_a_missing_mask_and_one_without_labels_are_told_apart(board: Graph) -> None:
    empty = replace(board, val_mask=np.zeros_like(board.val_mask))
    with pytest.raises(GraphError, match="nothing in val_mask has a label"):
        fit([empty], ModelConfig(board.width, 2, 8, 4), TrainConfig(epochs=1))
    with pytest.raises(GraphError, match="has no val_mask"):
        fit([replace(board, val_mask=None)], ModelConfig(board.width, 2, 8, 4), TrainConfig(epochs=1))


def test_a_sibling_that_is_written_anew_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config.json may be gone between being listed and being looked at."""
    for name in ("mine", "sibling"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    glob = Path.glob

    def listed_before(folder: Path, pattern: str) -> list[Path]:
        found = list(glob(folder, pattern))
        (tmp_path / "sibling" / "config.json").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "glob", listed_before)
    _make_newest(tmp_path / "mine")
    (tmp_path / "sibling" / "config.json").write_text("{}")
    assert newest_run(tmp_path) == tmp_path / "mine"
