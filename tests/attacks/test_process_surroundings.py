"""A working folder of somebody else, a deleted one, and a process with little memory."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from adar_runtime import write_graph
from tests.helpers import random_graph
from tests.in_context_graphs import block_graph

COMMANDS = {
    "run": ["run", "g.npz", "--bundle", "pretrained", "--max-steps", "2", "--quiet", "--plot", "p.png"],
    "evaluate": ["evaluate", "pretrained", "g.npz", "--budgets", "2", "--plot", "p.png"],
    "train": ["train", "g.npz", "--preset", "quick", "--epochs", "1", "--hidden", "4", "--out", "run"],
}
PICTURES = {"run": "p.png", "evaluate": "p.png", "train": "run/learning.png"}
LIMITED = """
import resource, sys
import numpy, onnxruntime
import adar_runtime
from adar_deploy.cli import main
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 80 * 2**20,) * 2)
sys.argv = ["adar-deploy", "data", "show", "large.npz"]
main()
"""


def start(folder: Path, *words: str, path: str = "") -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"},
        timeout=120,
        capture_output=True,
        text=True,
    )


def latex_that_tells(folder: Path) -> Path:
    """A program `latex` that leaves a file `started`, beside the working folder."""
    folder.mkdir()
    program = folder / "latex"
    program.write_text(f"#!/bin/sh\necho started > '{folder}/started'\nexit 1\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("command", COMMANDS)
def test_matplotlib_reads_no_settings_of_the_working_folder(command: str, tmp_path: Path) -> None:
    """They could start LaTeX with code of their author."""
    work, latex = tmp_path / "work", latex_that_tells(tmp_path / "programs")
    write_graph(work / "g.npz", block_graph())
    (work / "matplotlibrc").write_text("text.usetex: True\ntext.latex.preamble: \\typeout{hello}\n")
    done = start(work, "-m", "adar_deploy", *COMMANDS[command], path=str(latex.parent))
    assert done.returncode == 0, done.stderr[-500:]
    assert (work / PICTURES[command]).stat().st_size > 1000
    assert not (latex.parent / "started").exists()


def test_a_pipe_in_place_of_these_settings_is_not_waited_for(tmp_path: Path) -> None:
    write_graph(tmp_path / "g.npz", block_graph())
    os.mkfifo(tmp_path / "matplotlibrc")
    done = start(tmp_path, "-m", "adar_deploy", *COMMANDS["run"])
    assert done.returncode == 0, done.stderr[-500:]


@pytest.mark.parametrize("command", [["data", "shard"], ["remember", "BUNDLE"]])
def test_a_deleted_working_folder_is_one_line(
    command: list[str], bundle_folder: Path, tmp_path: Path
) -> None:
    write_graph(tmp_path / "g.npz", block_graph(width=4))
    words = [str(bundle_folder) if word == "BUNDLE" else word for word in command]
    (tmp_path / "gone").mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); sys.argv[0] = 'adar-deploy'; "
    code += "from adar_deploy.cli import main; main()"
    done = start(tmp_path / "gone", "-c", code, *words, str(tmp_path / "g.npz"), "-o", "out")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr[-500:]


def test_a_context_that_is_too_large_for_the_disk_is_one_line(bundle_folder: Path, tmp_path: Path) -> None:
    write_graph(tmp_path / "g.npz", random_graph(20, 60, features=10))  # less than a buffer
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); "
    code += "sys.argv[0] = 'adar-deploy'; from adar_deploy.cli import main; main()"
    done = start(tmp_path, "-B", "-c", code, "remember", str(bundle_folder), "g.npz", "-o", "context")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {tmp_path} cannot be written: File too large\n"
    assert [path.name for path in tmp_path.iterdir()] == ["g.npz"]


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the system does not tell the memory in use"
)
def test_too_little_memory_is_one_line(tmp_path: Path) -> None:
    edges = np.random.default_rng(0).integers(0, 10**5, (2, 2 * 10**6))
    np.savez(tmp_path / "large.npz", x=np.ones((10**5, 1), np.float32), edge_index=edges)
    done = start(tmp_path, "-c", LIMITED)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: there is not enough memory")
