"""Ctrl-C, SIGTERM and SIGHUP, as a shell or a scheduler sends them, to commands in processes of their own."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adar_runtime import Graph, write_graph
from adar_runtime.interrupts import deferred_signals

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
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


def written_after(file: Path, time: int) -> Callable[[int], bool]:
    return lambda _: file.exists() and file.stat().st_mtime_ns > time


def test_a_training_that_is_interrupted_can_go_on(board: Graph, tmp_path: Path) -> None:
    """By each signal in turn: the second and the third one meet a training that was continued."""
    write_graph(tmp_path / "board.npz", board)
    arguments = ["train", "board.npz", "--preset", "quick", "--hidden", 8, "--proxies", 2, "--out", "r"]
    checkpoint = tmp_path / "r" / "checkpoint.safetensors"
    endless = [*arguments, "--epochs", 10**6, "--checkpoint-every", 5, "--resume"]
    before = 0
    for number, code in SIGNALS:
        got, err = interrupt(endless, tmp_path, number, written_after(checkpoint, before))
        assert got == code
        assert err[-1] == "error: interrupted; to continue, run the same command with --resume --out r"
        assert len(err) == 1 + (not before)  # a note that there is no checkpoint yet
        assert not list(tmp_path.rglob(".adar-*"))
        before = checkpoint.stat().st_mtime_ns


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


def handles_signals(process: int) -> bool:
    """Whether the process has installed a handler of SIGTERM. Before, Python itself is still starting."""
    status = Path(f"/proc/{process}/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught & 1 << (signal.SIGTERM - 1))


COMMANDS = {
    "train": ["train", "board.npz", "--epochs", 10**6, "--hidden", 8, "--proxies", 2],
    "run": ["run", "board.npz", "--bundle", "bundle", "--max-steps", 10**9, "--exit", "final", "--quiet"],
    "export": ["export", "run", "--out", "new"],
    "bench": ["bench", "bundle", "board.npz", "--run", "run", "--repeats", 1000, "--threads", 1],
}


def signal_during_start(folder: Path, seed: int) -> None:
    """Start a command and send a signal to its process group after a random delay of at most 2 s."""
    chosen = random.Random(seed)
    name, delay = chosen.choice(sorted(COMMANDS)), chosen.uniform(0, 2)
    number, code = chosen.choice(SIGNALS)
    command = [sys.executable, "-m", "adar_deploy", *map(str, COMMANDS[name])]
    options = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        while process.poll() is None and not handles_signals(process.pid):
            pass
        time.sleep(delay)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # a terminal sends Ctrl-C to child processes too
        else:
            process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)
    tried = (seed, name, delay, number)
    assert (*tried, process.returncode) == (*tried, code), err
    assert [line.split(";")[0] for line in err.splitlines()] == ["error: interrupted"], (tried, err)
    assert not list(folder.rglob(".adar-*")), tried


def prepare_start(folder: Path, board: Graph, run_folder: Path, bundle_folder: Path) -> None:
    write_graph(folder / "board.npz", board)
    (folder / "run").symlink_to(run_folder)
    (folder / "bundle").symlink_to(bundle_folder)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to see how far a process is")
@pytest.mark.parametrize(
    "seeds",
    [pytest.param(range(4), id="4"), pytest.param(range(30), id="30", marks=pytest.mark.torture)],
)
def test_a_signal_during_the_start_is_one_line_and_its_exit_code(
    board: Graph, run_folder: Path, bundle_folder: Path, tmp_path: Path, seeds: range
) -> None:
    prepare_start(tmp_path, board, run_folder, bundle_folder)
    for seed in seeds:
        signal_during_start(tmp_path, seed)


def test_a_signal_during_an_import_or_a_finaliser_ends_the_command(tmp_path: Path) -> None:
    """A package that catches every exception while it is imported, and a finaliser, do not hide a signal."""
    (tmp_path / "hides.py").write_text("import time\ntry: time.sleep(1)\nexcept BaseException: pass\n")
    code = (
        "import os, signal, sys, threading, time\n"
        "from adar_deploy import cli\n"
        "class Slow:\n"
        "    def __del__(self): time.sleep(1)\n"
        "def work():\n"
        "    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "    {what}\n"
        "    time.sleep(60)\n"
        "cli.add(cli.app, work)\n"
        "sys.argv = ['adar-deploy', 'work']\n"
        "cli.main()\n"
    )
    for what in ("import hides", "Slow()", "print(1 / 0)"):
        command = [sys.executable, "-c", code.format(what=what)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
        if "1 / 0" in what:  # an error without a signal stays an error
            assert "ZeroDivisionError" in done.stderr
        else:
            assert (done.returncode, done.stderr) == (143, "error: interrupted\n"), what


@pytest.mark.parametrize("number", [number for number, _ in SIGNALS])
def test_a_signal_while_python_ends_does_not_change_the_exit_code(number: int) -> None:
    """Python removes all handlers before it frees the modules, which takes a second with PyTorch."""
    code = (
        "import os, sys, time\n"
        "from adar_deploy.__main__ import main\n"
        "class Slow:\n"
        "    def __del__(self, write=os.write, sleep=time.sleep):\n"
        "        write(2, b'freed\\n')\n"
        "        sleep(1)\n"
        "slow = Slow()\n"
        "sys.argv = ['adar-deploy', '--version']\n"
        "main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "freed\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")


def test_a_finaliser_of_an_interrupted_object_prints_nothing() -> None:
    """As that of a ZipFile whose file was being opened. Without a signal, Python prints the error."""
    code = (
        "import os, signal, sys, time\n"
        "from adar_deploy import cli\n"
        "class Half:\n"
        "    def __init__(self, interrupted):\n"
        "        if interrupted: os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(0.1)\n"
        "    def __del__(self): self.file.close()\n"
        "def work():\n"
        "    {what}\n"
        "cli.add(cli.app, work)\n"
        "sys.argv = ['adar-deploy', 'work']\n"
        "cli.main()\n"
    )
    for what in ("Half(True)", "half = Half(True)", "Half(False)"):
        command = [sys.executable, "-c", code.format(what=what)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if "False" in what:
            assert (done.returncode, "AttributeError" in done.stderr) == (0, True)
        else:
            assert (done.returncode, done.stderr) == (143, "error: interrupted\n"), what


def test_a_signal_that_is_ignored_does_not_end_a_block_of_deferred_signals() -> None:
    """A shell lets background jobs ignore Ctrl-C, and nohup lets a program ignore SIGHUP."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred_signals() as deferred:
            signal.raise_signal(signal.SIGINT)
        assert deferred.arrived == []
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_long_import_does_not_delay_a_signal(tmp_path: Path) -> None:
    """PyTorch takes a minute to import on a busy machine. With a block to clean up, the signal waits."""
    (tmp_path / "slow.py").write_text("import time\nfor _ in range(1200): time.sleep(0.05)\n")
    (tmp_path / "short.py").write_text("import time\nfor _ in range(10): time.sleep(0.05)\n")
    code = (
        "import os, signal, sys, threading, time\n"
        "from pathlib import Path\n"
        "from adar_deploy import cli\n"
        "def work():\n"
        "    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "    {what}\n"
        "    time.sleep(60)\n"
        "cli.app.registered_commands.clear()\n"
        "cli.add(cli.app, work)\n"
        "sys.argv = ['adar-deploy', 'work']\n"
        "cli.main()\n"
    )
    cleaned = "try: import short\n    finally: Path('cleaned').touch()"
    for what in ("import slow", cleaned):
        done = subprocess.run(
            [sys.executable, "-c", code.format(what=what)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert (done.returncode, done.stderr) == (143, "error: interrupted\n"), what
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize("name", ["bench", "report"])
def test_pytorch_is_not_imported_where_a_signal_would_wait(
    name: str, run_folder: Path, tmp_path: Path
) -> None:
    """The signal arrives during the import of PyTorch, before the first block that has to clean up."""
    (tmp_path / "torch.py").write_text(
        "import os, pathlib, signal, time\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(5)\n"
        "pathlib.Path('imported').touch()\n"
    )
    arguments = [name, *([run_folder] if name == "report" else [])]
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "adar_deploy", *map(str, arguments)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (143, "error: interrupted\n")
    assert not (tmp_path / "imported").exists()
