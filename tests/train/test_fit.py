"""Training through `fit`: the model learns, seeds reproduce it, unusable graphs are refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from adar_runtime import Graph
from adar_runtime.errors import GraphError, UsageError
from adar_train import Epoch, ModelConfig, TrainConfig, fit
from adar_train.precision import BFLOAT16_FROM, prefers_bfloat16
from tests.helpers import random_graph

SHORT = {"select_budgets": (2,), "exit_budgets": (2, 4)}


def test_training_reduces_the_loss(board: Graph) -> None:
    epochs: list[Epoch] = []
    training = TrainConfig(epochs=60, train_steps=2, **SHORT)
    fitted = fit([board], ModelConfig(board.width, 2, 16, 4), training, epochs.append)
    assert [epoch.number for epoch in epochs] == list(range(1, 61))
    assert epochs[-1].loss < 0.8 * epochs[0].loss
    assert fitted.metrics["train"] > 0.75
    assert fitted.metrics["val"] >= epochs[-1].val - 0.05
    assert set(fitted.metrics) >= {"metric", "train", "val", "test", "epochs", "seconds", "seed", "split"}


def test_the_same_seed_gives_the_same_weights(board: Graph) -> None:
    def weights(seed: int) -> torch.Tensor:
        fitted = fit(
            [board],
            ModelConfig(board.width, 2, 8, 4),
            TrainConfig(epochs=2, train_steps=2, seed=seed, **SHORT),
        )
        return fitted.model.input.weight

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_mixed_precision_on_request(board: Graph) -> None:
    """Off by default for a small graph on a CPU. Weights stay in single precision."""

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


@pytest.mark.parametrize(
    ("device", "instructions", "nodes", "preferred"),
    [
        ("cpu", {"avx512_bf16": True}, BFLOAT16_FROM, True),
        ("cpu", {"amx_bf16": True}, BFLOAT16_FROM, True),
        ("cpu", {"avx512_bf16": True}, BFLOAT16_FROM - 1, False),
        ("cpu", {}, BFLOAT16_FROM, False),
        ("cuda", {}, 1, True),
    ],
)
def test_where_mixed_precision_is_the_default(
    device: str, instructions: dict[str, bool], nodes: int, preferred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: instructions)
    assert prefers_bfloat16([random_graph(nodes, 0)], torch.device(device)) is preferred


def test_training_with_described_targets(board: Graph) -> None:
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
def test_graphs_that_cannot_be_trained_on_are_refused(board: Graph, change: dict, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        fit([replace(board, **change)], ModelConfig(board.width, 2, 8, 4), TrainConfig(epochs=1))


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"epochs": 0}, {"train_steps": 0}, {"lr": 0.0}, {"lr": float("nan")}):
        with pytest.raises(UsageError):
            TrainConfig(**wrong)


def test_a_graph_without_masks_is_refused() -> None:
    graph = random_graph(10, 10)
    with pytest.raises(GraphError, match="train_mask"):
        fit([graph], ModelConfig(graph.width, None, 8, 4), TrainConfig(epochs=1))


def test_a_missing_mask_and_a_mask_without_labels_have_different_messages(board: Graph) -> None:
    empty = replace(board, val_mask=np.zeros_like(board.val_mask))
    with pytest.raises(GraphError, match="nothing in val_mask has a label"):
        fit([empty], ModelConfig(board.width, 2, 8, 4), TrainConfig(epochs=1))
    with pytest.raises(GraphError, match="has no val_mask"):
        fit([replace(board, val_mask=None)], ModelConfig(board.width, 2, 8, 4), TrainConfig(epochs=1))
