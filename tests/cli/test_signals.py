"""Ctrl-C and SIGTERM, as a shell or a scheduler sends them, to commands in processes of their own."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adar_runtime import Graph, write_graph

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
PATIENCE = 60  # seconds, for a busy machine


def interrupt(
    arguments: list[object], folder: Path, number: int, ready: Callable[[int], bool]
) -> tuple[int, list[str]]:
    """Start a command, wait until it is in the middle of its work, send the signal: code and stderr."""
    command = [sys.executable, "-m", "adar_deploy", *map(str, arguments)]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + PATIENCE
        while not ready(process.pid) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)
    return process.returncode, err.strip().splitlines()


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_training_that_is_interrupted_can_go_on(
    board: Graph, tmp_path: Path, number: int, code: int
) -> None:
    write_graph(tmp_path / "board.npz", board)
    arguments = ["train", "board.npz", "--hidden", 8, "--proxies", 2, "--train-steps", 1, "--out", "r"]
    checkpoint = tmp_path / "r" / "checkpoint.safetensors"
    endless = [*arguments, "--epochs", 10**6, "--checkpoint-every", 5]
    got, err = interrupt(endless, tmp_path, number, lambda _: checkpoint.exists())
    assert got == code
    assert err == ["error: interrupted; to continue, run the same command with --resume --out r"]
    assert checkpoint.is_file()
    assert not list(tmp_path.rglob(".adar-*"))
    before = checkpoint.stat().st_mtime_ns
    got, err = interrupt(
        [*endless, "--resume"], tmp_path, number, lambda _: checkpoint.stat().st_mtime_ns > before
    )
    assert (got, len(err)) == (code, 1)


def runs_onnx(process: int) -> bool:
    """Whether it has come as far as loading ONNX Runtime, well inside the command."""
    return b"onnxruntime" in Path(f"/proc/{process}/maps").read_bytes()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux to see how far a process is")
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_an_interrupted_run_leaves_nothing(
    board: Graph, bundle_folder: Path, tmp_path: Path, number: int, code: int
) -> None:
    write_graph(tmp_path / "board.npz", board)
    arguments = ["run", "board.npz", "--bundle", bundle_folder, "--max-steps", 10**9, "--exit", "final"]
    got, err = interrupt([*arguments, "--output", "p.csv"], tmp_path, number, runs_onnx)
    assert (got, err) == (code, ["error: interrupted"])
    assert [path.name for path in tmp_path.iterdir()] == ["board.npz"]
