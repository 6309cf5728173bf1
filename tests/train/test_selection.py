"""Which epoch of a training is kept, and which candidate of a search: the best mean of three validations."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import adar_deploy
from adar_runtime import Graph
from adar_runtime.bundle.run_files import CONFIG
from adar_runtime.errors import UsageError
from adar_runtime.graph import SparseRows
from adar_runtime.graph.synthetic import minesweeper
from adar_train import TrainConfig, Trainer
from adar_train.config import preset
from adar_train.data.splits import with_split
from adar_train.fit import build
from adar_train.prepare import model_config
from adar_train.search import FEW_LABELS, NARROW, WIDE, candidates, has_few_labels, plan_search
from adar_train.selection import Scored, kept_epoch, scored_epochs

BOARD = with_split(minesweeper(side=12))
SHORT = TrainConfig(
    epochs=8, train_steps=2, select_budgets=(2,), exit_budgets=(2,), evaluate_every=1, select_window=3
)


def history(vals: Any, every: int = 10) -> list[dict[str, Any]]:
    """A history with a validation in each `every`th epoch, as a trainer writes it."""
    numbers = range(1, len(vals) * every + 1)
    return [
        {"epoch": i, "loss": 1.0} | ({} if i % every else {"val": float(vals[i // every - 1])})
        for i in numbers
    ]


def trainer(vals: list[float], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Trainer:
    """A trainer whose validations are known."""
    made = Trainer(
        [BOARD], build([BOARD], model_config([BOARD], hidden=8, proxies=2), 0), replace(SHORT, **settings)
    )
    scores = iter(vals)
    monkeypatch.setattr(made, "_validate", lambda: next(scores))
    return made


def test_one_high_validation_does_not_win_and_a_lasting_gain_does() -> None:
    outlier = [0.50, 0.60, 0.70, 0.69, 0.80, 0.60, 0.71, 0.75, 0.76, 0.77]
    assert kept_epoch(history(outlier), 1) == Scored(50, 0.80)
    kept = kept_epoch(history(outlier), 3)
    assert kept is not None
    assert kept.epoch == 100
    assert kept.score == pytest.approx(0.76)


def test_the_first_of_equal_epochs_is_kept() -> None:
    kept = kept_epoch(history([0.5, 0.5, 0.5, 0.5, 0.25]), 3)
    assert kept == Scored(30, 0.5)


def test_epochs_without_a_full_window_are_not_compared_with_others() -> None:
    """The first validation has no neighbours that could confirm it."""
    assert kept_epoch([], 3) is None
    assert kept_epoch([{"epoch": 1, "loss": 1.0}], 3) is None
    assert kept_epoch(history([0.9]), 3) == Scored(10, 0.9)
    assert kept_epoch(history([0.9, 0.5]), 3) == Scored(20, pytest.approx(0.7))
    assert [one.epoch for one in scored_epochs(history([0.9, 0.5, 0.4, 0.6]), 3)] == [30, 40]


def test_the_best_mean_contains_less_noise_than_the_best_validation() -> None:
    """A candidate seems better than it is by the noise of its best score, the more so the more scores it has.

    A gain that is larger than the noise wins with both.
    """
    random = np.random.default_rng(0)
    noise, excess = 0.02, {1: 0.0, 3: 0.0}
    for _ in range(200):
        equal, better = 0.7 + random.normal(0, noise, 12), 0.8 + random.normal(0, noise, 6)
        for window in excess:
            scores = [kept_epoch(history(one), window).score for one in (equal, better)]
            excess[window] += (scores[0] - 0.7) / 200
            assert scores[1] > scores[0]
    assert excess[1] > 1.5 * noise
    assert excess[3] < 0.6 * excess[1]


def test_a_trainer_keeps_the_weights_of_the_best_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epoch 7 has the best mean of three, epoch 3 the highest validation."""
    vals = [0.8, 0.1, 0.9, 0.2, 0.6, 0.7, 0.8, 0.5]
    kept = {}
    for window in (1, 3):
        one, weights = trainer(vals, monkeypatch, select_window=window), []
        for _ in vals:
            one.advance(1)
            weights.append([weight.clone() for weight in one.model.state_dict().values()])
        same = [all(map(torch.equal, one.best.values(), of_epoch)) for of_epoch in weights]
        assert [epoch for epoch, equal in enumerate(same, start=1) if equal] == [one.best_epoch]
        kept[window] = (one.best_epoch, one.best_val)
    assert kept == {1: (3, 0.9), 3: (7, pytest.approx(0.7))}


