"""The pieces of the recipes: presets, schedule, averaged weights, patience, feature scaling, search."""

import json
import math
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adar_runtime import Graph
from adar_runtime.errors import DivergedError, UsageError
from adar_runtime.graph import SparseRows
from adar_runtime.graph.synthetic import minesweeper
from adar_train import ModelConfig, TrainConfig, Trainer, fit
from adar_train.config import preset
from adar_train.data.splits import with_split
from adar_train.fit import build
from adar_train.job import Job
from adar_train.prepare import model_config
from adar_train.search import (
    NARROW,
    WIDE,
    candidates,
    challenge,
    challenger,
    final,
    final_round,
    halve,
    has_final,
    rival,
    search_epochs,
    standard_error,
)
from adar_train.weight_average import WeightAverage
from tests.helpers import random_graph

BOARD = with_split(minesweeper(side=12))
SHORT = TrainConfig(epochs=6, train_steps=2, select_budgets=(2,), exit_budgets=(2,), evaluate_every=1)
# The default of version 0.2.0, field by field: `--preset quick` stays what it was.
QUICK = TrainConfig(
    epochs=200, train_steps=8, grid="budget", lr=1e-2, warmup=20, decay=True, flat_epochs=0, beta2=0.95,
    weight_decay=1e-6, clip=1.0, ema_decay=0.0, patience=0, label_smoothing=0.0, middle_weight=0.0,
    episodes=False, step_weight=0.0, full_weight=0.0, seed=0, split=0, evaluate_every=10,
    select_budgets=(8, 32),
)  # fmt: skip
# Loss and validation of its first five epochs on BOARD, from the commit before the other recipes.
FIRST_EPOCHS = [
    (0.9791826605796814, 0.6645161290322581),
    (1.122567057609558, 0.6774193548387096),
    (1.0090473890304565, 0.6903225806451613),
    (1.0597296953201294, 0.6903225806451613),
    (0.9500783085823059, 0.6903225806451613),
]


def trainer(config: TrainConfig, **model: object) -> Trainer:
    sizes = model_config([BOARD], hidden=8, proxies=2, **model)
    return Trainer([BOARD], build([BOARD], sizes, config.seed), config)


def test_the_preset_quick_trains_as_the_default_of_before() -> None:
    assert preset("quick") == replace(QUICK, calibration="quick")
    assert preset("quick", described=True) == preset(described=True)
    brief = {"epochs": 5, "evaluate_every": 1, "exit_budgets": (3,)}
    sizes = model_config([BOARD], hidden=16, proxies=4)
    assert sizes == ModelConfig(
        features=10, targets=2, hidden=16, proxies=4, dropout=0.2, input_dropout=0.0,
        feature_scaling="column", alignment="cosine-margin",
    )  # fmt: skip
    histories = [
        fit([BOARD], sizes, config).history for config in (preset("quick", **brief), replace(QUICK, **brief))
    ]
    assert histories[0] == histories[1]
    found = [(row["loss"], row["val"]) for row in histories[0]]
    assert np.allclose(found, FIRST_EPOCHS, rtol=1e-4)  # processors round differently


def test_the_default_recipe() -> None:
    narrow, wide = (preset(wide=wide) for wide in (False, True))
    assert (narrow.epochs, wide.epochs) == (700, 400)
    for one in (narrow, wide):
        assert one.patience
        assert one.ema_decay
        assert one.fading_losses
        assert one.step_weight == one.full_weight > 0  # so that the mean inner product says when to stop


def test_fading_losses_fall_with_the_learning_rate() -> None:
    """With the full learning rate, all losses count; with none, L_task alone."""
    config = replace(SHORT, step_weight=1.0, full_weight=1.0)
    kinds = (config, replace(config, fading_losses=True), SHORT)
    full, fading, task = ([trainer(one)._update(factor) for factor in (1.0, 0.0)] for one in kinds)
    assert fading == [full[0], task[1]]
    assert full[0] > task[0]
    assert full[1] > task[1]


