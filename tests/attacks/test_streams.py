"""Streams and options that cannot be used: one line and exit code 2, never a traceback."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from adar_runtime import Graph, write_graph

PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


def adar(folder: Path, *words: str, **settings: object) -> subprocess.CompletedProcess:
    variables = os.environ | settings.pop("variables", {})
    command = [sys.executable, "-m", "adar_deploy", *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
    return subprocess.run(command, cwd=folder, env=variables, timeout=60, check=False, **streams)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("words", [("--help",), ("data", "list"), ("data", "list", "--json"), ("--version",)])
def test_a_full_disk_for_stdout_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = adar(tmp_path, *words, stdout=full)
        assert done.returncode == 2
        assert done.stderr == b"error: the output cannot be written: No space left on device\n"
        assert adar(tmp_path, "run", "none.npz", stdout=full, stderr=full).returncode == 2


@pytest.fixture
def unread() -> Iterator[int]:
    """The end of a pipe that nobody reads, as after `| head`."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize(
    "words",
    [
        ("data", "list"),
        ("data", "list", "--json"),
        ("--help",),
        ("train", "--help"),
        ("--version",),
        ("data",),
    ],
)
def test_a_pipe_that_nobody_reads_is_one_line(words: tuple[str, ...], tmp_path: Path, unread: int) -> None:
    done = adar(tmp_path, *words, stdout=unread)
    assert (done.returncode, done.stderr) == (2, b"error: the output cannot be written: Broken pipe\n")


def test_evaluate_writes_its_file_before_it_prints(
    bundle_folder: Path, board: Graph, tmp_path: Path, unread: int
) -> None:
    write_graph(tmp_path / "g.npz", board)
    words = ("evaluate", str(bundle_folder), "g.npz", "--budgets", "2", "-o", "steps.csv")
    assert adar(tmp_path, *words, stdout=unread).returncode == 2
    assert len((tmp_path / "steps.csv").read_text().splitlines()) == 4


def test_serve_with_a_pipe_that_nobody_reads_ends_in_order(
    bundle_folder: Path, tmp_path: Path, unread: int
) -> None:
    pytest.importorskip("grpc")
    words = ("serve", str(bundle_folder), "--port", "0", "--grpc-port", "0")
    done = adar(tmp_path, *words, stdout=unread)
    _, *others = done.stderr.splitlines()  # the first line is of the log
    assert (done.returncode, others) == (2, [b"error: the output cannot be written: Broken pipe"])


def test_messages_that_cannot_be_written_do_not_end_a_command(tmp_path: Path, unread: int) -> None:
    """The reader of a log may end before a training does."""
    unknown = {
        "x": np.ones((3, 2), np.float32),
        "edge_index": np.zeros((2, 1), np.int64),
        "labels": np.ones(3),
    }
    np.savez(tmp_path / "g.npz", **unknown)
    said = adar(tmp_path, "data", "show", "g.npz", "--json")
    assert b"note" in said.stderr
    assert said.returncode == 0
    targets = [unread]
    if Path("/dev/full").exists():
        targets.append(os.open("/dev/full", os.O_WRONLY))
    for stderr in targets:
        done = adar(tmp_path, "data", "show", "g.npz", "--json", stderr=stderr)
        assert (done.returncode, done.stdout) == (0, said.stdout)


def test_closed_streams_are_no_error(tmp_path: Path) -> None:
    shell = f"'{sys.executable}' -m adar_deploy data list >&- 2>&-"
    assert subprocess.run(shell, shell=True, cwd=tmp_path, timeout=60, check=False).returncode == 0


def test_closed_streams_keep_their_descriptors() -> None:
    """Otherwise the next file gets the number of stderr, and messages of libraries go into that file."""
    code = "import os; from adar_deploy.streams import prepare_streams as p; p(); os.fstat(0), os.fstat(1)"
    code += "; os._exit(os.open('/', os.O_RDONLY) <= 2)"
    for closed in ("<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-", ""):
        shell = f"'{sys.executable}' -c \"{code}\" {closed}"
        assert subprocess.run(shell, shell=True, timeout=60, check=False).returncode == 0, closed


@pytest.mark.parametrize("words", [("--help",), ("run", "--help"), ("data", "list")])
def test_a_locale_without_unicode(words: tuple[str, ...], tmp_path: Path) -> None:
    done = adar(tmp_path, *words, variables=PLAIN)
    assert (done.returncode, done.stderr) == (0, b"")
    done.stdout.decode("ascii")


OPTIONS = {
    "tool = 3": ("pyproject.toml", "tool is not a table"),
    "[tool]\nadar = 3": ("pyproject.toml", "adar is not a table"),
    f"a = {'[' * 5000}{']' * 5000}": ("adar.toml", "is not TOML"),
    f"a = {'[' * 30}{']' * 30}": ("adar.toml", "levels deep"),
    f"{'a.' * 3000}a = 1": ("adar.toml", "levels deep"),
    f"# {'x' * 2**20}": ("adar.toml", "too large"),
    f"{'a.' * 30_000}a = 1": ("adar.toml", "levels deep"),
    f"[run]\nmax-steps = {'9' * 5000}": ("adar.toml", "is not TOML"),
}


@pytest.mark.parametrize("text", OPTIONS, ids=[text[:20] for text in OPTIONS])
def test_unusable_options(text: str, tmp_path: Path) -> None:
    name, message = OPTIONS[text]
    (tmp_path / name).write_text(text)
    done = adar(tmp_path, "data", "list", text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr[-500:]
    assert done.stderr.startswith(f"error: {name}: ")
    assert message in done.stderr


@pytest.mark.parametrize("file", ["/dev/zero", "/", "/none"])
def test_a_device_or_folder_for_options(file: str, tmp_path: Path) -> None:
    done = adar(tmp_path, "data", "list", text=True, variables={"ADAR_CONFIG": file})
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr[-500:]


def test_warnings_are_lines_on_stderr_once(tmp_path: Path) -> None:
    """Two graphs with the same problem give one line; stdout stays JSON."""
    arrays = {"x": np.ones((3, 2), np.float32), "edge_index": np.array([[0], [1]])}
    np.savez(tmp_path / "g.npz", **arrays, adj_t=np.ones(1))
    done = adar(tmp_path, "data", "show", "g.npz", "--json", text=True)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line == "note: keys of the file that are not used: adj_t (save edge_index instead)"
    assert done.stdout.startswith("{")
