"""Two processes with one graph each have the losses of one process with both graphs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adar_runtime import write_graph
from adar_train.data.splits import with_split
from tests.helpers import random_graph


def test_two_processes_have_the_loss_of_one(tmp_path: Path) -> None:
    for name, classes in (("a", 3), ("b", 4)):
        write_graph(tmp_path / f"{name}.npz", with_split(random_graph(30, 80, classes=classes, seed=classes)))
    options = [
        "train",
        "a.npz",
        "b.npz",
        "--epochs",
        "5",
        "--hidden",
        "8",
        "--proxies",
        "4",
        "--train-steps",
        "2",
    ]
    options += ["--dropout", "0", "--device", "cpu", "--preset", "zero-shot"]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for out, start in (("one", []), ("two", launcher)):
        command = [sys.executable, *start, "-m", "adar_deploy", *options, "--out", out]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
    one, two = (json.loads((tmp_path / out / "history.json").read_text()) for out in ("one", "two"))
    assert [row["loss"] for row in one] == pytest.approx([row["loss"] for row in two], rel=1e-4)