def test_the_learning_rate_is_flat_and_then_falls_to_zero() -> None:
    config = TrainConfig(epochs=100, warmup=10, flat_epochs=40)
    factors = [config.lr_factor(epoch) for epoch in range(100)]
    assert factors[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert factors[9:41] == [1.0] * 32
    assert factors[70] == pytest.approx(0.5)
    assert all(one > other for one, other in pairwise(factors[40:]))
    assert factors[-1] < 0.01


@pytest.mark.parametrize("setting", [{"ema_decay": 1.0}, {"patience": -1}, {"flat_epochs": -1}])
def test_settings_out_of_range_are_refused(setting: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(setting))):
        TrainConfig(**setting)
    with pytest.raises(UsageError, match="unknown feature_scaling 'row'"):
        ModelConfig(2, 2, feature_scaling="row")


def test_the_average_is_that_of_the_weights_and_is_swapped_in_and_out() -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(0)
    average = WeightAverage(layer, 0.5)
    expected = 0.0
    for epoch, value in enumerate((1.0, 2.0, 3.0)):
        layer.weight.data.fill_(value)
        average.update(epoch)
        keep = min(0.5, (1 + epoch) / (10 + epoch))
        expected = keep * expected + (1 - keep) * value
    with average.applied():
        assert layer.weight.item() == pytest.approx(expected)
    assert layer.weight.item() == 3


def test_the_averaged_weights_are_validated_and_kept() -> None:
    """The optimiser is not affected: the losses are those without averaging, the validations are not."""
    one = trainer(SHORT).run()
    averaged = trainer(replace(SHORT, ema_decay=0.9))
    other = averaged.run()
    assert [row["loss"] for row in one.history] == [row["loss"] for row in other.history]
    assert [row["val"] for row in one.history] != [row["val"] for row in other.history]
    assert averaged._validate() == averaged.best_val  # of the weights that the model has at the end


def test_training_stops_when_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.5, 0.7, 0.6, 0.7, 0.1, 0.9])
    stopped = trainer(replace(SHORT, patience=3))
    monkeypatch.setattr(stopped, "_validate", lambda: next(scores))
    history = stopped.run().history
    assert [row["val"] for row in history] == [0.5, 0.7, 0.6, 0.7, 0.1]
    assert stopped.best_epoch == 2


def test_one_scale_for_all_columns_keeps_their_ratio() -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(400, 3)) * [1.0, 10.0, 0.0] + [0, 5, 7]
    graph = Graph(
        features, np.zeros((2, 0), int), labels=random.integers(0, 2, 400), train_mask=np.ones(400, bool)
    )
    scales = {}
    for scaling in ("column", "common"):
        sizes = ModelConfig(3, 2, 8, 2, feature_scaling=scaling)
        scales[scaling] = build([graph], sizes, 0).feature_scale.numpy()
        assert scales[scaling][2] == 0  # a constant column
    assert scales["column"][0] / scales["column"][1] == pytest.approx(10, rel=0.2)
    assert scales["common"][0] == scales["common"][1] > 0


def test_a_training_with_an_average_is_resumed_exactly(tmp_path: Path) -> None:
    config = replace(SHORT, ema_decay=0.9, patience=5)
    whole = trainer(config).run().history
    half = trainer(config)
    half.advance(3)
    torch.set_rng_state(half._torch_random)
    half.save(tmp_path / "checkpoint")
    torch.rand(7)
    resumed = trainer(config)
    resumed.resume(tmp_path / "checkpoint")
    assert resumed.run().history == whole


def test_trainers_that_take_turns_train_as_alone() -> None:
    alone = trainer(SHORT).run().history
    one, other = trainer(SHORT), trainer(replace(SHORT, seed=1))
    for _ in range(3):
        one.advance(2)
        other.advance(2)
    assert one.history == alone
    assert other.history != alone


def test_candidates_leave_given_settings_alone() -> None:
    words = Graph(SparseRows([0, 1, 2], [0, 1], [1.0, 1.0], (2, 300)), np.zeros((2, 0), int))
    assert candidates(words) == WIDE
    assert candidates(Graph(words.rows(0, 2), words.edge_index)) == WIDE  # however the words are stored
    assert candidates(BOARD) == NARROW
    assert candidates(BOARD, {"weight_decay": 0, "label_smoothing": 0, "train_steps": 3}) == [
        {"dropout": 0.2},
        {"dropout": 0.3},
    ]
    assert challenger(words, {"lr": 0.1}) == {}
    assert challenger(BOARD, {"dropout": 0.1, "train_steps": 3}) == {"label_smoothing": 0.1}
    for one in [*WIDE, *NARROW, challenger(words), challenger(BOARD)]:
        assert set(one) <= {*asdict(TrainConfig()), *asdict(ModelConfig(1, 2))}


