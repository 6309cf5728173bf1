"""kill -9, at any moment: what is there afterwards is whole, the next one goes on, and nothing piles up."""

import json
import random
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import adar_runtime
from adar_runtime import read_graph
from adar_runtime.backends.tensorrt.engines.sidecar import read_engine, sidecars
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.bundle.run_files import CHECKPOINT, CONFIG, HISTORY
from adar_runtime.errors import RunFolderError
from adar_train import load_run
from adar_train.run_folders import newest_run
from tests.faults.conftest import KILLS, Server, left_behind

TRAIN = ("train", "g.npz", "--hidden", 8, "--proxies", 2, "--train-steps", 1, "--epochs", 12, "--out", "r")
CHECKPOINTS = ("--checkpoint-every", 2)
EXPORT = ("export", "run", "--out", "bundle", "--opset")
BUILD = ("build", "bundle", "--profile", "small")
OLDER = ["older"]  # in the configuration of a run
STRAIGHTEN = ("straighten", "run", "--out", "old", "--updates", 1, "--overwrite")
RUN = ("run", "g.npz", "--bundle", "bundle", "--max-steps", 40, "--output", "p.npz")


def moments(times: int, whole: dict, seed: int) -> Iterator[dict]:
    """When to kill: at moments of the clock and, as often, just before a change on the disk."""
    random_ = random.Random(seed)
    for index in range(times):
        if times == 1 or index % 2:
            yield {"write": random_.randint(1, max(1, whole["writes"]))}
        else:
            yield {"after": random_.uniform(0, whole["seconds"])}


@pytest.mark.parametrize("times", KILLS)
def test_train(times: int, commands: Server, home: Path) -> None:
    whole = commands.run(home, *TRAIN[:-1], "whole", *CHECKPOINTS)
    assert whole["code"] == 0, whole["stderr"]
    expected, killed, seed = weights_and_history(home / "whole"), 0, 0
    while killed < times:
        resumed = (home / "r" / CHECKPOINT).exists()
        for moment in moments(times, whole, seed := seed + 1):
            got = commands.run(home, *TRAIN, *CHECKPOINTS, *(["--resume"] if resumed else []), **moment)
            killed += got["code"] == -9
            assert got["code"] in (0, -9), got["stderr"]
            assert_run_is_whole_or_absent(home / "r")
            resumed = (home / "r" / CHECKPOINT).exists()
            if got["code"] == 0:  # what was killed on its way is what was never killed
                assert weights_and_history(home / "r") == expected
                assert left_behind(home) == []
            if killed == times:
                break
            if (home / "r" / CONFIG).exists():  # finished, perhaps just before it was killed
                shutil.rmtree(home / "r")
    if (home / "r" / CONFIG).exists():
        shutil.rmtree(home / "r")
    end = commands.run(home, *TRAIN, *CHECKPOINTS, *(["--resume"] if resumed else []))
    assert end["code"] == 0, end["stderr"]
    assert weights_and_history(home / "r") == expected
    assert left_behind(home) == []


@pytest.mark.parametrize("every", [pytest.param(9, id="fast"), pytest.param(1, marks=pytest.mark.torture)])
@pytest.mark.parametrize("command", [STRAIGHTEN, (*TRAIN[:-1], "old", "--overwrite")])
def test_replacing_a_run(command: tuple, every: int, commands: Server, home: Path) -> None:
    """The old run or the new one is there, and what else was in its folder."""
    make_older_run(home)
    whole = commands.run(home, *command)
    assert whole["code"] == 0, whole["stderr"]
    assert load_run(home / "old").config["data"] != OLDER
    assert left_behind(home) == []
    for write in range(whole["writes"], 0, -every):
        make_older_run(home)
        assert commands.run(home, *command, write=write)["code"] == -9
        assert load_run(home / "old").graph().nodes == 144
        assert (home / "old" / "notes.txt").read_text() == "mine"
        assert newest_run(home).name in ("run", "old")
    assert commands.run(home, *command)["code"] == 0
    assert left_behind(home) == []


def make_older_run(home: Path) -> None:
    shutil.rmtree(home / "old", ignore_errors=True)
    shutil.copytree(home / "run", home / "old")
    config = json.loads((home / "old" / CONFIG).read_text())
    (home / "old" / CONFIG).write_text(json.dumps(config | {"data": OLDER}))
    (home / "old" / "notes.txt").write_text("mine")