def test_patience_counts_from_the_best_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """The highest validation is that of epoch 2, the best mean that of epoch 4."""
    vals = [0.5, 0.9, 0.6, 0.7, 0.6, 0.6, 0.6, 0.6]
    lengths = {}
    for window in (1, 3):
        one = trainer(vals, monkeypatch, patience=3, select_window=window)
        one.advance(8)
        lengths[window] = len(one.history)
    assert lengths == {1: 5, 3: 7}


def test_a_resumed_training_keeps_the_same_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it was interrupted before the first full window."""
    vals = [0.9, 0.1, 0.4, 0.5, 0.6, 0.3, 0.3, 0.2]
    for stopped in range(1, len(vals)):
        half = trainer(vals, monkeypatch)
        half.advance(stopped)
        half.save(tmp_path / "checkpoint")
        resumed = trainer(vals[stopped:], monkeypatch)
        resumed.resume(tmp_path / "checkpoint")
        resumed.advance(8)
        assert (resumed.best_epoch, resumed.best_val) == (5, pytest.approx(0.5))


def test_our_recipe_has_a_window_where_labels_are_few_and_the_others_do_not() -> None:
    for kind in ({}, {"wide": True}, {"small": True}):
        assert [preset(**kind, few=few).select_window for few in (False, True)] == [1, 3]
        assert replace(preset(**kind, few=True), select_window=1) == preset(**kind)
    for name in ("quick", "transductive", "zero-shot"):
        assert preset(name, few=True) == preset(name)
    assert preset(described=True, few=True) == preset(described=True)
    with pytest.raises(UsageError, match="select-window is 0, but it must be at least 1"):
        TrainConfig(select_window=0)


def test_few_labels_are_those_of_all_graphs_together() -> None:
    nodes = np.arange(2 * FEW_LABELS - 2)
    graph = Graph(
        np.ones((len(nodes), 1)),
        np.zeros((2, 0), int),
        labels=nodes % 2,
        train_mask=nodes < 10,
        val_mask=nodes % 2 == 0,
    )
    assert has_few_labels([graph], 0)
    assert not has_few_labels([graph, graph], 0)
    assert not has_few_labels([replace(graph, val_mask=nodes >= 10)], 0)
    assert has_few_labels([replace(graph, val_mask=None)], 0)


def test_the_strongest_weight_decay_is_first_where_labels_are_few() -> None:
    """The other candidates keep their order, and so do those for few columns."""
    words = Graph(SparseRows([0, 1, 2], [0, 1], [1.0, 1.0], (2, 300)), np.zeros((2, 0), int))
    found = candidates(words, few=True)
    assert found[0] == {"feature_scaling": "common", "weight_decay": 1e-2, "dropout": 0.3}
    assert found[1:] == [one for one in WIDE if one != found[0]]
    assert plan_search(words, (), 400, few=True).first_only().choices == found[:1]
    assert candidates(BOARD, few=True) == NARROW


def test_the_command_chooses_by_the_number_of_validation_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small board has few labels. With a lower limit, the same labels are many."""
    windows = {}
    for limit in (FEW_LABELS, 10):
        monkeypatch.setattr("adar_train.search.FEW_LABELS", limit)
        out = tmp_path / str(limit)
        adar_deploy.train(BOARD, out=out, epochs=1, hidden=8, proxies=2, calibration="none")
        windows[limit] = json.loads((out / CONFIG).read_text())["training"]["select_window"]
    assert windows == {FEW_LABELS: 3, 10: 1}