class Fake:
    """A trainer with a known score; without a score, it diverges."""

    def __init__(self, score: float | None) -> None:
        self.score, self.history, self.seconds, self.best_val = score, [], 1.0, None
        self.graphs, self.model, self.config = [BOARD], SimpleNamespace(config=ModelConfig(7, 2)), SHORT

    def advance(self, epochs: int, on_epoch: object) -> None:
        if self.score is None:
            raise DivergedError("the loss is no longer finite")
        self.history += [None] * epochs
        self.best_val = self.score


def test_halving_keeps_the_better_half_and_prefers_the_first_within_noise() -> None:
    """The first is behind the second by less than the margin."""
    scores = {0: 0.9, 1: 0.9001, 2: 0.5, 3: 0.6, 4: 0.4}
    last, others = halve([{"seed": i} for i in scores], lambda one: Fake(scores[one["seed"]]), 4)
    assert [(settings["seed"], len(kept.history)) for settings, kept in last] == [(0, 8), (1, 8)]
    assert [(one.settings["seed"], one.epochs) for one in others] == [(3, 4), (2, 4), (4, 4)]
    scores[1] = 0.99
    better, _ = halve([{"seed": i} for i in scores], lambda one: Fake(scores[one["seed"]]), 4)
    assert better[0][0] == {"seed": 1}
    kept = last[0][1]
    assert 0 < standard_error(kept, 0.9) < 0.2


@pytest.mark.parametrize("alone", [0, 1, 2, 3])
def test_candidates_that_diverge_are_dropped_with_a_line(alone: int) -> None:
    scores = [0.5 if index == alone else None for index in range(4)]
    dropped = []
    last, others = halve(
        [{"seed": i} for i in range(4)],
        lambda one: Fake(scores[one["seed"]]),
        4,
        on_drop=lambda one, error: dropped.append((one["seed"], str(error))),
    )
    assert [(settings, kept.score) for settings, kept in last] == [({"seed": alone}, 0.5)]
    assert dropped == [(i, "the loss is no longer finite") for i in range(4) if i != alone]
    assert [one.val for one in others] == [None, None, None]
    with pytest.raises(DivergedError):
        halve([{"seed": 0}, {"seed": 1}], lambda _: Fake(None), 4)


def test_the_epochs_of_a_search() -> None:
    counts = {}
    for count in range(1, 9):
        made = [Fake(0.5) for _ in range(count)]
        halve([{"seed": i} for i in range(count)], lambda one, made=made: made[one["seed"]], 3)
        counts[count] = sum(len(one.history) for one in made)
    assert counts == {count: search_epochs(count, 3) for count in counts}


@pytest.mark.parametrize(("score", "better"), [(0.6, True), (0.499, True), (0.4, False), (None, False)])
def test_a_challenger_trains_as_long_as_the_winner_and_wins_unless_it_is_behind(
    score: float | None, better: bool
) -> None:
    made = [Fake(0.5) for _ in range(6)]
    (winner, *_), _ = halve([{"seed": i} for i in range(6)], lambda one: made[one["seed"]], 3)
    rival, dropped = Fake(score), []
    best, other = challenge(
        winner, {"lr": 1e-3}, lambda _: rival, 12, on_drop=lambda one, _: dropped.append(one)
    )
    assert best[1] is (rival if better else winner[1])
    assert other.settings == (winner[0] if better else winner[0] | {"lr": 1e-3})
    assert dropped == ([other.settings] if score is None else [])
    if score is not None:
        epochs = sum(len(one.history) for one in (*made, rival))
        assert epochs == search_epochs(6, 3, 12)
        assert len(rival.history) == len(winner[1].history) == 12