def weights_and_history(run: Path) -> tuple[str, str]:
    return load_run(run).fingerprint(), (run / HISTORY).read_text()


def assert_run_is_whole_or_absent(run: Path) -> None:
    if (run / CONFIG).exists():
        assert load_run(run).graph().nodes == 144
    elif run.exists():
        with pytest.raises(RunFolderError, match="is not a training run"):
            load_run(run)
    assert len(left_behind(run)) <= 1  # of the last one; the one before was cleared


@pytest.mark.parametrize("times", KILLS)
def test_export(times: int, commands: Server, home: Path) -> None:
    whole = commands.run(home, *EXPORT, 17)
    assert whole["code"] == 0, whole["stderr"]
    graph, killed, seed = read_graph(home / "g.npz"), 0, 0
    while killed < times:
        for moment in moments(times, whole, seed := seed + 1):
            before = read_manifest(home / "bundle").opset
            opset = 17 if before == 18 else 18
            got = commands.run(home, *EXPORT, opset, **moment)
            killed += got["code"] == -9
            assert got["code"] in (0, -9), got["stderr"]
            bundle = adar_runtime.load(home / "bundle", "onnxruntime-cpu", threads=1)
            assert bundle.manifest.opset in ((opset,) if got["code"] == 0 else (before, opset))
            assert bundle.manifest.parity["checks"]  # whole: it was compared
            assert bundle.run(graph, 3).steps > 0
            assert len(left_behind(home)) <= 1
            if killed == times:
                break
    assert commands.run(home, *EXPORT, 17)["code"] == 0
    assert left_behind(home) == []


@pytest.mark.parametrize("times", KILLS)
def test_run(times: int, commands: Server, home: Path) -> None:
    whole = commands.run(home, *RUN)
    assert whole["code"] == 0, whole["stderr"]
    expected, killed, seed = np.load(home / "p.npz")["prediction"], 0, 0
    while killed < times:
        for moment in moments(times, whole, seed := seed + 1):
            got = commands.run(home, *RUN, **moment)
            killed += got["code"] == -9
            assert got["code"] in (0, -9), got["stderr"]
            assert np.array_equal(np.load(home / "p.npz")["prediction"], expected)
            assert len(left_behind(home)) <= 1
            if killed == times:
                break
    assert commands.run(home, *RUN)["code"] == 0
    assert left_behind(home) == []


def test_run_of_a_store(commands: Server, home: Path) -> None:
    """Where the summary is, all parts are there and belong to it."""
    assert commands.run(home, "data", "shard", "g.npz", "--parts", 2, "--output", "store")["code"] == 0
    command = ("run", "store", "--bundle", "bundle", "--max-steps", 2, "--output", "answers")
    assert commands.run(home, *command)["code"] == 0
    whole, summary = commands.run(home, *command), home / "answers" / "run.json"
    for write in range(whole["writes"], whole["writes"] // 2, -4):
        assert commands.run(home, *command, write=write)["code"] == -9
        assert not summary.exists() or len([*(home / "answers").glob("part-*.parquet")]) == 2
        assert commands.run(home, *command)["code"] == 0
        assert summary.exists()
        assert left_behind(home) == []


@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="engines are built by tensorrt-rtx")
@pytest.mark.parametrize("times", [pytest.param(100, id="100 times", marks=pytest.mark.torture)])
def test_build(times: int, commands: Server, home: Path) -> None:
    whole = commands.run(home, *BUILD)
    assert whole["code"] == 0, whole["stderr"]
    killed, seed = 0, 0
    while killed < times:
        for moment in moments(times, whole, seed := seed + 1):
            got = commands.run(home, *BUILD, **moment)
            killed += got["code"] == -9
            assert got["code"] in (0, -9), got["stderr"]
            found = list(sidecars(home / "bundle"))
            assert len(found) == 4 or got["code"] == -9
            for sidecar in found:  # what is described is whole
                assert len(read_engine(home / "bundle", sidecar)) == sidecar.bytes
            assert adar_runtime.load(home / "bundle", "onnxruntime-cpu").manifest.opset == 17
            assert len(left_behind(home)) <= 1
            if killed == times:
                break
    assert commands.run(home, *BUILD)["code"] == 0
    assert left_behind(home) == []
