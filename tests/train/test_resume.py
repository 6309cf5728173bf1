"""A resumed training gives the same losses and weights as an uninterrupted one."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adar_runtime import Graph
from adar_runtime.errors import RunFolderError
from adar_train import ModelConfig, TrainConfig, Trainer
from adar_train.baselines import BASELINES
from adar_train.checkpoints import save_checkpoint
from adar_train.fit import build

CONFIG = TrainConfig(epochs=12, train_steps=2, evaluate_every=3, select_budgets=(2,), exit_budgets=(2,))


def trainer(board: Graph) -> Trainer:
    return Trainer([board], build([board], ModelConfig(board.width, 2, 8, 4), CONFIG.seed), CONFIG)


def test_a_resumed_training_has_the_same_losses_and_weights(board: Graph, tmp_path: Path) -> None:
    whole = trainer(board).run()
    first = trainer(board)
    with pytest.raises(KeyboardInterrupt):

        def stop(epoch) -> None:
            if epoch.number == 7:
                raise KeyboardInterrupt

        first.run(stop, tmp_path / "checkpoint")
    torch.manual_seed(99)  # the random state must come from the checkpoint
    second = trainer(board)
    second.resume(tmp_path / "checkpoint")
    assert len(second.history) == 7
    resumed = second.run()
    assert resumed.history == whole.history
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


@pytest.mark.parametrize("where", ["_update", "_validate"])
def test_ctrl_c_waits_for_the_end_of_the_epoch(board: Graph, tmp_path: Path, monkeypatch, where) -> None:
    whole = trainer(board).run()
    first = trainer(board)
    original = getattr(first, where)

    def interrupted(*arguments):
        if len(first.history) == 5:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(first, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        first.run(checkpoint=tmp_path / "checkpoint")
    second = trainer(board)
    second.resume(tmp_path / "checkpoint")
    assert len(second.history) == 6
    assert second.run().history == whole.history


def test_a_checkpoint_with_other_settings_is_refused(board: Graph, tmp_path: Path) -> None:
    trainer(board).save(tmp_path / "checkpoint")
    other = Trainer([board], build([board], ModelConfig(board.width, 2, 8, 4), 0), replace(CONFIG, lr=0.5))
    with pytest.raises(RunFolderError, match="different lr:"):
        other.resume(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 16}, "different hidden:"),
        ({"dropout": 0.5, "alignment": "mean-inner-product"}, "different dropout, alignment:"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(
    board: Graph, tmp_path: Path, settings: dict, message: str
) -> None:
    trainer(board).save(tmp_path / "checkpoint")
    config = replace(ModelConfig(board.width, 2, 8, 4), **settings)
    other = Trainer([board], build([board], config, 0), CONFIG)
    with pytest.raises(RunFolderError, match=message):
        other.resume(tmp_path / "checkpoint")


def test_a_checkpoint_of_another_baseline_is_refused(board: Graph, tmp_path: Path) -> None:
    config = ModelConfig(board.width, 2, 8, 4)
    Trainer([board], BASELINES["gcn"](config), CONFIG).save(tmp_path / "checkpoint")
    with pytest.raises(RunFolderError, match="different model:"):
        Trainer([board], BASELINES["sage"](config), CONFIG).resume(tmp_path / "checkpoint")


@pytest.mark.parametrize("part", ["features", "edge_index", "labels", "train_mask"])
def test_a_checkpoint_of_other_data_is_refused(board: Graph, tmp_path: Path, part: str) -> None:
    """The shapes are equal, one value differs."""
    trainer(board).save(tmp_path / "checkpoint")
    changed = getattr(board, part).copy()
    changed.flat[0] = not changed.flat[0] if changed.dtype == bool else 1 - changed.flat[0]
    with pytest.raises(RunFolderError, match="different data:"):
        trainer(replace(board, **{part: changed})).resume(tmp_path / "checkpoint")


def test_checkpoints_of_other_versions_and_damaged_files_are_refused(board: Graph, tmp_path: Path) -> None:
    one = trainer(board)
    save_checkpoint(tmp_path / "checkpoint", one.model, one.best, one.optimizer, one.random, {"history": []})
    with pytest.raises(RunFolderError, match="another version"):
        one.resume(tmp_path / "checkpoint")
    (tmp_path / "checkpoint").write_bytes(b"nonsense")
    with pytest.raises(RunFolderError, match="cannot be resumed"):
        trainer(board).resume(tmp_path / "checkpoint")