@pytest.mark.parametrize("column_first", [False, True])
@pytest.mark.parametrize(("score", "better"), [(0.6, True), (0.499, True), (0.4, False), (None, False)])
def test_finalists_with_one_factor_per_column_have_the_margin(
    score: float | None, better: bool, column_first: bool
) -> None:
    """They learn more slowly, whether or not they won the rounds."""
    common, column = ({"feature_scaling": "common"}, Fake(0.5)), ({"feature_scaling": "column"}, Fake(score))
    same = ({"feature_scaling": ("common", "column")[column_first], "dropout": 0.3}, Fake(0.5))
    first, other = (column, common) if column_first else (common, column)
    assert rival([first, same, other]) is other
    assert rival([first, same]) is None
    assert has_final([first[0], same[0], other[0]])
    assert not has_final([first[0], same[0]])
    best, beaten = final([first, other], 9)
    assert best is (column if better else common)
    assert beaten.settings == (common if better else column)[0]
    assert len(best[1].history) == 9


def test_a_search_with_two_scalings_ends_with_a_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both finalists have the same epochs, and no more than `search_epochs` says are trained."""
    monkeypatch.setattr("adar_train.job.ROUND", 1)
    choices = [{"feature_scaling": "common"}, {"feature_scaling": "column"}]
    job = Job(["board"], [BOARD], model_config([BOARD], hidden=8, proxies=2), SHORT, tmp_path / "run")
    seen = []
    metrics = job.run("cpu", choices=choices, on_search=lambda settings, _: seen.append(settings))
    assert [one["epochs"] for one in metrics["search"]] == [final_round(SHORT.epochs)] * 2 == [2, 2]
    assert len(seen) == search_epochs(2, 1, final=2) == 4
    assert metrics["epochs"] == SHORT.epochs
    assert metrics["search_epochs"] == 2


def test_the_standard_error_of_a_share() -> None:
    graph = with_split(replace(random_graph(500, 10), target_features=None))
    of = SimpleNamespace(graphs=[graph], model=SimpleNamespace(config=ModelConfig(6, 3)), config=SHORT)
    assert standard_error(of, 0.8) == pytest.approx(math.sqrt(0.16 / 100))


def test_a_search_is_part_of_a_training_and_its_cost_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adar_train.job.ROUND", 2)
    choices = [{"dropout": 0.9}, {"dropout": 0.0}, {"dropout": 0.1, "weight_decay": 1e-3}]
    sizes = model_config([BOARD], hidden=8, proxies=2)
    job = Job(["board"], [BOARD], sizes, SHORT, tmp_path / "run")
    seen = []
    metrics = job.run("cpu", choices=choices, on_search=lambda settings, _: seen.append(settings))
    assert seen == [one for one in choices for _ in range(2)]
    assert metrics["search_epochs"] == 4
    assert metrics["search_seconds"] == pytest.approx(
        sum(one["seconds"] for one in metrics["search"][1:]), abs=0.01
    )
    chosen = metrics["search"][0]["settings"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert {**config["model"], **config["training"]}.items() >= chosen.items()
    alone = Job(["board"], [BOARD], sizes, SHORT, tmp_path / "alone").run("cpu", choices=[chosen])
    assert alone["val"] == metrics["val"]  # the search is not seen in the result of its winner
    assert "search_epochs" not in alone


def test_a_resumed_search_keeps_its_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adar_train.job.ROUND", 1)
    job = Job(["board"], [BOARD], model_config([BOARD], hidden=8, proxies=2), SHORT, tmp_path / "run")
    choices = [{"dropout": 0.9}, {"dropout": 0.0}]
    whole = replace(job, out=tmp_path / "whole").run("cpu", choices=choices)

    def stop(epoch: object) -> None:
        if epoch.number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.run("cpu", stop, choices=choices)
    resumed = job.run("cpu", choices=choices, resume=True)
    assert resumed["val"] == whole["val"]
    notes = []
    again = job.run("cpu", choices=choices, challenger={"lr": 1.0}, resume=True, on_note=notes.append)
    assert notes == [f"{job.out} is finished: nothing to resume"]
    assert again["seconds"] == resumed["seconds"]
    assert resumed["search"][0]["settings"] == whole["search"][0]["settings"]
