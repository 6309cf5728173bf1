import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adar_runtime import Graph, write_graph
from tests.faults import server

KILLS = [pytest.param(1, id="fast"), pytest.param(100, id="100 times", marks=pytest.mark.torture)]


class Server:
    """Commands that end badly, in a process of their own; see `server.py`."""

    def __init__(self) -> None:
        alone = ["unshare", "--user", "--map-root-user", "--mount"]
        allowed = shutil.which("unshare") and subprocess.run([*alone, "true"], check=False).returncode == 0
        command = [*(alone if allowed else []), sys.executable, server.__file__]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def run(self, folder: Path, *arguments: object, **faults: Any) -> dict[str, Any]:
        return self._ask(do="run", folder=str(folder), arguments=[*map(str, arguments)], **faults)

    def mount(self, folder: Path, kilobytes: int) -> Path:
        """A small disk at this folder, and where this process sees what is on it."""
        folder.mkdir(exist_ok=True)
        if not self._ask(do="mount", folder=str(folder), kilobytes=kilobytes):
            pytest.skip("this system does not let a test mount a disk of its own (unshare, mount)")
        return Path(f"/proc/{self._process.pid}/root{folder}")

    def lock(self, folder: Path) -> None:
        assert self._ask(do="lock", folder=str(folder))

    def close(self) -> None:
        self._process.communicate(timeout=30)

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="session")
def commands() -> Iterator[Server]:
    if not hasattr(os, "fork") or not Path("/proc/self").exists():
        pytest.skip("faults are injected by fork and /proc")
    started = Server()
    yield started
    started.close()


@pytest.fixture
def home(tmp_path: Path, board: Graph, bundle_folder: Path, run_folder: Path) -> Path:
    """A folder with a graph, a bundle and a run to work on."""
    folder = tmp_path / "home"
    folder.mkdir()
    write_graph(folder / "g.npz", board)
    shutil.copytree(bundle_folder, folder / "bundle")
    shutil.copytree(run_folder, folder / "run")
    return folder


def left_behind(folder: Path) -> list[str]:
    """Temporary files and folders."""
    return [str(path.relative_to(folder)) for path in folder.rglob(".adar-*")]
