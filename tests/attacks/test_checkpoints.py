"""Checkpoints of a training whose content was changed: `train --resume` refuses them in one line."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adar_runtime import Graph
from adar_runtime.bundle.run_files import CHECKPOINT, CONFIG, METRICS, WEIGHTS
from adar_runtime.errors import RunFolderError
from adar_runtime.graph.synthetic import minesweeper
from adar_train import Epoch, TrainConfig, load_run
from adar_train.checkpoints import CHECKSUM
from adar_train.job import Job
from adar_train.prepare import model_config

Change = Callable[[dict[str, Any], dict[str, Any]], object]


def job(graph: Graph, out: Path) -> Job:
    training = TrainConfig(epochs=3, train_steps=2, select_budgets=(2,), exit_budgets=(2,), ema_decay=0.9)
    return Job(["board"], [graph], model_config([graph], hidden=8, proxies=2), training, out)


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that was interrupted after two epochs."""

    def stop(epoch: Epoch) -> None:
        if epoch.number == 2:
            raise KeyboardInterrupt

    folder = tmp_path_factory.mktemp("unfinished") / "run"
    with pytest.raises(KeyboardInterrupt):
        job(minesweeper(side=6), folder).run("cpu", on_epoch=stop, checkpoint_every=1)
    return folder


def rewrite(file: Path, change: Change) -> None:
    """Change the header of a checkpoint, and the progress in it; the numbers stay."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    progress = json.loads(header["__metadata__"]["progress"])
    change(header, progress)
    header["__metadata__"]["progress"] = json.dumps(progress)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def put(name: str, value: Any) -> Change:
    return lambda _, progress: progress.update({name: value})


def remove(name: str) -> Change:
    return lambda _, progress: progress.pop(name)


def searched(**settings: Any) -> Change:
    return put("search", [{"settings": settings}])


def rename(before: str, after: str) -> Change:
    return lambda header, _: header.update({after: header.pop(before)})


def one_more_dimension(name: str) -> Change:
    return lambda header, _: header[name].update(shape=[1, *header[name]["shape"]])


def random_state(**values: Any) -> Change:
    def change(header: dict[str, Any], _: dict[str, Any]) -> None:
        state = json.loads(header["__metadata__"]["random.numpy"])
        header["__metadata__"]["random.numpy"] = json.dumps(state | values)

    return change


CHANGES: dict[str, Change] = {
    "a search that is a number": put("search", 1),
    "a search of texts": put("search", ["x"]),
    "a search without settings": put("search", [{}]),
    "a search of an unknown setting": searched(bogus=1),
    "a search of another type": searched(dropout="x"),
    "a search of a model of terabytes": searched(hidden=10**9),
    "a search of endless trajectories": searched(train_steps=10**12),
    "settings that are a list": put("settings", [1]),
    "no history": remove("history"),
    "a history of numbers": put("history", [1]),
    "a history without losses": put("history", [{"epoch": 1}]),
    "a history of texts": put("history", [{"epoch": 1, "loss": "x"}]),
    "a history of other epochs": put("history", [{"epoch": 7, "loss": 0.5}]),
    "no time": remove("seconds"),
    "a time that is a text": put("seconds", "x"),
    "a validation that is a list": put("best_val", []),
    "a random state beyond 64 bits": random_state(uinteger=2**70),
    "an optimiser of another kind": rename("optimizer.0.exp_avg", "optimizer.0.momentum"),
    "an optimiser of more parameters": rename("optimizer.0.step", "optimizer.999.step"),
    "an optimiser of other shapes": one_more_dimension("optimizer.0.exp_avg"),
    "best weights of other names": rename("best.cell.message.linear.bias", "best.x"),
    "averaged weights of other names": rename("average.cell.message.linear.bias", "average.x"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_checkpoint_is_refused(name: str, unfinished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(unfinished, tmp_path / "run")
    rewrite(run / CHECKPOINT, CHANGES[name])
    with pytest.raises(RunFolderError) as error:
        job(minesweeper(side=6), run).run("cpu", resume=True)
    assert "without --resume" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_an_unchanged_checkpoint_is_resumed(unfinished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(unfinished, tmp_path / "run")
    rewrite(run / CHECKPOINT, lambda *_: None)
    assert job(minesweeper(side=6), run).run("cpu", resume=True)["epochs"] == 3


def test_a_changed_bit_is_detected(unfinished: Path, tmp_path: Path) -> None:
    """The bit is in a tensor: without a checksum, the training went on from other weights."""
    run = shutil.copytree(unfinished, tmp_path / "run")
    content = bytearray((run / CHECKPOINT).read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    start, _ = json.loads(content[8 : 8 + length])["model.cell.message.linear.weight"]["data_offsets"]
    content[8 + length + start] ^= 1
    (run / CHECKPOINT).write_bytes(content)
    with pytest.raises(RunFolderError, match="its content was changed since it was written"):
        job(minesweeper(side=6), run).run("cpu", resume=True)


@pytest.mark.parametrize("name", ["best_val", "seconds"])
def test_changed_progress_is_detected(name: str, unfinished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(unfinished, tmp_path / "run")
    rewrite(run / CHECKPOINT, put(name, 0.123))
    with pytest.raises(RunFolderError, match="its content was changed since it was written"):
        job(minesweeper(side=6), run).run("cpu", resume=True)


def test_a_checkpoint_of_an_older_version_is_resumed(unfinished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(unfinished, tmp_path / "run")
    rewrite(run / CHECKPOINT, lambda header, _: header["__metadata__"].pop(CHECKSUM))
    assert job(minesweeper(side=6), run).run("cpu", resume=True)["epochs"] == 3


@pytest.mark.parametrize("file", [CONFIG, METRICS, WEIGHTS])
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a file of 1 TB"])
def test_a_file_of_a_run_that_does_not_end(file: str, kind: str, run_folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    (run / file).unlink()
    if kind == "a pipe":
        os.mkfifo(run / file)
    elif kind == "a device":
        (run / file).symlink_to("/dev/zero")
    else:
        (run / file).touch()
        os.truncate(run / file, 2**40)
    with pytest.raises(RunFolderError, match=r"not a regular file|bytes, but at most"):
        load_run(run)
